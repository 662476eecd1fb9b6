package protocol

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// machine drives one task through random decisions, and keeps what the
// contract says about it apart from the task itself.
type machine struct {
	t      *rapid.T
	task   *Task
	events []*Event
	env    Env
	// sent are all outcomes so far: they may be delivered again at any time.
	sent []*Outcome
	// ended is the last outcome that ended an execution.
	endedKind     OutcomeKind
	endedDelivery int64
	lastDelivery  int64
}

func newMachine(t *rapid.T) *machine {
	state := rapid.SampledFrom([]State{StatePending, StateQueued}).Draw(t, "born")
	task, events := born(state, rapid.IntRange(0, 4).Draw(t, "max_retries"))
	if rapid.Bool().Draw(t, "other policy") {
		task.Policy = genPolicy().Draw(t, "policy")
	}
	env := testEnv()
	env.MaxInterruptions = rapid.IntRange(0, 3).Draw(t, "max_interruptions")
	env.MaxUnknown = rapid.SampledFrom([]time.Duration{0, time.Nanosecond, 5 * time.Second}).Draw(t, "max_unknown")
	return &machine{t: t, task: task, events: events, env: env, lastDelivery: 1}
}

func (m *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":            m.check,
		"outcome":     m.outcome,
		"outcome now": m.currentOutcome,
		"twice":       m.twice,
		"repeat":      m.repeat,
		"dispatch":    m.dispatch,
		"redispatch":  m.redispatch,
		"lost":        m.lost,
		"timeout":     m.timeout,
		"dead letter": m.deadLetter,
		"ask":         m.ask,
		"approve":     m.approve,
		"reject":      m.reject,
		"person":      m.person,
	}
}

func genOutcome(id ID, delivery int64, kinds []OutcomeKind) *rapid.Generator[*Outcome] {
	return rapid.Custom(func(t *rapid.T) *Outcome {
		o := &Outcome{
			ID: id, Delivery: delivery, Kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
			WorkerID: rapid.SampledFrom([]string{"worker-1", "worker-2"}).Draw(t, "worker"), MessageID: "1-0",
			Retryable: rapid.Bool().Draw(t, "retryable"), Error: rapid.SampledFrom([]string{"", "boom"}).Draw(t, "error"),
			Code:  rapid.SampledFrom([]Code{"", CodeExecutionFailed, CodeTimeout, CodeUnknownType, CodeWorkerLost, CodeRetryExhausted, "MINE"}).Draw(t, "code"),
			Delay: rapid.SampledFrom([]time.Duration{-1, -1, 0, time.Second, maxDelayMS * time.Millisecond}).Draw(t, "delay"),
		}
		if rapid.Bool().Draw(t, "started") {
			o.StartedAt = epoch.Add(time.Duration(rapid.IntRange(-1000, 1000).Draw(t, "skew")) * time.Second)
			o.FinishedAt = o.StartedAt.Add(time.Second)
		}
		if o.Kind == OutcomeSucceeded {
			o.Result = []byte(`{"ok":true}`)
		}
		return o
	})
}

func (m *machine) outcome(t *rapid.T) {
	delivery := rapid.Int64Range(1, m.task.Delivery+2).Draw(t, "delivery")
	m.apply(t, genOutcome(m.task.ID, delivery, OutcomeKinds()).Draw(t, "outcome"))
}

// Most interesting things need an outcome of the current delivery.
func (m *machine) currentOutcome(t *rapid.T) {
	kinds := []OutcomeKind{OutcomeClaimed, OutcomeFailed, OutcomeFailed, OutcomeFailed, OutcomeSnoozed, OutcomeReleased, OutcomeSkipped, OutcomeSucceeded, OutcomeApprovalNeeded}
	m.apply(t, genOutcome(m.task.ID, m.task.Delivery, kinds).Draw(t, "outcome"))
}

// twice applies an outcome twice in a row: whatever the first did, the second
// changes nothing, and is Repeated if the first was applied.
func (m *machine) twice(t *rapid.T) {
	o := genOutcome(m.task.ID, m.task.Delivery, OutcomeKinds()).Draw(t, "outcome")
	first := m.apply(t, o)
	second := m.apply(t, o)
	if second == Applied || (first == Applied) != (second == Repeated) && first != Repeated {
		t.Fatalf("%s, the same outcome twice: %s, then %s", o.Kind, first, second)
	}
}

