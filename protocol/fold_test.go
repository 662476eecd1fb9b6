package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// legalHistory makes the events of a random, legal life of one task.
func legalHistory(t *rapid.T) []*Event {
	m := newMachine(t)
	actions := m.actions()
	delete(actions, "") // TestDecisions checks
	t.Repeat(actions)
	return m.events
}

// corruption damages the event at an index that suits it; the first event that
// Fold must refuse is the one at index bad.
type corruption struct {
	name  string
	suits func(events []*Event, i int) bool
	apply func(t *rapid.T, events []*Event, i int) (out []*Event, bad int)
}

func anywhere([]*Event, int) bool { return true }

// change damages one event in place.
func change(f func(t *rapid.T, e *Event)) func(*rapid.T, []*Event, int) ([]*Event, int) {
	return func(t *rapid.T, events []*Event, i int) ([]*Event, int) {
		f(t, events[i])
		return events, i
	}
}

// otherThan draws a number near n, but not n.
func otherThan(t *rapid.T, n int64) int64 {
	return n + rapid.SampledFrom([]int64{-2, -1, 1, 2, 1000}).Draw(t, "off by")
}

var corruptions = []corruption{
	{
		"gap", func(events []*Event, i int) bool { return i+1 < len(events) },
		func(_ *rapid.T, events []*Event, i int) ([]*Event, int) { return slices.Delete(events, i, i+1), i },
	},
	{
		"repeated event", anywhere,
		func(_ *rapid.T, events []*Event, i int) ([]*Event, int) {
			return slices.Insert(events, i+1, events[i]), i + 1
		},
	},
	{
		"exchanged events", func(events []*Event, i int) bool { return i+1 < len(events) },
		func(_ *rapid.T, events []*Event, i int) ([]*Event, int) {
			events[i], events[i+1] = events[i+1], events[i]
			return events, i
		},
	},
	{"wrong seq", anywhere, change(func(t *rapid.T, e *Event) { e.Seq = int(otherThan(t, int64(e.Seq))) })},
	{
		"wrong previous state", anywhere,
		change(func(t *rapid.T, e *Event) {
			all := append(States(), StateNone, "unheard_of")
			e.From = rapid.SampledFrom(slices.DeleteFunc(all, func(s State) bool { return s == e.From })).Draw(t, "from")
		}),
	},
	{
		"illegal move", func(events []*Event, i int) bool { return events[i].From != events[i].To },
		change(func(t *rapid.T, e *Event) {
			all := append(States(), "unheard_of")
			all = slices.DeleteFunc(all, func(s State) bool { return s == e.From || Allowed(e.From, s) })
			e.To = rapid.SampledFrom(all).Draw(t, "to")
			e.NextRetryAt = time.Time{}
			if e.To == StateRetrying {
				e.NextRetryAt = epoch
			}
		}),
	},
	{"wrong attempt", anywhere, change(func(t *rapid.T, e *Event) { e.Attempt = int(otherThan(t, int64(e.Attempt))) })},
	{
		"wrong delivery", func(events []*Event, i int) bool { return events[i].Type != EventRedispatched },
		change(func(t *rapid.T, e *Event) { e.Delivery = otherThan(t, e.Delivery) }),
	},
	{
		"redispatch without a new delivery", func(events []*Event, i int) bool { return events[i].Type == EventRedispatched },
		change(func(t *rapid.T, e *Event) { e.Delivery -= rapid.Int64Range(1, e.Delivery).Draw(t, "less") }),
	},
	{
		"next_retry_at missing", func(events []*Event, i int) bool { return events[i].To == StateRetrying },
		change(func(_ *rapid.T, e *Event) { e.NextRetryAt = time.Time{} }),
	},
	{
		"next_retry_at outside retrying", func(events []*Event, i int) bool { return events[i].To != StateRetrying },
		change(func(_ *rapid.T, e *Event) { e.NextRetryAt = epoch }),
	},
	{
		"failure passed off as a snooze", func(events []*Event, i int) bool { return events[i].Type == EventRetryScheduled },
		change(func(_ *rapid.T, e *Event) {
			if e.Code == "" {
				e.Code = CodeExecutionFailed
			} else {
				e.Code = ""
			}
		}),
	},
	{
		"second terminal event", func(events []*Event, i int) bool { return events[i].To.Terminal() },
		func(t *rapid.T, events []*Event, i int) ([]*Event, int) {
			e := *events[i]
			e.Seq++
			e.From = e.To
			e.Type = rapid.SampledFrom([]EventType{EventSucceeded, EventFailed, EventCancelled}).Draw(t, "type")
			e.To = rapid.SampledFrom([]State{e.From, StateSucceeded, StateFailed, StateCancelled}).Draw(t, "to")
			return slices.Insert(events[:i+1:i+1], i+1, &e), i + 1
		},
	},
	{
		"second creation", func(events []*Event, i int) bool { return events[i].To == StateQueued },
		func(_ *rapid.T, events []*Event, i int) ([]*Event, int) {
			e := *events[i]
			e.Seq, e.From, e.Type = e.Seq+1, e.To, EventCreated
			return slices.Insert(events[:i+1:i+1], i+1, &e), i + 1
		},
	},
	{
		"type that does not make this move", func(events []*Event, i int) bool { return events[i].From != events[i].To },
		change(func(t *rapid.T, e *Event) {
			leads := map[EventType]State{
				EventQueued: StateQueued, EventClaimed: StateRunning, EventSucceeded: StateSucceeded, EventRetryScheduled: StateRetrying,
				EventInterrupted: StateInterrupted, EventFailed: StateFailed, EventCancelled: StateCancelled,
				EventHeartbeat: "", EventProgress: "", EventReclaimed: "", EventTransitionRejected: "", EventAlertRaised: "", EventRedispatched: "",
			}
			e.Type = rapid.SampledFrom(EventTypes()).Filter(func(typ EventType) bool {
				to, known := leads[typ]
				return known && to != e.To
			}).Draw(t, "type")
		}),
	},
	{
		"move without a move", func(events []*Event, i int) bool { return events[i].From == events[i].To },
		change(func(t *rapid.T, e *Event) {
			e.Type = rapid.SampledFrom([]EventType{
				EventCreated, EventQueued, EventClaimed, EventSucceeded, EventRetryScheduled, EventInterrupted, EventDLQ, EventFailed, EventCancelled,
			}).Draw(t, "type")
		}),
	},
}

