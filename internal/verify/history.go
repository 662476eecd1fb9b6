package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

// subject is the task that a difference is about.
type subject struct {
	id   protocol.ID
	name string // the caller's own id; empty if there is none
}

func subjectOf(t *taskRow) subject { return subject{protocol.ID(t.ID), store.Deref(t.Name)} }

// of returns d as a difference about the task.
func (s subject) of(d Difference) Difference {
	d.TaskID, d.ID = store.TaskID(s.id, s.name), s.id.String()
	return d
}

// history checks one id's events as they come, and at the end what they imply.
type history struct {
	r      *run
	id     protocol.ID
	row    *taskRow // nil if no task has the id
	policy *protocol.RetryPolicy
	key    string // idempotency_key of every event
	replay protocol.Replay

	seq       int
	broken    bool // the log can't be folded any further
	attempt   int  // of the last event
	runs      int  // the highest attempt so far
	terminals int
	failures  int // errors that the dead letter must list
	requeued  int
	discarded int
}

func (r *run) newHistory(id protocol.ID, row *taskRow) *history {
	h := &history{r: r, id: id, row: row, replay: protocol.Replay{Seed: r.seed}}
	if row == nil {
		return h
	}
	if h.key = store.Deref(row.IdempotencyKey); h.key == "" {
		h.key = store.Deref(row.Name)
	}
	if len(row.RetryPolicy) > 0 {
		var p protocol.RetryPolicy
		if err := json.Unmarshal(row.RetryPolicy, &p); err != nil {
			h.differ(CheckRow, 0, "retry_policy", "a retry policy", err.Error())
		} else {
			h.policy = &p
		}
	}
	return h
}

func (h *history) differ(check Check, seq int, field, expected, found string) {
	d := Difference{Check: check, Seq: seq, Field: field, Expected: expected, Found: found}
	if h.row != nil {
		d = subjectOf(h.row).of(d)
	} else {
		d.Object = "id " + h.id.String()
	}
	h.r.report(d)
}

// add checks the next event.
func (h *history) add(row *event) {
	h.r.sum.Events++
	gap := int(row.Seq) != h.seq+1
	if gap {
		h.differ(CheckSeq, int(row.Seq), "seq", strconv.Itoa(h.seq+1), strconv.Itoa(int(row.Seq)))
	}
	first := h.seq == 0
	h.seq = int(row.Seq)
	if h.row == nil {
		h.addToNone(row, first)
		return
	}
	e := eventOf(row)
	if key := store.Deref(row.IdempotencyKey); key != h.key {
		h.differ(CheckEvent, e.Seq, "idempotency_key", text(h.key), text(key))
	}
	h.countRuns(e)
	h.count(e)
	if err := h.replay.Add(e); err != nil && !h.broken {
		h.broken = true
		if fe, ok := errors.AsType[*protocol.FoldError](err); ok && !gap {
			h.differ(CheckFold, e.Seq, string(e.Type), "an event that can follow the ones before", fe.Reason)
		}
	}
	for _, d := range h.replay.Differences {
		h.differ(checkOf(e.Type, d.Field), d.Seq, d.Field, d.Recomputed, d.Recorded)
	}
	h.retries(e)
	// What is kept of a log must not grow with it.
	h.replay.Differences, h.replay.Executions = h.replay.Differences[:0], h.replay.Executions[:0]
}

// addToNone checks an event that is about no task: of an alert, of a dead letter
// that is about none, or of nothing.
func (h *history) addToNone(row *event, first bool) {
	switch {
	case h.id.IsTask():
		if first {
			h.differ(CheckOrphan, h.seq, "task", "a task", "none that "+row.Type+" is about")
		}
	case store.Deref(row.PreviousStatus) != "" || row.Status != "":
		h.differ(CheckEvent, h.seq, "status", none, text(row.Status))
	}
}

