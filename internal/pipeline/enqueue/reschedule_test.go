package enqueue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func (e *env) reschedule(t *testing.T, r *penstockv1.RescheduleTaskRequest) (*penstockv1.Task, error) {
	t.Helper()
	res, err := e.orch[0].RescheduleTask(t.Context(), connect.NewRequest(r))
	if err != nil {
		return nil, err
	}
	return res.Msg.Task, nil
}

func at(s time.Time) *timestamppb.Timestamp { return timestamppb.New(s) }

func TestReschedule(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	soon := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	r := &penstockv1.EnqueueRequest{TaskId: "a", Type: "x", ScheduleType: "at", ScheduledAt: at(soon), IdempotencyKey: "k"}
	e.must(t, r, false)
	later := soon.Add(time.Hour)
	task, err := e.reschedule(t, &penstockv1.RescheduleTaskRequest{TaskId: "a", ScheduleType: "at", ScheduledAt: at(later), Reason: "not before lunch"})
	if err != nil || !task.ScheduledAt.AsTime().Equal(later) || task.State != "pending" {
		t.Fatalf("%v, %v", task, err)
	}
	// The same again is no second event.
	if _, err := e.reschedule(t, &penstockv1.RescheduleTaskRequest{TaskId: "a", ScheduleType: "at", ScheduledAt: at(later)}); err != nil {
		t.Error(err)
	}
	if n := e.count(t, `event_log WHERE type = 'task.rescheduled' AND status = 'pending' AND previous_status = 'pending' AND reason = 'not before lunch' AND actor = 'user:anonymous'
		AND (data->'from'->>'scheduled_at')::timestamptz = $1 AND (data->'to'->>'scheduled_at')::timestamptz = $2 AND (data->>'start_to')::timestamptz = $2`, soon, later); n != 1 {
		t.Errorf("%d events tell from where and to where", n)
	}
	if n := e.count(t, "tasks WHERE due_at = $1 AND start_at = $1 AND rescheduled_by = '{anonymous}'", later); n != 1 {
		t.Error("the row does not tell")
	}
	// A repeat of the enqueue is compared with what was asked for then.
	e.must(t, r, true)
	changed := &penstockv1.EnqueueRequest{TaskId: "b", Type: "x", ScheduleType: "at", ScheduledAt: at(later), IdempotencyKey: "k"}
	e.duplicate(t, changed, "scheduled_at")
	if task, err = e.reschedule(t, &penstockv1.RescheduleTaskRequest{TaskId: "a", ScheduleType: "delay", DelayMs: 7_200_000}); err != nil || task.ScheduleType != "delay" || task.ScheduledAt != nil {
		t.Errorf("by a delay: %v, %v", task, err)
	}
	e.must(t, r, true)
	if task, err = e.reschedule(t, &penstockv1.RescheduleTaskRequest{TaskId: "a", ScheduleType: "now"}); err != nil || task.ScheduleType != "now" {
		t.Fatalf("now: %v, %v", task, err)
	}
	testkit.Eventually(t, "it is dispatched", func() (bool, string) { return e.count(t, "tasks WHERE state = 'queued' AND due_at IS NULL") == 1, "" })
	e.must(t, r, true)
	testkit.VerifyEvents(t, e.Stores)
}

// What is due, runs or is over has no other time any more; that is recorded once.
func TestRescheduleTooLate(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	e.must(t, &penstockv1.EnqueueRequest{TaskId: "a", Type: "x"}, false)
	for range 3 {
		_, err := e.reschedule(t, &penstockv1.RescheduleTaskRequest{TaskId: "a", ScheduleType: "delay", DelayMs: 1000})
		if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeInvalidTransition) || info.GetField() != "task_id" {
			t.Errorf("%v", err)
		}
	}
	if n := e.count(t, "event_log WHERE type = 'task.transition_rejected' AND reason = 'reschedule in state queued'"); n != 1 {
		t.Errorf("recorded %d times", n)
	}
	_, err := e.reschedule(t, &penstockv1.RescheduleTaskRequest{TaskId: "none", ScheduleType: "now"})
	if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeNotFound) {
		t.Errorf("%v", err)
	}
	testkit.VerifyEvents(t, e.Stores)
}