func TestFoldRefusesCorruption(t *testing.T) {
	t.Parallel()
	for _, c := range corruptions {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			hits := 0
			rapid.Check(t, func(t *rapid.T) {
				events := legalHistory(t)
				var at []int
				for i := range events {
					if c.suits(events, i) {
						at = append(at, i)
					}
				}
				if len(at) == 0 {
					return
				}
				hits++
				damaged, bad := c.apply(t, slices.Clone(events), rapid.SampledFrom(at).Draw(t, "index"))
				f, err := Fold(damaged)
				wantFoldError(t, err, damaged[bad])
				sound, err := Fold(damaged[:bad])
				if err != nil || f != sound {
					t.Fatalf("folded to %+v (%v), want what the sound events give: %+v", f, err, sound)
				}
			})
			if hits == 0 {
				t.Error("no history had a place for it")
			}
		})
	}
}

func wantFoldError(t testingT, err error, e *Event) {
	t.Helper()
	fe, ok := errors.AsType[*FoldError](err)
	if !ok {
		t.Fatalf("accepted event %d (%s, %s → %s): error %v", e.Seq, e.Type, e.From, e.To, err)
	}
	if fe.Seq != e.Seq || fe.TaskID != e.TaskID || fe.Reason == "" || !strings.Contains(fe.Error(), fmt.Sprintf("event %d", e.Seq)) {
		t.Fatalf("the error is about event %d of %s (%q), want event %d", fe.Seq, fe.TaskID, fe, e.Seq)
	}
}