func (m *machine) repeat(t *rapid.T) {
	if len(m.sent) == 0 {
		t.Skip("nothing was sent")
	}
	m.apply(t, rapid.SampledFrom(m.sent).Draw(t, "old outcome"))
}

// verdict says, from the contract, what must become of the outcome.
func (m *machine) verdict(o *Outcome) Verdict {
	held := m.task.State == "queued" || m.task.State == "retrying" || m.task.State == "running"
	current := o.Delivery == m.task.Delivery
	ended := o.Delivery == m.endedDelivery
	switch {
	case ended && (o.Kind == m.endedKind || o.Kind == "claimed"):
		return Repeated // applied before, or a claim after its outcome
	case current && o.Kind == "claimed" && m.task.State == "running":
		return Repeated
	case o.Kind == "skipped" && m.task.State == "cancelled" && !current:
		return Repeated
	case current && held:
		return Applied
	}
	return Rejected
}

func (m *machine) apply(t *rapid.T, o *Outcome) Verdict {
	m.sent = append(m.sent, o)
	want := m.verdict(o)
	before, outcome := *m.task, *o
	events, got := m.task.ApplyOutcome(o, m.env)
	if got != want {
		t.Fatalf("outcome %s of delivery %d in %s (delivery %d) is %s, want %s", o.Kind, o.Delivery, before.State, before.Delivery, got, want)
	}
	if !reflect.DeepEqual(*o, outcome) {
		t.Fatal("the outcome was changed")
	}
	m.events = append(m.events, events...)
	if got == Applied {
		m.checkApplied(t, o, before, events)
		if o.Kind != "claimed" {
			m.endedKind, m.endedDelivery = o.Kind, o.Delivery
		}
		return got
	}
	if got == Repeated && len(events) > 0 || len(events) > 1 {
		t.Fatalf("verdict %s comes with %d events", got, len(events))
	}
	for _, e := range events {
		if e.Type != EventTransitionRejected || e.Code != CodeInvalidTransition || e.From != e.To || e.WorkerID != o.WorkerID {
			t.Fatalf("a rejection's event is %+v", e)
		}
	}
	after := *m.task
	if got == Rejected {
		after.Seq, after.RejectedDelivery = before.Seq, before.RejectedDelivery
	}
	if !reflect.DeepEqual(after, before) {
		t.Fatalf("verdict %s, but the task changed:\n%+v\n%+v", got, before, after)
	}
	return got
}

// checkApplied checks which way an applied outcome moved the task.
func (m *machine) checkApplied(t *rapid.T, o *Outcome, before Task, events []*Event) {
	var want []State
	handedBack := (o.Kind == "released" || o.Kind == "skipped") && o.StartedAt.IsZero()
	if before.State != "running" && !handedBack {
		want = append(want, "running")
	}
	switch o.Kind {
	case "claimed":
	case "succeeded":
		want = append(want, "succeeded")
	case "failed":
		if o.Retryable && before.Attempt <= before.MaxRetries {
			want = append(want, "retrying")
		} else {
			want = append(want, "dlq_pending")
		}
	case "snoozed":
		want = append(want, "retrying")
	case "approval_needed":
		want = append(want, "waiting_approval")
	default:
		want = append(want, "interrupted")
		// A type that no worker has known for long enough ends in a dead letter. A claim
		// starts that time anew, and this outcome may begin it.
		if since := before.UnknownSince; o.Code == "TASK_UNKNOWN_TYPE" && m.env.MaxUnknown > 0 && handedBack && before.State != "running" &&
			!since.IsZero() && m.env.Now.Sub(since) >= m.env.MaxUnknown {
			want = append(want, "dlq_pending")
		}
	}
	if got := statesOf(events); !slices.Equal(got, want) {
		t.Fatalf("outcome %s in %s: went through %s, want %s", o.Kind, before.State, got, want)
	}
	for _, e := range events {
		if e.WorkerID != o.WorkerID || e.MessageID != o.MessageID || e.Actor != ActorWorker {
			t.Fatalf("event %s does not say whose outcome it was: %+v", e.Type, e)
		}
	}
	if o.Kind != "failed" && m.task.Attempt != before.Attempt || m.task.Interruptions != before.Interruptions {
		t.Fatalf("outcome %s spent a retry or an interruption", o.Kind)
	}
}

