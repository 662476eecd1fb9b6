package store_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/protocol"
)

// story is a task that lives through random decisions of package protocol, a
// second apart, with all of its events.
type story struct {
	task   protocol.Task
	name   *string
	graph  *string
	key    *string
	env    protocol.Env
	events []*protocol.Event
}

// storyStart leaves room for seconds that are still in the past.
var storyStart = time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC)

func newStory(t *rapid.T) *story {
	s := bornStory(rapid.SampledFrom([]protocol.State{protocol.StatePending, protocol.StateQueued, protocol.StateWaitingApproval}).Draw(t, "born"))
	id := s.task.ID
	if rapid.IntRange(0, 3).Draw(t, "named") == 0 {
		name := "task-" + id.String()
		s.name, s.task.ID = &name, protocol.NameID("default", name)
		s.events[0].TaskID = s.task.ID
	}
	if rapid.IntRange(0, 3).Draw(t, "keyed") == 0 {
		key := "key-" + id.String()
		s.key = &key
	}
	s.task.MaxRetries = rapid.IntRange(0, 4).Draw(t, "max_retries")
	return s
}

// bornStory is a task that was just created in a state.
func bornStory(state protocol.State) *story {
	id := protocol.ID(uuid.Must(uuid.NewV7()))
	s := &story{env: protocol.Env{Now: storyStart, Seed: []byte("seed"), MaxInterruptions: 2, MaxUnknown: 3 * time.Second}}
	s.task = protocol.Task{
		ID: id, State: state, Attempt: 1, Delivery: 1, Seq: 1, MaxRetries: 4, Policy: protocol.DefaultRetryPolicy(), TraceID: "trace-run-" + id.String() + ":1-x",
	}
	s.events = []*protocol.Event{{
		TaskID: id, Seq: 1, Type: protocol.EventCreated, To: state, Attempt: 1, Delivery: 1, BackoffDelay: -1, Actor: protocol.ActorAPI,
		TraceID: s.task.TraceID, OccurredAt: storyStart,
	}}
	return s
}

// cut goes back to when there were so many events: the task is what they imply.
func (s *story) cut(f failer, n int) {
	r := protocol.Replay{Seed: s.env.Seed}
	for _, e := range s.events[:n] {
		if err := r.Add(e); err != nil {
			f.Fatalf("event %d: %v", e.Seq, err)
		}
	}
	back := r.Task()
	back.ID, back.MaxRetries, back.Policy = s.task.ID, s.task.MaxRetries, s.task.Policy
	s.task, s.events = back, s.events[:n]
}

// tell makes the decision of that name.
func (s *story) tell(t testing.TB, step string) {
	t.Helper()
	s.env.Now = s.env.Now.Add(time.Second)
	var events []*protocol.Event
	ok := true
	o := &protocol.Outcome{ID: s.task.ID, Delivery: s.task.Delivery, WorkerID: "w1", MessageID: "1-0", StartedAt: s.env.Now, FinishedAt: s.env.Now, Delay: -1}
	switch step {
	case "dispatch":
		events, ok = s.task.Dispatch(s.env)
	case "redispatch":
		events, ok = s.task.Redispatch(s.env, "not in the stream")
	case "lost":
		events, ok = s.task.Lost(s.env, protocol.ActorReclaimer, "idle", nil)
	case "bury":
		events, ok = s.task.RecordDeadLetter(s.env)
	case "cancel":
		events, ok = s.task.Cancel(s.env, protocol.ActorAPI, protocol.CodeCancelled, "no longer wanted")
	case "claim":
		o.Kind = protocol.OutcomeClaimed
	case "ok":
		o.Kind = protocol.OutcomeSucceeded
	case "approval":
		o.Kind = protocol.OutcomeApprovalNeeded
	case "snooze":
		o.Kind, o.Delay = protocol.OutcomeSnoozed, time.Minute
	case "fail":
		o.Kind, o.Retryable, o.Code, o.Error = protocol.OutcomeFailed, true, protocol.CodeTimeout, "too slow"
	}
	if o.Kind != "" {
		var v protocol.Verdict
		events, v = s.task.ApplyOutcome(o, s.env)
		ok = v == protocol.Applied
	}
	if !ok {
		t.Fatalf("%s is not possible in %s", step, s.task.State)
	}
	s.events = append(s.events, events...)
}