// checkOf names the check of a difference that a replay found in an event.
func checkOf(typ protocol.EventType, field string) Check {
	switch {
	case typ == protocol.EventRetryScheduled, field == "next_retry_at", field == "backoff_delay_ms":
		return CheckBackoff
	case typ == protocol.EventDLQ:
		return CheckDeadLetter
	}
	return CheckEvent
}

func (h *history) count(e *protocol.Event) {
	if e.From != e.To && e.To.Terminal() {
		h.terminals++
	}
	switch e.Type {
	case protocol.EventRetryScheduled:
		if e.Code != "" {
			h.failures++
		}
	case protocol.EventInterrupted:
		if e.Code == protocol.CodeWorkerLost {
			h.failures++
		}
	case protocol.EventDLQ:
		if e.To == protocol.StateDLQPending && e.Code != protocol.CodeWorkerLost { // its loss was counted
			h.failures++
		}
	case protocol.EventDLQRequeued:
		h.requeued++
	case protocol.EventDiscarded:
		h.discarded++
	}
}

// retries counts delays that were recomputed, and compares the policy of each
// with the task's own. A task without one follows the configuration.
func (h *history) retries(e *protocol.Event) {
	if e.Type != protocol.EventRetryScheduled {
		return
	}
	var d protocol.RetryData
	if json.Unmarshal(e.Data, &d) != nil || d.DelaySource != protocol.DelayFromPolicy || d.Policy == nil {
		return
	}
	h.r.sum.Retries++
	if h.policy == nil {
		return
	}
	if want, got := policyText(*h.policy), policyText(*d.Policy); want != got {
		h.differ(CheckBackoff, e.Seq, "policy", want, got)
	}
}

func policyText(p protocol.RetryPolicy) string {
	b, err := json.Marshal(p)
	if err != nil { // it has strings and numbers only
		panic(err)
	}
	return string(b)
}

// finish compares what the events imply with the row and with what belongs to
// it.
func (h *history) finish(dead *deadRow, requeues int) {
	if h.row == nil {
		return
	}
	if h.seq == 0 {
		h.differ(CheckFold, 0, "events", "at least "+string(protocol.EventCreated), none)
	}
	if int(h.row.EventSeq) != h.seq {
		h.differ(CheckSeq, 0, "event_seq", strconv.Itoa(h.seq), strconv.Itoa(int(h.row.EventSeq)))
	}
	want := 0
	if protocol.State(h.row.State).Terminal() {
		want = 1
	}
	if h.terminals != want {
		h.differ(CheckTerminal, 0, "terminal events", fmt.Sprintf("%d in state %s", want, h.row.State), strconv.Itoa(h.terminals))
	}
	if !h.broken && h.seq > 0 {
		h.compareRow()
	}
	h.checkRuns()
	h.checkDue()
	h.checkKeys()
	h.checkDependencies()
	h.checkDead(dead, requeues)
}