func (m *machine) dispatch(t *rapid.T) {
	before := *m.task
	events, ok := m.task.Dispatch(m.env)
	m.decided(t, before, events, ok, "pending", "interrupted", "queued", "retrying")
	if ok && (!m.task.DueAt.IsZero() || m.task.Delivery != before.Delivery) {
		t.Fatalf("dispatched: due %s, delivery %d → %d", m.task.DueAt, before.Delivery, m.task.Delivery)
	}
}

func (m *machine) redispatch(t *rapid.T) {
	before := *m.task
	events, ok := m.task.Redispatch(m.env, "not in the stream")
	m.decided(t, before, events, ok, "queued", "retrying", "running")
	want, next := before.State, before.NextRetryAt
	if want == StateRunning {
		want = StateInterrupted
	}
	if ok && (m.task.State != want || m.task.Delivery != before.Delivery+1 || !m.task.NextRetryAt.Equal(next) || m.task.Interruptions != before.Interruptions || m.task.DueAt != m.env.Now) {
		t.Fatalf("redispatched: %+v → %+v", before, *m.task)
	}
}

func (m *machine) lost(t *rapid.T) {
	before := *m.task
	var reclaim *ReclaimData
	if rapid.Bool().Draw(t, "reclaimed") {
		reclaim = &ReclaimData{OriginalConsumer: "worker-1", NewConsumer: "reclaimer", MessageID: "1-0", IdleMS: 300_000}
	}
	events, ok := m.task.Lost(m.env, ActorReclaimer, "idle for 300 s", reclaim)
	m.decided(t, before, events, ok, "queued", "retrying", "running")
	if !ok {
		return
	}
	want := StateInterrupted
	if before.Interruptions >= m.env.MaxInterruptions {
		want = StateDLQPending
	}
	if m.task.State != want || m.task.Interruptions != before.Interruptions+1 || m.task.Attempt != before.Attempt {
		t.Fatalf("lost: %+v → %+v", before, *m.task)
	}
}

func (m *machine) deadLetter(t *rapid.T) {
	before := *m.task
	events, ok := m.task.RecordDeadLetter(m.env)
	m.decided(t, before, events, ok, "dlq_pending", "dlq_recorded")
	if ok && m.task.State != StateFailed {
		t.Fatalf("dead letter recorded, but the task is %s", m.task.State)
	}
}

// decided checks that a decision was possible exactly in the given states, and
// changed nothing elsewhere.
func (m *machine) decided(t *rapid.T, before Task, events []*Event, ok bool, states ...State) {
	m.events = append(m.events, events...)
	if want := slices.Contains(states, before.State); ok != want {
		t.Fatalf("in %s: possible is %v, want %v", before.State, ok, want)
	}
	if !ok && (len(events) > 0 || !reflect.DeepEqual(before, *m.task)) {
		t.Fatalf("refused in %s, but something changed: %+v", before.State, *m.task)
	}
}

// ask has a rule stop the task.
func (m *machine) ask(t *rapid.T) {
	if m.task.State != StateWaitingApproval && rapid.IntRange(0, 3).Draw(t, "ask") > 0 {
		t.Skip("not asked")
	}
	before := *m.task
	e, ok := m.task.RequestApproval(m.env, ActorGuard, "rule \"large\"", ApprovalRequestedData{Required: 2})
	m.decided(t, before, present(e), ok, "pending", "waiting_approval")
	if ok && (m.task.State != StateWaitingApproval || m.task.Delivery != before.Delivery) {
		t.Fatalf("asked: %+v → %+v", before, *m.task)
	}
}

