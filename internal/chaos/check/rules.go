package check

import (
	"fmt"
	"time"
)

// Rule names what must hold. The names are stable.
type Rule string

// The rules about single tasks.
const (
	// RuleLost: a task whose enqueue was answered exists, and has ended.
	RuleLost Rule = "lost"
	// RuleInvented: Postgres has no task that nobody asked for.
	RuleInvented Rule = "invented"
	// RuleKey: the requests that share an idempotency key become one task, which
	// is the one that they are answered with.
	RuleKey Rule = "key_twice"
	// RuleTerminal: a task that has ended has one terminal event, as its last
	// state says.
	RuleTerminal Rule = "terminal"
	// RuleEnd: it ended as its kind must: state, attempts, dead letter.
	RuleEnd Rule = "end"
	// RuleResult: its result is what the handler computes from the payload.
	RuleResult Rule = "result"
	// RuleStale: an outcome that counted comes from an execution of the delivery
	// that was current then.
	RuleStale Rule = "stale_outcome"
	// RuleTwice: one (task, delivery) is executed at most once, whatever
	// happens.
	RuleTwice Rule = "delivery_twice"
	// RuleOverlap: two executions of a task run at once only after a pause, a
	// loss of data in Redis or a stolen lease.
	RuleOverlap Rule = "overlap"
	// RuleAgain: a task that was executed to its end is executed again only if
	// its worker died, stood still or was robbed, or Redis lost data.
	RuleAgain Rule = "again"
	// RuleVanished: what a worker has fetched is absent from Redis, without an
	// outcome, only if Redis lost data.
	RuleVanished Rule = "vanished"
	// RuleTheft: a worker notices within a visibility timeout that its lease is
	// another's, and cancels the handler.
	RuleTheft Rule = "theft_unnoticed"
	// RuleCancel: a task that the client was told is cancelled is not started any
	// more, and its handler's context is cancelled within a visibility timeout.
	RuleCancel Rule = "cancel_ignored"
	// RuleEffectTwice: the receiver of a side effect has it once at most.
	RuleEffectTwice Rule = "effect_twice"
	// RuleEffectLost: a task that succeeded has had its side effect, and knows the
	// receiver's answer.
	RuleEffectLost Rule = "effect_lost"
)

// Violation is a rule that did not hold.
type Violation struct {
	Rule Rule   `json:"rule"`
	Task string `json:"task,omitempty"`
	Text string `json:"text"`
	// Timeline tells the task's events and executions.
	Timeline []string `json:"timeline,omitempty"`
}

// judge applies the rules to one task.
type judge struct {
	h  *History
	id string
	t  *Task
	r  *Record
	xs []Execution

	found []Violation
}

func (j *judge) fail(rule Rule, format string, a ...any) {
	j.found = append(j.found, Violation{Rule: rule, Task: j.id, Text: fmt.Sprintf(format, a...)})
}

func (j *judge) all() []Violation {
	if j.t == nil {
		j.fail(RuleInvented, "task of state %s that nobody asked for", j.r.State)
		return j.found
	}
	j.key()
	j.ended()
	j.result()
	j.outcomes()
	j.executions()
	j.vanished()
	j.thefts()
	j.cancel()
	return j.found
}

// key also notes that the task is there.
func (j *judge) key() {
	again := j.t.found
	if j.t.found = true; j.t.Key == nil {
		return
	}
	if again {
		j.fail(RuleKey, "it is the second task of its idempotency key")
	}
	if told := j.t.Key.Answer; told != "" && told != j.id {
		j.fail(RuleKey, "the client was answered with task %s for its idempotency key", told)
	}
}

func terminal(typ string) bool {
	return typ == "task.succeeded" || typ == "task.failed" || typ == "task.cancelled"
}

func (j *judge) ended() {
	var ends []string
	for _, e := range j.r.Events {
		if terminal(e.Type) {
			ends = append(ends, e.Type)
		}
	}
	switch state := j.r.State; {
	case state != "succeeded" && state != "failed" && state != "cancelled":
		j.fail(RuleLost, "it has not ended: state %s, delivery %d", state, j.r.Delivery)
		if len(ends) > 0 {
			j.fail(RuleTerminal, "terminal events %v in state %s", ends, state)
		}
		return
	case len(ends) != 1 || ends[0] != "task."+state:
		j.fail(RuleTerminal, "terminal events %v in state %s, want one", ends, state)
	}
	cancelled := j.r.State == "cancelled"
	switch {
	case cancelled && !j.t.CancelAsked:
		j.fail(RuleEnd, "it was cancelled, and nobody asked for that")
	case !cancelled && !j.t.Cancelled.IsZero():
		j.fail(RuleEnd, "it ended %s; at %s the client was told that it is cancelled", j.r.State, clock(j.t.Cancelled))
	case !cancelled && (j.r.State != j.t.State || j.t.Attempt > 0 && j.r.Attempt != j.t.Attempt):
		j.fail(RuleEnd, "a task of kind %s ended %s in attempt %d, want %s in attempt %d", j.t.Kind, j.r.State, j.r.Attempt, j.t.State, j.t.Attempt)
	}
	if failed := j.r.State == "failed"; failed != j.r.DeadLetter {
		j.fail(RuleEnd, "state %s, recorded dead letter: %t", j.r.State, j.r.DeadLetter)
	}
}