// compareRow compares the row with the task that the log implies.
func (h *history) compareRow() {
	t, row := h.replay.Task(), h.row
	str := func(field, want, got string) {
		if want != got {
			h.differ(CheckRow, 0, field, text(want), text(got))
		}
	}
	num := func(field string, want, got int64) {
		if want != got {
			h.differ(CheckRow, 0, field, strconv.FormatInt(want, 10), strconv.FormatInt(got, 10))
		}
	}
	at := func(field string, want, got time.Time) {
		if !want.Truncate(time.Microsecond).Equal(got.Truncate(time.Microsecond)) {
			h.differ(CheckRow, 0, field, moment(want), moment(got))
		}
	}
	str("state", string(t.State), row.State)
	num("attempt", int64(t.Attempt), int64(row.Attempt))
	num("delivery", t.Delivery, row.Delivery)
	num("interruptions", int64(t.Interruptions), int64(row.Interruptions))
	at("next_retry_at", t.NextRetryAt, row.NextRetryAt.Time)
	// Where an orchestrator of an older version recorded the claim, claimed_at is
	// missing or of an earlier one.
	if c := row.ClaimedAt; c.Valid && !c.Time.Before(row.StartedAt.Time) {
		at("claimed_at", t.ClaimedAt, c.Time)
	}
	at("started_at", t.StartedAt, row.StartedAt.Time)
	at("finished_at", t.FinishedAt, row.FinishedAt.Time)
	str("last_error_code", string(t.Code), store.Deref(row.LastErrorCode))
	str("last_error_reason", t.Reason, store.Deref(row.LastErrorReason))
	str("worker_id", t.WorkerID, store.Deref(row.WorkerID))
	str("trace_id", t.TraceID, row.TraceID)
	num("rejected_delivery", t.RejectedDelivery, row.RejectedDelivery)
	num("applied_delivery", t.AppliedDelivery, row.AppliedDelivery)
	kind := store.Deref(row.AppliedKind)
	if protocol.OutcomeKind(kind) == protocol.OutcomeSkipped { // the log does not tell it from a release
		kind = string(protocol.OutcomeReleased)
	}
	str("applied_kind", string(t.AppliedKind), kind)
	if row.HasResult && t.State != protocol.StateSucceeded {
		h.differ(CheckRow, 0, "result", none+" in state "+string(t.State), "a result")
	}
	h.checkBounds()
	if row.Attempt > row.MaxRetries+1 {
		h.differ(CheckRow, 0, "attempt", fmt.Sprintf("at most %d", row.MaxRetries+1), strconv.Itoa(int(row.Attempt)))
	}
}

// checkBounds: what a row shows by itself, and the database does not check.
func (h *history) checkBounds() {
	row := h.row
	least := func(field string, min, got int64) {
		if got < min {
			h.differ(CheckRow, 0, field, fmt.Sprintf("at least %d", min), strconv.FormatInt(got, 10))
		}
	}
	least("timeout_ms", 1, int64(row.TimeoutMs))
	if row.StartWithinMs != nil {
		least("start_within_ms", 1, *row.StartWithinMs)
	}
	if row.HeartbeatTimeoutMs != nil {
		least("heartbeat_timeout_ms", 1, int64(*row.HeartbeatTimeoutMs))
	}
	switch protocol.DependencyPolicy(store.Deref(row.OnDependencyFailure)) {
	case "", protocol.DependencyCancel, protocol.DependencyRun:
	default:
		h.differ(CheckRow, 0, "on_dependency_failure", "cancel, run or "+none, *row.OnDependencyFailure)
	}
	if row.OwnsNothing {
		h.differ(CheckRow, 0, "effect_own", "an effect_key", none)
	}
}

func moment(t time.Time) string {
	if t.IsZero() {
		return none
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// checkDue: a task that nothing but dispatch can move on must wait for it, and
// a retry is not dispatched before its time.
func (h *history) checkDue() {
	if h.row.Queue == protocol.QueueInternal {
		return
	}
	due, state := h.row.DueAt, protocol.State(h.row.State)
	switch state {
	case protocol.StatePending, protocol.StateInterrupted:
		if !due.Valid && h.row.OpenDependencies == 0 {
			h.differ(CheckDue, 0, "due_at", "a time in state "+string(state), none)
		}
	case protocol.StateRetrying:
		if next := h.row.NextRetryAt; due.Valid && due.Time.Before(next.Time) {
			h.differ(CheckDue, 0, "due_at", "not before "+moment(next.Time), moment(due.Time))
		}
	case protocol.StateQueued:
	default:
		if due.Valid {
			h.differ(CheckDue, 0, "due_at", none+" in state "+string(state), moment(due.Time))
		}
	}
}

// checkKeys: a live task's idempotency key is its own. A finished one's may
// have expired, and been taken by another task since.
func (h *history) checkKeys() {
	key := store.Deref(h.row.IdempotencyKey)
	if key == "" || protocol.State(h.row.State).Terminal() {
		return
	}
	if k := h.row.KeyTaskID; k == nil || *k != h.row.ID {
		found := none
		if k != nil {
			found = "task " + protocol.ID(*k).String()
		}
		h.differ(CheckIdempotency, 0, "key "+text(h.row.IdempotencyScope)+" "+text(key), "this task", found)
	}
}