// approve records the word of a person, who may be the last that is needed.
func (m *machine) approve(t *rapid.T) {
	start, open := m.task.StartAt, m.task.OpenDependencies
	defer func() { m.task.StartAt, m.task.OpenDependencies = start, open }()
	m.task.StartAt = rapid.SampledFrom([]time.Time{{}, m.env.Now.Add(-time.Second), m.env.Now, m.env.Now.Add(time.Second)}).Draw(t, "starts")
	m.task.OpenDependencies = rapid.IntRange(0, 1).Draw(t, "open dependencies")
	release := rapid.Bool().Draw(t, "release")
	before := *m.task
	e, ok := m.task.Approve(m.env, ActorAPI, "checked", release, ApprovalDecidedData{Principal: "bob", Required: 2})
	m.decided(t, before, present(e), ok, "waiting_approval")
	want, due := StateQueued, m.env.Now
	switch {
	case !ok:
		return
	case !release:
		want, due = StateWaitingApproval, time.Time{}
	case before.OpenDependencies > 0:
		want, due = StatePending, time.Time{}
	case before.StartAt.After(m.env.Now):
		want, due = StatePending, before.StartAt
	}
	if m.task.State != want || !m.task.DueAt.Equal(due) || m.task.Delivery != before.Delivery || m.task.Attempt != before.Attempt {
		t.Fatalf("approved (released %t), want it %s and due %s: %+v → %+v", release, want, due, before, *m.task)
	}
}

func (m *machine) reject(t *rapid.T) {
	if m.task.State == StateWaitingApproval && rapid.IntRange(0, 9).Draw(t, "reject") > 0 {
		t.Skip("not rejected")
	}
	before := *m.task
	e, ok := m.task.RejectApproval(m.env, ActorAPI, "too much", ApprovalDecidedData{Principal: "bob", Required: 2})
	m.decided(t, before, present(e), ok, "waiting_approval")
	if ok && (m.task.State != StateCancelled || m.task.Code != "TASK_APPROVAL_REJECTED" || m.task.Delivery != before.Delivery+1 || !m.task.DueAt.IsZero()) {
		t.Fatalf("rejected: %+v → %+v", before, *m.task)
	}
}

// present is the event, if there is one.
func present(e *Event) []*Event {
	if e == nil {
		return nil
	}
	return []*Event{e}
}

// person cancels, rarely: a decision that the pipeline does not make.
func (m *machine) person(t *rapid.T) {
	if !Allowed(m.task.State, StateCancelled) || rapid.IntRange(0, 9).Draw(t, "cancel") > 0 {
		t.Skip("no cancel")
	}
	if rapid.Bool().Draw(t, "expired") {
		m.task.ExpiresAt = m.env.Now.Add(-time.Duration(rapid.IntRange(-2, 2).Draw(t, "ago")) * time.Second)
		m.expire(t)
		return
	}
	events, ok := m.task.Cancel(m.env, ActorAPI, CodeCancelled, "no longer wanted")
	if !ok {
		t.Fatalf("not cancelled in %s", m.task.State)
	}
	m.events = append(m.events, events...)
}

// expire ends a task that waits, from its time on, and where it was dispatched
// from the grace after it on.
func (m *machine) expire(t *rapid.T) {
	const grace = time.Second
	before := *m.task
	due := !m.env.Now.Before(m.task.ExpiresAt)
	if m.task.Dispatched() {
		due = !m.env.Now.Before(m.task.ExpiresAt.Add(grace))
	}
	events, ok := m.task.Expire(m.env, grace)
	if want := due && before.State != StateRunning; ok != want {
		t.Fatalf("expired %t in %s, want %t", ok, before.State, want)
	}
	if !ok && (len(events) > 0 || !reflect.DeepEqual(before, *m.task)) {
		t.Fatalf("not expired, but something changed: %+v", *m.task)
	}
	m.events = append(m.events, events...)
	m.task.ExpiresAt = time.Time{}
}