// Events that are stored one by one fold like the whole log.
func TestFoldIsIncremental(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := legalHistory(t)
		var f Folded
		for i, e := range events {
			if err := f.Add(e); err != nil {
				t.Fatal(err)
			}
			if whole, err := Fold(events[:i+1]); err != nil || whole != f {
				t.Fatalf("after event %d: %+v, folded at once %+v, error %v", i+1, f, whole, err)
			}
		}
	})
}

// Events of types that change no state may come at any time after creation.
func TestFoldTakesSideEvents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		events := legalHistory(t)
		at := rapid.IntRange(1, len(events)).Draw(t, "at")
		last := events[at-1]
		side := &Event{
			TaskID: last.TaskID, Seq: last.Seq + 1, From: last.To, To: last.To, Attempt: last.Attempt,
			Delivery: last.Delivery, NextRetryAt: last.NextRetryAt, OccurredAt: last.OccurredAt,
			Type: rapid.SampledFrom([]EventType{
				EventHeartbeat, EventProgress, EventReclaimed, EventTransitionRejected, EventApprovalRequested, EventApprovalApproved,
				EventApprovalRejected, EventDLQRequeued, EventDiscardProposed, EventDiscarded, EventAlertRaised,
			}).Draw(t, "type"),
		}
		before, err := Fold(events[:at])
		if err != nil {
			t.Fatal(err)
		}
		after, err := Fold(append(events[:at:at], side))
		before.Seq++
		if err != nil || after != before {
			t.Fatalf("a %s: %+v → %+v, error %v", side.Type, before, after, err)
		}
	})
}

func TestFoldEmpty(t *testing.T) {
	t.Parallel()
	if f, err := Fold(nil); err != nil || f != (Folded{}) {
		t.Errorf("Fold(nil) = %+v, %v", f, err)
	}
}

func TestFoldNeedsACreation(t *testing.T) {
	t.Parallel()
	for _, first := range []Event{
		{Seq: 1, Type: EventHeartbeat},
		{Seq: 1, Type: EventCreated},
		{Seq: 1, Type: EventCreated, To: StateRunning, Attempt: 1, Delivery: 1},
		{Seq: 1, Type: EventClaimed, To: StateQueued, Attempt: 1, Delivery: 1},
		{Seq: 1, Type: EventCreated, To: StateQueued, Attempt: 0, Delivery: 1},
		{Seq: 1, Type: EventCreated, To: StateQueued, Attempt: 1, Delivery: 2},
		{Seq: 2, Type: EventCreated, To: StateQueued, Attempt: 1, Delivery: 1},
	} {
		_, err := Fold([]*Event{&first})
		wantFoldError(t, err, &first)
	}
	for _, to := range []State{StatePending, StateWaitingApproval, StateQueued} {
		e := Event{Seq: 1, Type: EventCreated, To: to, Attempt: 1, Delivery: 1}
		if f, err := Fold([]*Event{&e}); err != nil || f.State != to {
			t.Errorf("created %s: %+v, %v", to, f, err)
		}
	}
}

// A rebuild after a restored database jumps the delivery far ahead.
func TestFoldTakesAJumpOfTheDelivery(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 1)
	h.task.Delivery += 1_000_000
	h.keep(func() []*Event { e, _ := h.task.Redispatch(h.env, "restored"); return e }())
	if h.task.Delivery != 1_000_002 {
		t.Errorf("delivery is %d", h.task.Delivery)
	}
}

// Interruptions are counted, handed-back executions are not.
func TestFoldCountsInterruptions(t *testing.T) {
	t.Parallel()
	h := newHistory(t, 0)
	h.do(h.task.Lost(h.env, ActorReconciler, "gone", nil))
	h.do(h.task.Dispatch(h.env))
	h.apply(h.outcome(OutcomeReleased), Applied)
	h.do(h.task.Dispatch(h.env))
	h.do(h.task.Lost(h.env, ActorReconciler, "gone", nil))
	if f, err := Fold(h.events); err != nil || f.Interruptions != 2 {
		t.Errorf("%+v, %v", f, err)
	}
}
