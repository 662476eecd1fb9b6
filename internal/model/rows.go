package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/protocol"
)

// op is a Postgres transaction on one task: a call of protocol's real code.
type op uint8

const (
	opDispatch op = iota
	opRedispatch
	opLost
	opDead
	opCancel
	opTimedOut
	opClaimed // from here on: outcomes, in the order of kind
	opSucceeded
	opFailed
	opReleased
	opSkipped
)

// kind is the kind of an outcome; the first four are bits of a set.
type kind uint8

const (
	claimed kind = iota
	succeeded
	failed
	released
	skipped
)

var kindNames = [...]protocol.OutcomeKind{
	protocol.OutcomeClaimed, protocol.OutcomeSucceeded, protocol.OutcomeFailed, protocol.OutcomeReleased, protocol.OutcomeSkipped,
}

func (k kind) String() string { return string(kindNames[k]) }
func (k kind) op() op         { return opClaimed + op(k) }

// rowKey is what of a row later decisions depend on. Two rows with the same
// key are one: they differ in times, texts, seq and rejected_delivery only, and
// verify checks that none of these decides anything.
type rowKey struct {
	state         protocol.State
	attempt       int
	delivery      int64
	interruptions int
	due, retry    bool
	applied       protocol.OutcomeKind
	appliedOf     int64
}

func keyOf(t *protocol.Task) rowKey {
	return rowKey{
		t.State, t.Attempt, t.Delivery, t.Interruptions, !t.DueAt.IsZero(), !t.NextRetryAt.IsZero(), t.AppliedKind, t.AppliedDelivery,
	}
}

// row is one row of tasks: the real value, and one event log that leads to it.
type row struct {
	task protocol.Task
	log  []*protocol.Event
}

// change is what an operation does to a row.
type change struct {
	to uint16
	// moved tells whether the row changed at all.
	moved bool
	// bad is what the operation breaks, with the details in why.
	bad property
	why string
}

// rows are all rows that were met. The operations on them are calls of
// protocol, each made once for each row.
type rows struct {
	cfg     *Config
	all     []row
	index   map[rowKey]uint16
	changes map[changeKey]change
}

type changeKey struct {
	row uint16
	op  op
	d   uint8
}

var (
	modelSeed = []byte("seed of the model")
	modelNow  = time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC)
)

const actorModel = protocol.ActorAPI

// newRows begins with one task that was created due now and dispatched by the
// same transaction, as enqueueing does.
func newRows(cfg *Config) *rows {
	r := &rows{cfg: cfg, index: map[rowKey]uint16{}, changes: map[changeKey]change{}}
	t := protocol.Task{
		ID: protocol.ID{0x01, 0x9c, 15: 1}, State: protocol.StateQueued, Attempt: 1, Delivery: 1, Seq: 1,
		MaxRetries: cfg.Retries, Policy: protocol.DefaultRetryPolicy(), TraceID: "trace",
	}
	created := &protocol.Event{
		TaskID: t.ID, Seq: 1, Type: protocol.EventCreated, To: t.State, Attempt: 1, Delivery: 1,
		BackoffDelay: -1, Actor: protocol.ActorAPI, TraceID: t.TraceID, OccurredAt: modelNow,
	}
	r.intern(&t, []*protocol.Event{created})
	return r
}

func (r *rows) intern(t *protocol.Task, log []*protocol.Event) uint16 {
	k := keyOf(t)
	i, ok := r.index[k]
	if !ok {
		i = uint16(len(r.all))
		r.index[k] = i
		r.all = append(r.all, row{*t, log})
	}
	return i
}

// do makes an operation of delivery d on a row. Operations that are about the
// row as it is ignore d.
func (r *rows) do(i uint16, o op, d uint8) change {
	k := changeKey{i, o, d}
	c, ok := r.changes[k]
	if !ok {
		c = r.make(i, o, d)
		r.changes[k] = c
	}
	return c
}

func (r *rows) make(i uint16, o op, d uint8) (c change) {
	c.to = i
	defer func() {
		if e := recover(); e != nil { // protocol refuses to leave its table
			c.bad, c.why = outsideTable, fmt.Sprint(e)
		}
	}()
	before := &r.all[i]
	after, events, verdict := r.call(before.task, o, d)
	c.moved = keyOf(&after) != keyOf(&before.task)
	if c.bad, c.why = r.verify(before, &after, events, o, d, verdict); c.moved {
		c.to = r.intern(&after, slices.Concat(before.log, events))
	}
	return c
}

// call runs protocol's code on a copy of the task.
func (r *rows) call(t protocol.Task, o op, d uint8) (protocol.Task, []*protocol.Event, protocol.Verdict) {
	env := protocol.Env{Now: modelNow, Seed: modelSeed, MaxInterruptions: r.cfg.Interruptions}
	var events []*protocol.Event
	switch o {
	case opDispatch:
		events, _ = t.Dispatch(env)
	case opRedispatch:
		events, _ = t.Redispatch(env, "absent")
	case opLost:
		if t.Delivery != int64(d) { // the reclaimer's own check
			break
		}
		if r.cfg.Mutant == ReclaimAnyState {
			t.State = protocol.StateRunning
		}
		events, _ = t.Lost(env, protocol.ActorReclaimer, "lease lapsed", &protocol.ReclaimData{OriginalConsumer: "w", NewConsumer: "o", MessageID: "1-1"})
	case opDead:
		events, _ = t.RecordDeadLetter(env)
	case opCancel:
		events, _ = t.Cancel(env, actorModel, protocol.CodeCancelled, "no longer wanted")
	case opTimedOut:
		env.Now = env.Now.Add(time.Hour)
		events, _ = t.TimedOut(env, time.Minute, time.Minute)
	default:
		var v protocol.Verdict
		out := outcome(&t, o, d)
		if r.cfg.Mutant == FenceIgnored {
			out.Delivery = t.Delivery
		}
		events, v = t.ApplyOutcome(out, env)
		return t, events, v
	}
	return t, events, protocol.Applied
}

