package gate

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const jobID = "01a22065-3161-7c1f-9c59-8a753dad60bb"

// good is evidence of RP-004 or RP-005 as it must be.
func good(t *testing.T, id string, seed []byte) (replay, evidence) {
	t.Helper()
	uuid, err := protocol.ParseID(jobID)
	if err != nil {
		t.Fatal(err)
	}
	var e evidence
	event := func(typ protocol.EventType, from, to protocol.State, change ...func(*penstockv1.Event)) {
		ev := &penstockv1.Event{Seq: int32(len(e.events) + 1), Type: string(typ), PreviousStatus: string(from), Status: string(to), TraceId: "trace"}
		for _, f := range change {
			f(ev)
		}
		e.events = append(e.events, ev)
	}
	const q, r, b = protocol.StateQueued, protocol.StateRunning, protocol.StateRetrying
	event(protocol.EventCreated, "", q)
	event(protocol.EventClaimed, q, r)
	e.task = &client.Task{TaskId: jobID, TraceId: "trace", Attempt: 1, Delivery: 1, FinishedAt: timestamppb.Now()}
	if id == "RP-005" {
		e.task.State = string(protocol.StateSucceeded)
		e.before = proto.CloneOf(e.task)
		event(protocol.EventSucceeded, r, protocol.StateSucceeded)
		event(protocol.EventTransitionRejected, protocol.StateSucceeded, protocol.StateSucceeded, func(ev *penstockv1.Event) {
			ev.ErrorCode, ev.Data = string(protocol.CodeInvalidTransition), []byte(`{"outcome":"failed","outcome_delivery":1}`)
		})
		return replays[4], e
	}
	for n := range 3 {
		event(protocol.EventRetryScheduled, r, b, func(ev *penstockv1.Event) {
			ev.RetryCount = int32(n + 1)
			ev.BackoffDelayMs = wrapperspb.Int64(policy.Delay(seed, uuid, n+1).Milliseconds())
		})
		event(protocol.EventClaimed, b, r)
	}
	event(protocol.EventDLQ, r, protocol.StateDLQPending)
	event(protocol.EventDLQ, protocol.StateDLQPending, protocol.StateDLQRecorded)
	event(protocol.EventFailed, protocol.StateDLQRecorded, protocol.StateFailed)
	e.task.State, e.task.RetryCount, e.task.DlqId = string(protocol.StateFailed), 3, "dlq"
	e.task.LastErrorCode = wrapperspb.String(string(protocol.CodeRetryExhausted))
	e.dead = &penstockv1.DeadLetter{DlqId: "dlq", TaskId: jobID, RetryCount: 3, RecordedAt: timestamppb.Now()}
	return replays[3], e
}

// Each piece of evidence counts.
func TestJudge(t *testing.T) {
	t.Parallel()
	seed := []byte("seed")
	for _, tt := range []struct {
		id     string
		change func(*evidence)
		want   string // empty: it passes
	}{
		{"RP-004", func(*evidence) {}, ""},
		{"RP-004", func(e *evidence) { e.dead = nil }, "there is no dead letter dlq"},
		{"RP-004", func(e *evidence) { e.dead.TaskId = "x" }, "dead letter dlq is about task x"},
		{"RP-004", func(e *evidence) { e.dead.RecordedAt = nil }, "is not in stream:dlq"},
		{"RP-004", func(e *evidence) { e.task.DlqId = "" }, "the task has no dlq_id"},
		{"RP-004", func(e *evidence) { e.task.LastErrorCode = nil }, `error_code is ""`},
		{"RP-004", func(e *evidence) { e.task.RetryCount = 2 }, "retry_count is 2, want 3"},
		{"RP-004", func(e *evidence) { e.task.State = "succeeded" }, "state is succeeded, want failed"},
		{"RP-004", func(e *evidence) { e.events[2].BackoffDelayMs.Value++ }, "the delay before retry 1 is"},
		{"RP-004", func(e *evidence) { e.events[5].TraceId = "other" }, "event 6 has trace_id other"},
		{"RP-004", func(e *evidence) { e.events = append(e.events[:9:9], e.events[10]) }, "the event log says: queued -> running -> retrying"}, // dlq_recorded is missing
		{"RP-004", func(e *evidence) { e.task.TaskId = "x" }, "job_id: "},
		{"RP-005", func(*evidence) {}, ""},
		{"RP-005", func(e *evidence) { e.events = e.events[:3] }, "no refusal was recorded"},
		{"RP-005", func(e *evidence) { e.events[3].ErrorCode = "TASK_TIMEOUT" }, "the refusal has code TASK_TIMEOUT"},
		{"RP-005", func(e *evidence) { e.events[3].Data = []byte(`{"outcome":"claimed","outcome_delivery":1}`) }, "is about another outcome"},
		{"RP-005", func(e *evidence) { e.events[3].Data = nil }, "is about another outcome"},
		{"RP-005", func(e *evidence) { e.events[3].Status = "failed" }, "2 terminal events"},
		{"RP-005", func(e *evidence) { e.task.State = "failed" }, "moved the task from succeeded"},
		{"RP-005", func(e *evidence) { e.task.Attempt = 2 }, "moved the task from succeeded, attempt 1"},
		{"RP-005", func(e *evidence) { e.task.Delivery = 2 }, "delivery 1 to succeeded, attempt 1, delivery 2"},
		{"RP-005", func(e *evidence) { e.task.FinishedAt.Seconds++ }, "moved the task"},
		{"RP-005", func(e *evidence) { e.before = nil }, "it never came to a second end"},
	} {
		r, e := good(t, tt.id, seed)
		tt.change(&e)
		got := r.judge(e, seed)
		if got.Passed != (tt.want == "") || !strings.Contains(strings.Join(got.Wrong, "; "), tt.want) {
			t.Errorf("%s: passed %t, %q; want %q", tt.id, got.Passed, got.Wrong, tt.want)
		}
	}
}
