package guard

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Subjects reads what rules see of tasks.
func Subjects(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID) (map[protocol.ID]*Task, error) {
	rows, err := q.GuardSubjects(ctx, pgid.Slice(ids))
	if err != nil {
		return nil, fmt.Errorf("read %d tasks for the guard: %w", len(ids), err)
	}
	out := make(map[protocol.ID]*Task, len(rows))
	for _, r := range rows {
		id := protocol.ID(r.ID)
		out[id] = &Task{
			Type: r.Type, Queue: r.Queue, Tenant: r.Tenant, TaskID: store.TaskID(id, store.Deref(r.Name)), Payload: r.Payload,
			ScheduleType: r.ScheduleType, ScheduledAt: r.ScheduledAt.Time, DelayMS: store.Deref(r.DelayMs), StartAt: r.StartAt.Time,
			MaxRetries: int(r.MaxRetries), TimeoutMS: int64(r.TimeoutMs), IdempotencyKey: store.Deref(r.IdempotencyKey),
			RequestedBy: r.RequestedBy,
		}
	}
	return out, nil
}
