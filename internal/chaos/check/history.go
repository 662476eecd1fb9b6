// Package check judges a run of the chaos harness: it compares what the client
// was promised, what handlers really did, which faults there were, and what
// Postgres says at the end. It reads no store itself, so that each of its rules
// can be tested with a history made by hand.
package check

import (
	"cmp"
	"slices"
	"time"
)

// Task is a task that the client asked for.
type Task struct {
	Kind string
	// Accepted tells whether the client got an answer. A task that was asked for
	// without an answer may exist or not.
	Accepted bool
	// State and Attempt are how the task must end; 0: in any attempt.
	State   string
	Attempt int
	// Sum is what its handler must have computed, if it succeeds.
	Sum string
	// CancelAsked tells whether the client asked for its end; Cancelled is when it
	// was told that the task is cancelled, zero if it never was.
	CancelAsked bool
	Cancelled   time.Time
	// Key is set if several requests, each with an id of its own, ask for the task
	// by an idempotency key: History.Tasks has it under each of these ids.
	Key *Key

	// counted and found: Check has met it among the tasks that were asked for, and in
	// Postgres.
	counted, found bool
}

// Key is an idempotency key that several requests have.
type Key struct {
	// Answer is the id that the client was told, "" if it got no answer.
	Answer string
}

// Endings of an execution.
const (
	// EndOK: the handler returned a result.
	EndOK = "ok"
	// EndFailed: it returned an error, as the task demands.
	EndFailed = "failed"
	// EndSnoozed: it asked for another execution.
	EndSnoozed = "snoozed"
	// EndCancelled: its context was cancelled: the lease was lost, the task
	// cancelled, or the worker stopped.
	EndCancelled = "cancelled"
)

// Execution is one run of a handler, from the handlers' own log.
type Execution struct {
	Delivery        int64
	Attempt         int
	Worker, Message string
	Start           time.Time
	// End is zero if the handler did not live to its end.
	End    time.Time
	Ending string
	Cause  string // of EndCancelled
}

// Span is a stretch of time.
type Span struct{ From, To time.Time }

// overlaps reports whether the span has a moment in common with from to to.
func (s Span) overlaps(from, to time.Time) bool { return !s.To.Before(from) && !s.From.After(to) }

// Theft is a lease that was taken from a healthy worker.
type Theft struct {
	Task, Worker, Message string
	At                    time.Time
}

// History is everything that is known of a run besides what Postgres says.
type History struct {
	// Visibility is the visibility timeout.
	Visibility time.Duration
	// DoubtAfter is how old a reservation of an effect is at least when it comes in
	// doubt.
	DoubtAfter time.Duration
	Tasks      map[string]*Task
	Executions map[string][]Execution // by task
	// Ended tells when a worker process was gone. One that is not there lived to
	// the end.
	Ended map[string]time.Time
	// Frozen are the times in which a worker did not run: it was stopped, or the
	// machine had no time for it.
	Frozen map[string][]Span
	// Stalled are the times in which an orchestrator stood still for longer than
	// the others take it for alive: an entry that it was about to add comes late.
	Stalled []Span
	// Lossy are the times in which Redis may have lost entries or leases of the
	// task streams: FLUSHALL, a lost stream or group, a stranger's XACK, an empty
	// restart.
	Lossy []Span
	// Troubled are the times in which a store was away, or workers may have been
	// unable to reach Redis.
	Troubled []Span
	Thefts   []Theft
}

// Event is one row of the event log.
type Event struct {
	Type, Status, Actor, Worker, Message, Code, Reason string
	Seq, Attempt                                       int
	Delivery                                           int64
	At                                                 time.Time
}

// Record is what Postgres says about one task.
type Record struct {
	ID, State, Sum string
	Attempt        int
	Delivery       int64
	// ResultDelivery and ResultWorker are what the result says about the
	// execution that computed it.
	ResultDelivery int64
	ResultWorker   string
	// DeadLetter tells whether it has a recorded dead letter.
	DeadLetter bool
	Events     []Event
}

// prepare puts everything in order of time.
func (h *History) prepare() {
	for _, xs := range h.Executions {
		slices.SortStableFunc(xs, func(a, b Execution) int { return a.Start.Compare(b.Start) })
	}
	for _, spans := range append([][]Span{h.Lossy, h.Troubled, h.Stalled}, frozen(h.Frozen)...) {
		slices.SortFunc(spans, func(a, b Span) int { return cmp.Or(a.From.Compare(b.From), a.To.Compare(b.To)) })
	}
}

func frozen(m map[string][]Span) (out [][]Span) {
	for _, spans := range m {
		out = append(out, spans)
	}
	return out
}

// until is when the execution was over: its end, or that of its worker.
func (h *History) until(x Execution) time.Time {
	if !x.End.IsZero() {
		return x.End
	}
	if at, ok := h.Ended[x.Worker]; ok {
		return at
	}
	return time.Unix(1<<40, 0)
}

// before is how long before the start of its handler an entry may have been
// fetched.
const before = 2 * time.Second

func any1(spans []Span, from, to time.Time) bool {
	return slices.ContainsFunc(spans, func(s Span) bool { return s.overlaps(from, to) })
}

// lost reports whether Redis may have lost the execution's entry by a moment.
func (h *History) lost(x Execution, by time.Time) bool {
	return any1(h.Lossy, x.Start.Add(-before), by)
}

// late reports whether an execution of an older delivery may have started after a
// newer one: its worker stood still between its fetch and its start; or its entry
// came after another orchestrator had given it up, for its owner stood still
// meanwhile, and went on at most so long before the start.
func (h *History) late(b Execution) bool {
	return h.stood(b, b.Start) || any1(h.Stalled, b.Start.Add(-before-h.Visibility), b.Start)
}

// stood reports whether the execution's worker stood still at some time
// between its fetch and a moment.
func (h *History) stood(x Execution, by time.Time) bool {
	return any1(h.Frozen[x.Worker], x.Start.Add(-before), by)
}

// stolen reports whether its lease was taken by a moment.
func (h *History) stolen(task string, x Execution, by time.Time) bool {
	return slices.ContainsFunc(h.Thefts, func(t Theft) bool {
		return t.Task == task && t.Message == x.Message && !t.At.After(by)
	})
}

// died reports whether its worker was gone by a moment.
func (h *History) died(x Execution, by time.Time) bool {
	at, ok := h.Ended[x.Worker]
	return ok && !at.After(by)
}
