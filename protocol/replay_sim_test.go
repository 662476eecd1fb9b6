package protocol

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// sim runs a script against one task through the real decisions, with a clock
// and a seed of its own, and keeps the events as the log would.
type sim struct {
	t      testingT
	task   *Task
	events []*Event
	env    Env
	last   *Outcome
	// waits are the delays that the live task was given, in order.
	waits []time.Duration
}

// step is one transaction of a script.
type step func(*sim)

func newSim(t testingT, id ID, seed string, sc *scenario) *sim {
	s := &sim{t: t, env: Env{Now: epoch, Seed: []byte(seed), MaxInterruptions: 3}}
	s.task = &Task{ID: id, Attempt: 1, Delivery: 1, MaxRetries: sc.maxRetries, Policy: sc.policy, TraceID: "trace-1"}
	if sc.policy.Strategy == "" {
		s.task.Policy = DefaultRetryPolicy()
	}
	born := sc.born
	if born == StateNone {
		born = StateQueued
	}
	s.events = []*Event{s.task.move(born, EventCreated, s.env, ActorAPI)}
	return s
}

// run makes one step. The clock goes on by an odd number of microseconds, and
// to the time of the retry if one is waited for.
func (s *sim) run(f step) {
	s.t.Helper()
	s.env.Now = s.env.Now.Add(250*time.Millisecond + 7*time.Microsecond)
	if s.task.State == StateRetrying && s.env.Now.Before(s.task.NextRetryAt) {
		s.env.Now = s.task.NextRetryAt.Add(1003 * time.Microsecond)
	}
	f(s)
}

// restart forgets the task and makes it anew from its log; only what is not in
// the log comes from its row.
func (s *sim) restart() {
	s.t.Helper()
	r, err := ReplayLog(s.env.Seed, s.events)
	if err != nil {
		s.t.Fatalf("restart after event %d: %v", len(s.events), err)
	}
	t := r.Task()
	t.MaxRetries, t.Policy, t.UpdatedAt = s.task.MaxRetries, s.task.Policy, s.task.UpdatedAt
	s.task = &t
}

func (s *sim) keep(events []*Event) {
	s.events = append(s.events, events...)
	for _, e := range events {
		if e.Type == EventRetryScheduled {
			s.waits = append(s.waits, s.task.NextRetryAt.Sub(s.env.Now))
		}
	}
}

func (s *sim) apply(o *Outcome, want Verdict) {
	s.t.Helper()
	events, got := s.task.ApplyOutcome(o, s.env)
	if got != want {
		s.t.Fatalf("outcome %s of delivery %d in %s is %s, want %s", o.Kind, o.Delivery, s.task.State, got, want)
	}
	s.last = o
	s.keep(events)
}

func (s *sim) done(events []*Event, ok bool) {
	s.t.Helper()
	if !ok {
		s.t.Fatalf("refused in state %s", s.task.State)
	}
	s.keep(events)
}

// outcome makes the step of an outcome of the current delivery.
func outcome(kind OutcomeKind, change func(*Outcome)) step {
	return func(s *sim) {
		s.t.Helper()
		o := &Outcome{
			ID: s.task.ID, Delivery: s.task.Delivery, Kind: kind, WorkerID: fmt.Sprintf("worker-%d", s.task.Delivery),
			MessageID: "1-0", StartedAt: s.env.Now.Add(-time.Second), FinishedAt: s.env.Now, Delay: -1,
		}
		if change != nil {
			change(o)
		}
		s.apply(o, Applied)
	}
}

func failWith(code Code, retryable bool) step {
	return outcome(OutcomeFailed, func(o *Outcome) { o.Code, o.Error, o.Retryable = code, "boom", retryable })
}

func retryAfter(d time.Duration) step {
	return outcome(OutcomeFailed, func(o *Outcome) {
		o.Code, o.Error, o.Retryable, o.Delay = CodeExecutionFailed, "busy", true, d
	})
}

func snooze(d time.Duration) step {
	return outcome(OutcomeSnoozed, func(o *Outcome) { o.Delay, o.Error = d, "not yet" })
}

func handBack(code Code) step {
	return outcome(OutcomeReleased, func(o *Outcome) { o.Code, o.StartedAt, o.FinishedAt = code, time.Time{}, time.Time{} })
}

func policy(p RetryPolicy) step { return func(s *sim) { s.task.Policy = p } }

// side appends an event that changes no state.
func side(typ EventType, actor string) step {
	return func(s *sim) { s.keep([]*Event{s.task.event(s.task.State, typ, s.env, actor)}) }
}