// step makes one decision; most of what is tried is possible.
func (s *story) step(t *rapid.T) {
	s.env.Now = s.env.Now.Add(time.Second)
	var events []*protocol.Event
	switch what := rapid.SampledFrom([]string{"outcome", "outcome", "outcome", "claim", "claim", "fail", "fail", "dispatch", "dispatch", "redispatch",
		"lost", "dead", "dead", "cancel", "approve", "progress", "stale"}).Draw(t, "step"); what {
	case "dispatch":
		events, _ = s.task.Dispatch(s.env)
	case "redispatch":
		events, _ = s.task.Redispatch(s.env, "not in the stream")
	case "lost":
		events, _ = s.task.Lost(s.env, protocol.ActorReclaimer, "idle", &protocol.ReclaimData{OriginalConsumer: "w1", NewConsumer: "r", MessageID: "1-0"})
	case "dead":
		events, _ = s.task.RecordDeadLetter(s.env)
	case "cancel":
		if rapid.IntRange(0, 5).Draw(t, "really") == 0 {
			events, _ = s.task.Cancel(s.env, protocol.ActorAPI, protocol.CodeCancelled, "no longer wanted")
		}
	case "approve":
		if s.task.State == protocol.StateWaitingApproval {
			e := s.task.Note(protocol.EventApprovalApproved, s.env, protocol.ActorUser("ann"), "fine", nil)
			e.To, s.task.State = protocol.StatePending, protocol.StatePending
			events = append(events, e)
		}
	case "progress":
		if s.task.State == protocol.StateRunning {
			events = append(events, s.task.Note(protocol.EventProgress, s.env, protocol.ActorWorker, "", map[string]int{"done": 1}))
		}
	default:
		events, _ = s.task.ApplyOutcome(s.outcome(t, what), s.env)
	}
	s.events = append(s.events, events...)
}

func (s *story) outcome(t *rapid.T, what string) *protocol.Outcome {
	o := &protocol.Outcome{
		ID: s.task.ID, Delivery: s.task.Delivery, WorkerID: rapid.SampledFrom([]string{"w1", "w2"}).Draw(t, "worker"), MessageID: "1-0",
		StartedAt: s.env.Now, FinishedAt: s.env.Now, Delay: -1,
	}
	if rapid.IntRange(0, 3).Draw(t, "timed") > 0 { // of a clock that may be wrong
		ms := rapid.IntRange(-4000, 2000).Draw(t, "started")
		o.StartedAt = s.env.Now.Add(time.Duration(ms) * time.Millisecond)
		o.FinishedAt = o.StartedAt.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "took")) * time.Millisecond)
	}
	switch what {
	case "claim":
		o.Kind = protocol.OutcomeClaimed
		return o
	case "fail":
		o.Kind, o.Retryable, o.Code, o.Error = protocol.OutcomeFailed, true, protocol.CodeTimeout, "too slow"
		return o
	case "stale":
		o.Delivery = max(o.Delivery-1, 1)
	}
	o.Kind = rapid.SampledFrom(protocol.OutcomeKinds()).Draw(t, "kind")
	o.Retryable = rapid.Bool().Draw(t, "retryable")
	o.Error = rapid.SampledFrom([]string{"", "boom"}).Draw(t, "error")
	o.Code = rapid.SampledFrom([]protocol.Code{"", protocol.CodeExecutionFailed, protocol.CodeUnknownType}).Draw(t, "code")
	if o.Kind == protocol.OutcomeSnoozed {
		o.Delay = time.Minute
	}
	return o
}

// store writes the task and its log as they are, in one transaction.
func (s *story) store(t testing.TB, c *pgx.Conn) {
	t.Helper()
	opt := func(at time.Time) *time.Time {
		if at.IsZero() {
			return nil
		}
		return &at
	}
	str := func(v string) *string {
		if v == "" {
			return nil
		}
		return &v
	}
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO tasks (id, name, tenant, queue, type, state, attempt, max_retries, delivery, interruptions, event_seq, schedule_type, timeout_ms, next_retry_at,
		idempotency_scope, idempotency_key, given, trace_id, payload, last_error_code, last_error_reason, worker_id, created_at, updated_at, started_at, finished_at, graph_id)
		VALUES ($1, $2, 'default', 'q', 'x', $3, $4, $5, $6, $7, $8, 'now', 1, $9, 'default', $10, 0, $11, '{"a":1}', $12, $13, $14, $15, $16, $17, $18, $19)`,
		s.task.ID.String(), s.name, string(s.task.State), s.task.Attempt, s.task.MaxRetries, s.task.Delivery, s.task.Interruptions, s.task.Seq, opt(s.task.NextRetryAt),
		s.key, s.task.TraceID, str(string(s.task.Code)), str(s.task.Reason), str(s.task.WorkerID), storyStart, s.env.Now, opt(s.task.StartedAt), opt(s.task.FinishedAt), s.graph)
	for _, e := range s.events {
		var backoff *int64
		if e.BackoffDelay >= 0 {
			ms := e.BackoffDelay.Milliseconds()
			backoff = &ms
		}
		b.Queue(`INSERT INTO event_log (task_id, seq, type, previous_status, status, attempt, delivery, next_retry_at, error_code, reason, backoff_delay_ms, actor, worker_id, trace_id, occurred_at, data)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)`,
			e.TaskID.String(), e.Seq, string(e.Type), str(string(e.From)), string(e.To), e.Attempt, e.Delivery, opt(e.NextRetryAt), str(string(e.Code)), str(e.Reason), backoff,
			e.Actor, str(e.WorkerID), e.TraceID, e.OccurredAt, str(string(e.Data)))
	}
	if err := c.SendBatch(context.WithoutCancel(t.Context()), b).Close(); err != nil {
		t.Fatalf("store %s: %v", s.task.ID, err)
	}
}