func outcome(t *protocol.Task, o op, d uint8) *protocol.Outcome {
	out := &protocol.Outcome{
		ID: t.ID, Delivery: int64(d), Kind: kindNames[o-opClaimed], WorkerID: "w", MessageID: "1-1",
		StartedAt: modelNow, FinishedAt: modelNow, Delay: -1,
	}
	switch o {
	case opFailed:
		out.Code, out.Error, out.Retryable = protocol.CodeExecutionFailed, "boom", true
	case opSkipped:
		out.StartedAt, out.FinishedAt = time.Time{}, time.Time{}
	}
	return out
}

// live tells whether a delivery of the row may be under way.
func live(t *protocol.Task) bool {
	return t.DueAt.IsZero() && (t.State == protocol.StateQueued || t.State == protocol.StateRetrying || t.State == protocol.StateRunning)
}

// verify checks what one operation did to a row against the contract. By
// induction over the operations it holds for every log and row.
func (r *rows) verify(before *row, after *protocol.Task, events []*protocol.Event, o op, d uint8, v protocol.Verdict) (property, string) {
	b := &before.task
	if b.State.Terminal() && after.State != b.State {
		return secondTerminal, fmt.Sprintf("%s becomes %s", b.State, after.State)
	}
	if err := fold(before, after, events); err != nil {
		return logDiffers, err.Error()
	}
	if (after.State == protocol.StateRetrying) == after.NextRetryAt.IsZero() {
		return logDiffers, fmt.Sprintf("next_retry_at of a row in state %s", after.State)
	}
	if after.Attempt > 1+after.MaxRetries {
		return logDiffers, fmt.Sprintf("attempt %d of at most %d", after.Attempt, 1+after.MaxRetries)
	}
	if !after.DueAt.IsZero() && b.DueAt.IsZero() && after.Delivery <= b.Delivery {
		return dispatchedTwice, fmt.Sprintf("delivery %d becomes due again", after.Delivery)
	}
	if o < opClaimed {
		return "", ""
	}
	current := int64(d) == b.Delivery && live(b)
	repeat := int64(d) == b.AppliedDelivery && (o == opClaimed || kindNames[o-opClaimed] == b.AppliedKind)
	switch {
	case repeat && v != protocol.Repeated:
		return repeatCounts, fmt.Sprintf("%s of delivery %d is %s", kindNames[o-opClaimed], d, v)
	case v == protocol.Applied && !current:
		return staleAccepted, fmt.Sprintf("%s of delivery %d, row has %d and is %s", kindNames[o-opClaimed], d, b.Delivery, b.State)
	case v == protocol.Rejected && current:
		return currentRefused, fmt.Sprintf("%s of delivery %d in state %s", kindNames[o-opClaimed], d, b.State)
	case v != protocol.Applied && keyOf(after) != keyOf(b):
		return staleAccepted, "an outcome that is not applied changes the row"
	}
	return "", ""
}

// fold adds the events to what the row before implies, and replays the whole
// log; both must give the row after.
func fold(before *row, after *protocol.Task, events []*protocol.Event) error {
	b := &before.task
	f := protocol.Folded{State: b.State, Attempt: b.Attempt, Delivery: b.Delivery, Interruptions: b.Interruptions, Seq: b.Seq}
	if b.State.Terminal() {
		f.Terminals = 1
	}
	for _, e := range events {
		if err := f.Add(e); err != nil {
			return err
		}
	}
	if f.State != after.State || f.Attempt != after.Attempt || f.Delivery != after.Delivery || f.Interruptions != after.Interruptions || f.Seq != after.Seq {
		return fmt.Errorf("events lead to %+v, the row is %s attempt %d delivery %d interruptions %d seq %d",
			f, after.State, after.Attempt, after.Delivery, after.Interruptions, after.Seq)
	}
	if f.Terminals > 1 {
		return fmt.Errorf("%d terminal events", f.Terminals)
	}
	replay, err := protocol.ReplayLog(modelSeed, slices.Concat(before.log, events))
	if err != nil {
		return err
	}
	if len(replay.Differences) > 0 {
		return fmt.Errorf("replay: %s", replay.Differences[0])
	}
	t := replay.Task()
	t.DueAt = after.DueAt // not in the log
	if keyOf(&t) != keyOf(after) || t.Seq != after.Seq || t.RejectedDelivery != after.RejectedDelivery || t.Code != after.Code || t.DLQID != after.DLQID {
		return fmt.Errorf("replay leads to %+v, the row is %+v", t, after)
	}
	return nil
}