// The steps of scripts.
var (
	claim    = outcome(OutcomeClaimed, nil)
	succeed  = outcome(OutcomeSucceeded, func(o *Outcome) { o.Result = []byte(`{"ok":true}`) })
	fail     = failWith(CodeExecutionFailed, true)
	timeOut  = failWith(CodeTimeout, true)
	ruin     = failWith(CodeInputInvalid, false)
	release  = outcome(OutcomeReleased, nil)
	askFirst = outcome(OutcomeApprovalNeeded, nil)

	dispatch   step = func(s *sim) { s.t.Helper(); s.done(s.task.Dispatch(s.env)) }
	redispatch step = func(s *sim) { s.t.Helper(); s.done(s.task.Redispatch(s.env, "not in the stream")) }
	bury       step = func(s *sim) { s.t.Helper(); s.done(s.task.RecordDeadLetter(s.env)) }
	lose       step = func(s *sim) { s.t.Helper(); s.done(s.task.Lost(s.env, ActorReconciler, "gone", nil)) }
	reclaim    step = func(s *sim) {
		s.t.Helper()
		s.done(s.task.Lost(s.env, ActorReclaimer, "idle", &ReclaimData{OriginalConsumer: "worker-x", NewConsumer: "orchestrator-1", MessageID: "1-0", IdleMS: 300_000}))
	}
	overdue step = func(s *sim) { s.t.Helper(); s.done(s.task.TimedOut(s.env, 0, 0)) }

	// repeat delivers the last outcome again, late one that was overtaken.
	repeat step = func(s *sim) { s.t.Helper(); s.apply(s.last, Repeated) }
	late   step = func(s *sim) {
		s.t.Helper()
		o := *s.last
		o.Kind, o.Delivery = OutcomeSucceeded, s.task.Delivery-1
		s.apply(&o, Rejected)
	}
	approve step = func(s *sim) { s.keep([]*Event{s.task.move(StateQueued, EventApprovalApproved, s.env, ActorAPI)}) }
	cancel  step = func(s *sim) {
		s.t.Helper()
		events, ok := s.task.Cancel(s.env, ActorAPI, CodeCancelled, "no longer wanted")
		if !ok {
			s.t.Fatalf("not cancelled in %s", s.task.State)
		}
		s.keep(events)
	}
)

// told writes executions as the scenarios do: attempt/delivery ("~" if it was
// never claimed), end, code, and the delay with its source.
func told(executions []Execution) []string {
	var out []string
	for _, x := range executions {
		b := fmt.Sprintf("%d/%d", x.Attempt, x.Delivery)
		if x.ClaimedAt.IsZero() {
			b += "~"
		}
		b += " " + string(x.End)
		if x.Code != "" {
			b += " " + strings.TrimPrefix(string(x.Code), "TASK_")
		}
		if x.Retry != nil {
			b += fmt.Sprintf(" %d %s", x.Retry.Delay.Milliseconds(), x.Retry.DelaySource)
		}
		out = append(out, b)
	}
	return out
}

// impliedBy compares the live task with the one that its log implies.
func impliedBy(r *Replay, live *Task) error {
	got, want := r.Task(), *live
	want.MaxRetries, want.Policy, want.DueAt, want.Result = 0, RetryPolicy{}, time.Time{}, nil
	want.CreatedAt, want.UpdatedAt = time.Time{}, time.Time{}
	if want.AppliedKind == OutcomeSkipped { // both hand back
		want.AppliedKind = OutcomeReleased
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("the log implies\n%+v, the task is\n%+v", got, want)
	}
	return nil
}

// row is an event as event_log has it.
type row struct {
	TaskID    string          `json:"task_id"`
	Seq       int             `json:"seq"`
	Type      EventType       `json:"type"`
	From      State           `json:"previous_status,omitempty"`
	To        State           `json:"status"`
	Attempt   int             `json:"attempt"`
	Delivery  int64           `json:"delivery"`
	Next      *time.Time      `json:"next_retry_at,omitempty"`
	Code      Code            `json:"error_code,omitempty"`
	Reason    string          `json:"reason,omitempty"`
	BackoffMS *int64          `json:"backoff_delay_ms,omitempty"`
	Actor     string          `json:"actor"`
	WorkerID  string          `json:"worker_id,omitempty"`
	MessageID string          `json:"message_id,omitempty"`
	TraceID   string          `json:"trace_id"`
	Data      json.RawMessage `json:"data,omitempty"`
	At        time.Time       `json:"occurred_at"`
}

// stored writes events as rows, with times in microseconds as Postgres has them.
func stored(events []*Event) []row {
	var out []row
	for _, e := range events {
		r := row{
			TaskID: e.TaskID.String(), Seq: e.Seq, Type: e.Type, From: e.From, To: e.To, Attempt: e.Attempt, Delivery: e.Delivery,
			Code: e.Code, Reason: e.Reason, Actor: e.Actor, WorkerID: e.WorkerID, MessageID: e.MessageID, TraceID: e.TraceID,
			Data: e.Data, At: e.OccurredAt.Truncate(time.Microsecond),
		}
		if !e.NextRetryAt.IsZero() {
			next := e.NextRetryAt.Truncate(time.Microsecond)
			r.Next = &next
		}
		if e.BackoffDelay >= 0 {
			ms := e.BackoffDelay.Milliseconds()
			r.BackoffMS = &ms
		}
		out = append(out, r)
	}
	return out
}

func (r *row) event() *Event {
	id, _ := ParseID(r.TaskID) // a bad one is the nil UUID
	e := &Event{
		TaskID: id, Seq: r.Seq, Type: r.Type, From: r.From, To: r.To, Attempt: r.Attempt, Delivery: r.Delivery, Code: r.Code,
		Reason: r.Reason, BackoffDelay: -1, Actor: r.Actor, WorkerID: r.WorkerID, MessageID: r.MessageID, TraceID: r.TraceID,
		OccurredAt: r.At, Data: r.Data,
	}
	if r.Next != nil {
		e.NextRetryAt = *r.Next
	}
	if r.BackoffMS != nil {
		e.BackoffDelay = time.Duration(*r.BackoffMS) * time.Millisecond
	}
	return e
}

// logText is a log's bytes, for comparing logs.
func logText(t testingT, events []*Event) string {
	t.Helper()
	b, err := json.MarshalIndent(stored(events), "", " ")
	if err != nil {
		t.Fatalf("log has no JSON: %v", err)
	}
	return string(b)
}

// readLog reads what logText wrote.
func readLog(text string) ([]*Event, error) {
	var rows []row
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		return nil, err
	}
	events := make([]*Event, len(rows))
	for i := range rows {
		events[i] = rows[i].event()
	}
	return events, nil
}