// A time to start that counts from when a task is due moves with it; one that is
// a time does not.
func TestRescheduleMovesTheExpiry(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	within, end := int64(60_000), time.Now().Add(30*time.Hour).UTC().Truncate(time.Millisecond)
	e.must(t, req(func(r *penstockv1.EnqueueRequest) { r.TaskId, r.ScheduleToStartTimeoutMs = "within", &within }), false)
	e.must(t, req(func(r *penstockv1.EnqueueRequest) { r.TaskId, r.ExpiresAt = "by", at(end) }), false)
	to := time.Now().Add(24 * time.Hour).UTC().Truncate(time.Millisecond)
	for id, want := range map[string]time.Time{"within": to.Add(time.Minute), "by": end} {
		task, err := e.reschedule(t, &penstockv1.RescheduleTaskRequest{TaskId: id, ScheduleType: "at", ScheduledAt: at(to)})
		if err != nil || !task.ExpiresAt.AsTime().Equal(want) {
			t.Errorf("%s: expires %s, want %s, %v", id, task.GetExpiresAt().AsTime(), want, err)
		}
	}
	// It could never start.
	for field, r := range map[string]*penstockv1.RescheduleTaskRequest{
		"scheduled_at": {TaskId: "by", ScheduleType: "at", ScheduledAt: at(end)}, "delay_ms": {TaskId: "by", ScheduleType: "delay", DelayMs: (31 * time.Hour).Milliseconds()},
	} {
		_, err := e.reschedule(t, r)
		if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeInputInvalid) || info.GetField() != field || !strings.Contains(info.GetMessage(), "expires") {
			t.Errorf("beyond the expiry: %v, want TASK_INPUT_INVALID of %s", err, field)
		}
	}
	if n := e.count(t, "event_log WHERE type IN ('task.rescheduled', 'task.transition_rejected')"); n != 2 {
		t.Errorf("%d events, want those of the two that were moved", n)
	}
	if n := e.count(t, "tasks WHERE name = 'by' AND scheduled_at = $1 AND due_at = $1", to); n != 1 {
		t.Error("a refused time changed the task")
	}
}

func TestRescheduleNonsense(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	e.must(t, req(func(r *penstockv1.EnqueueRequest) { r.TaskId = "a" }), false)
	far := time.Now().Add(100 * 365 * 24 * time.Hour)
	for name, c := range map[string]struct {
		req   *penstockv1.RescheduleTaskRequest
		field string
	}{
		"no type":        {&penstockv1.RescheduleTaskRequest{}, "schedule_type"},
		"unknown type":   {&penstockv1.RescheduleTaskRequest{ScheduleType: "sometime"}, "schedule_type"},
		"no time":        {&penstockv1.RescheduleTaskRequest{ScheduleType: "at"}, "scheduled_at"},
		"far time":       {&penstockv1.RescheduleTaskRequest{ScheduleType: "at", ScheduledAt: at(far)}, "scheduled_at"},
		"no valid time":  {&penstockv1.RescheduleTaskRequest{ScheduleType: "at", ScheduledAt: &timestamppb.Timestamp{Seconds: 1 << 60}}, "scheduled_at"},
		"time and delay": {&penstockv1.RescheduleTaskRequest{ScheduleType: "at", ScheduledAt: at(time.Now()), DelayMs: 1}, "delay_ms"},
		"negative delay": {&penstockv1.RescheduleTaskRequest{ScheduleType: "delay", DelayMs: -1}, "delay_ms"},
		"far delay":      {&penstockv1.RescheduleTaskRequest{ScheduleType: "delay", DelayMs: 1 << 60}, "delay_ms"},
		"long reason":    {&penstockv1.RescheduleTaskRequest{ScheduleType: "now", Reason: strings.Repeat("x", 1025)}, "reason"},
	} {
		c.req.TaskId = "a"
		_, err := e.reschedule(t, c.req)
		if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeInputInvalid) || info.GetField() != c.field {
			t.Errorf("%s: %v, want TASK_INPUT_INVALID of %s", name, err, c.field)
		}
	}
	if n := e.count(t, "event_log"); n != 1 {
		t.Errorf("%d events, want task.created alone", n)
	}
}

// Rescheduling races with dispatch and with itself; whoever is first is right.
func TestRescheduleRaces(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2, func(c *config.Orchestrator) { c.Dispatch.PollInterval = 20 * time.Millisecond })
	const n = 40
	for i := range n {
		e.must(t, req(func(r *penstockv1.EnqueueRequest) { r.TaskId, r.DelayMs = fmt.Sprint("r", i), 300+int64(i)*10 }), false)
	}
	done := make(chan int, 2)
	for k := range 2 {
		go func() {
			moved := 0
			for i := range n {
				_, err := e.orch[k].RescheduleTask(t.Context(), connect.NewRequest(&penstockv1.RescheduleTaskRequest{TaskId: fmt.Sprint("r", i), ScheduleType: "delay", DelayMs: int64(100 + 50*k)}))
				switch info := rpc.InfoOf(err); {
				case err == nil:
					moved++
				case info.GetCode() != string(protocol.CodeInvalidTransition):
					t.Errorf("reschedule: %v", err)
				}
			}
			done <- moved
		}()
	}
	moved := <-done + <-done
	testkit.Eventually(t, "all are dispatched", func() (bool, string) { return e.count(t, "tasks WHERE state = 'queued' AND due_at IS NULL") == n, "" })
	if got := e.count(t, "event_log WHERE type = 'task.rescheduled'"); got != moved {
		t.Errorf("%d events for %d calls that moved a task", got, moved)
	}
	if got := e.count(t, "event_log WHERE type = 'task.queued'"); got != n {
		t.Errorf("%d tasks were queued %d times", n, got)
	}
	testkit.VerifyEvents(t, e.Stores)
}
