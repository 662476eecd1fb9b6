package e2e

import (
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// scheduled has a schedule fire five times, a second apart.
func scheduled(c *crashed) func() {
	const fires = 5
	c.worker(injectConfig)
	start := time.Now().Add(time.Second).Truncate(time.Millisecond)
	_, err := c.Client.Schedules().CreateSchedule(c.t.Context(), connect.NewRequest(&penstockv1.CreateScheduleRequest{Name: "s", Spec: &penstockv1.ScheduleSpec{
		EveryMs: 1000, StartAt: timestamppb.New(start), EndAt: timestamppb.New(start.Add((fires - 1) * time.Second)), Missed: "run_all",
		Task: &penstockv1.ScheduledTask{Type: "inject", Payload: []byte(`{"work_ms":1}`)},
	}}))
	must(c.t, err)
	c.wants.succeeded, c.wants.events = fires, "task.created task.queued task.claimed task.succeeded"
	return func() {
		c.eventually("all fires", "SELECT next_fire_at IS NULL FROM schedules")
		if n := c.count("SELECT count(*) FROM schedule_fires f JOIN tasks t ON t.id = f.task_id AND t.scheduled_at = f.fire_at WHERE f.result = 'fired'"); n != fires {
			c.t.Errorf("%d fires with a task, want %d", n, fires)
		}
	}
}