func (j *judge) result() {
	if j.r.State != "succeeded" {
		return
	}
	if j.r.Sum != j.t.Sum {
		j.fail(RuleResult, "the result says %q, the handler computes %q", j.r.Sum, j.t.Sum)
	}
	if j.r.ResultDelivery != j.r.Delivery {
		j.fail(RuleStale, "it ended as delivery %d with the result of delivery %d", j.r.Delivery, j.r.ResultDelivery)
	}
}

// judged returns the delivery that an event of an outcome ended; ok is false
// for other events.
func judged(e Event) (delivery int64, ok bool) {
	if e.Actor != "worker" || e.Message == "" {
		return 0, false
	}
	switch e.Type {
	case "task.claimed", "task.succeeded", "task.dlq":
		return e.Delivery, true
	case "task.retry_scheduled":
		return e.Delivery - 1, true
	}
	return 0, false
}

// outcomes compares what counted with what ran.
func (j *judge) outcomes() {
	for _, e := range j.r.Events {
		delivery, ok := judged(e)
		if !ok {
			continue
		}
		found := false
		for _, x := range j.xs {
			if x.Worker != e.Worker || x.Message != e.Message {
				continue
			}
			if found = true; x.Delivery != delivery {
				j.fail(RuleStale, "%s (seq %d) counted for delivery %d and comes from the execution of delivery %d on %s", e.Type, e.Seq, delivery, x.Delivery, e.Worker)
			}
		}
		if !found && e.Type != "task.claimed" { // a claim may be reported before the handler's first line
			j.fail(RuleStale, "%s (seq %d): %s executed no entry %s", e.Type, e.Seq, e.Worker, e.Message)
		}
	}
}

// executions looks at each pair of executions that follow one another.
func (j *judge) executions() {
	for i, b := range j.xs {
		for _, a := range j.xs[:i] {
			if a.Delivery == b.Delivery {
				j.fail(RuleTwice, "delivery %d was executed on %s at %s and on %s at %s", a.Delivery, a.Worker, clock(a.Start), b.Worker, clock(b.Start))
				continue
			}
			excused := j.h.lost(a, b.Start) || j.h.stood(a, b.Start) || j.h.stolen(j.id, a, b.Start) || b.Delivery < a.Delivery && j.h.late(b)
			if !excused && b.Start.Before(j.h.until(a)) {
				j.fail(RuleOverlap, "delivery %d ran on %s when delivery %d was started on %s at %s", a.Delivery, a.Worker, b.Delivery, b.Worker, clock(b.Start))
				continue
			}
			if !excused && a.Ending == EndOK && !j.h.died(a, b.Start) {
				j.fail(RuleAgain, "delivery %d was executed to its end on %s, which lived on, and delivery %d was started on %s at %s",
					a.Delivery, a.Worker, b.Delivery, b.Worker, clock(b.Start))
			}
		}
	}
}

// vanished looks at what the reconciler gave up as absent from Redis.
func (j *judge) vanished() {
	for _, e := range j.r.Events {
		if e.Actor != "reconciler" || e.Type != "task.redispatched" && e.Type != "task.interrupted" {
			continue
		}
		for _, x := range j.xs {
			if x.Delivery < e.Delivery && x.Delivery >= e.Delivery-1 && x.Start.Before(e.At) && !j.h.lost(x, e.At) {
				j.fail(RuleVanished, "%s had fetched delivery %d (%s); at %s it was nowhere in Redis, without an outcome", x.Worker, x.Delivery, x.Message, clock(e.At))
			}
		}
	}
}

// thefts looks at what workers did after their leases were taken.
func (j *judge) thefts() {
	for _, t := range j.h.Thefts {
		if t.Task != j.id {
			continue
		}
		by := t.At.Add(j.h.Visibility)
		for _, x := range j.xs {
			if x.Worker != t.Worker || x.Message != t.Message || !j.h.until(x).After(by) {
				continue
			}
			if any1(j.h.Frozen[x.Worker], t.At, by) || any1(j.h.Troubled, t.At, by) || any1(j.h.Lossy, t.At, by) {
				continue
			}
			j.fail(RuleTheft, "the lease of delivery %d was taken from %s at %s; its handler ran on for more than %s", x.Delivery, t.Worker, clock(t.At), j.h.Visibility)
		}
	}
}

// cancel looks at what ran after the client was told that the task is
// cancelled.
func (j *judge) cancel() {
	at := j.t.Cancelled
	if at.IsZero() {
		return
	}
	for _, x := range j.xs {
		by := at.Add(j.h.Visibility)
		if x.Start.After(at) {
			by = x.Start.Add(j.h.Visibility)
		}
		if any1(j.h.Frozen[x.Worker], at.Add(-before), by) || any1(j.h.Troubled, at.Add(-before), by) || any1(j.h.Lossy, at.Add(-before), by) {
			continue
		}
		// What was fetched just before may start just after.
		if x.Start.After(at.Add(time.Second)) {
			j.fail(RuleCancel, "delivery %d was started on %s at %s; the client was told at %s that it is cancelled", x.Delivery, x.Worker, clock(x.Start), clock(at))
		} else if j.h.until(x).After(by) {
			j.fail(RuleCancel, "delivery %d ran on for more than %s on %s after the client was told at %s that it is cancelled", x.Delivery, j.h.Visibility, x.Worker, clock(at))
		}
	}
}

// clock shows a time of day, to the millisecond.
func clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }
