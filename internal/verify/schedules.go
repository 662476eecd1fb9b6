package verify

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// CheckSchedule: the record of a fire and the task that it made agree.
const CheckSchedule Check = "schedule"

// sweepFires checks that each fire that made a task has it to itself, and that
// the task names the schedule and the fire time. One that retention removed is
// not missed.
func (r *run) sweepFires(ctx context.Context) error {
	p := dbsqlc.VerifyFiresParams{MaxRows: pageTasks}
	for {
		rows, err := r.Store.VerifyFires(ctx, p)
		if err != nil {
			return err
		}
		for _, f := range rows {
			p.AfterID, p.AfterAt = f.ScheduleID, f.FireAt
			r.checkFire(f)
		}
		if len(rows) < pageTasks {
			return nil
		}
	}
}

func (r *run) checkFire(f *dbsqlc.VerifyFiresRow) {
	at := f.FireAt.UTC().Format(time.RFC3339Nano)
	object := fmt.Sprintf("fire %s of schedule %s of tenant %s", at, text(f.Name), text(f.Tenant))
	task := protocol.ID(*f.TaskID).String()
	r.object(CheckSchedule, object, "fires of task "+task, "1", strconv.FormatInt(f.Fires, 10))
	if !f.TaskFound {
		if f.Young {
			r.object(CheckSchedule, object, "task", task, none)
		}
		return
	}
	made := none
	if f.TaskScheduleID != nil {
		made = protocol.ID(*f.TaskScheduleID).String()
	}
	r.object(CheckSchedule, object, "schedule of task "+task, protocol.ID(f.ScheduleID).String(), made)
	if f.OtherTime {
		found := none
		if f.ScheduledAt.Valid {
			found = f.ScheduledAt.Time.UTC().Format(time.RFC3339Nano)
		}
		r.object(CheckSchedule, object, "time of task "+task, at, found)
	}
}