// check is what must hold after every step.
func (m *machine) check(t *rapid.T) {
	m.env.Now = m.env.Now.Add(time.Second)
	if err := foldsTo(m.events, m.task); err != nil {
		t.Fatal(err)
	}
	if (m.task.State == StateRetrying) == m.task.NextRetryAt.IsZero() {
		t.Fatalf("next_retry_at is %s in %s", m.task.NextRetryAt, m.task.State)
	}
	if m.task.State.Terminal() == m.task.FinishedAt.IsZero() {
		t.Fatalf("finished_at is %s in %s", m.task.FinishedAt, m.task.State)
	}
	waits := slices.Contains([]State{StatePending, StateQueued, StateRetrying, StateInterrupted}, m.task.State)
	if !waits && !m.task.DueAt.IsZero() {
		t.Fatalf("a task that is %s is due at %s", m.task.State, m.task.DueAt)
	}
	if m.task.Delivery < m.lastDelivery || m.task.RetryCount() > m.task.MaxRetries || m.task.ID != testID(1) {
		t.Fatalf("delivery was %d, max_retries %d: %+v", m.lastDelivery, m.task.MaxRetries, *m.task)
	}
	m.lastDelivery = m.task.Delivery
	m.checkEvents(t)
}

func (m *machine) checkEvents(t *rapid.T) {
	rejected := map[int64]bool{}
	terminals, retries := 0, 0
	states := statesOf(m.events)
	var previous *Event
	for i, e := range m.events {
		if e.Seq != i+1 || e.TaskID != m.task.ID || e.OccurredAt.IsZero() || e.Actor == "" {
			t.Fatalf("event %d is %+v", i+1, e)
		}
		if len(e.Data) > 0 && !json.Valid(e.Data) {
			t.Fatalf("event %d has data %s", e.Seq, e.Data)
		}
		if (e.To == StateRetrying) == e.NextRetryAt.IsZero() || (e.Type == EventRetryScheduled) != (e.BackoffDelay >= 0) {
			t.Fatalf("event %d: next_retry_at %s, delay %s, in %s", e.Seq, e.NextRetryAt, e.BackoffDelay, e.To)
		}
		if previous != nil && (e.Delivery < previous.Delivery || e.Attempt < previous.Attempt) {
			t.Fatalf("event %d: delivery or attempt fell", e.Seq)
		}
		if previous != nil && previous.To.Terminal() && e.Type != EventTransitionRejected {
			t.Fatalf("event %s after a terminal one", e.Type)
		}
		if e.From != e.To && e.To.Terminal() {
			terminals++
		}
		if e.Type == EventRetryScheduled && e.Code != "" {
			retries++
		}
		if e.Type == EventTransitionRejected {
			var d RejectedData
			if err := json.Unmarshal(e.Data, &d); err != nil || rejected[d.Delivery] {
				t.Fatalf("delivery %d is recorded as rejected twice (or %v)", d.Delivery, err)
			}
			rejected[d.Delivery] = true
		}
		previous = e
	}
	if terminals > 1 || retries != m.task.RetryCount() {
		t.Fatalf("%d terminal events, %d retries scheduled, retry_count %d", terminals, retries, m.task.RetryCount())
	}
	if i := slices.Index(states, StateFailed); i >= 0 && (i < 2 || states[i-1] != StateDLQRecorded || states[i-2] != StateDLQPending) {
		t.Fatalf("failed without its dead letter: %s", states)
	}
	if slices.Contains(states, StateDLQPending) != (m.task.DLQID == DLQID(m.task.ID)) {
		t.Fatalf("dlq_id is %s after %s", m.task.DLQID, states)
	}
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(m.actions())
	})
}

// The actions above reach every state and every type of event that decisions
// make; else they would prove little.
func TestDecisionsReachEverything(t *testing.T) {
	t.Parallel()
	seen := map[State]bool{}
	types := map[EventType]bool{}
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(m.actions())
		for _, e := range m.events {
			seen[e.To], types[e.Type] = true, true
		}
	})
	if len(seen) != len(contractStates) {
		t.Errorf("reached only %v", slices.Collect(maps.Keys(seen)))
	}
	for _, typ := range []EventType{
		EventQueued, EventRedispatched, EventClaimed, EventSucceeded, EventRetryScheduled, EventInterrupted,
		EventReclaimed, EventDLQ, EventFailed, EventTransitionRejected, EventApprovalRequested,
	} {
		if !types[typ] {
			t.Errorf("no event %s", typ)
		}
	}
}
