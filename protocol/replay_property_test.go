package protocol

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// survivor is a machine whose process may be restarted at any time: its task is
// then made anew from the log. It writes down what the live task waited.
type survivor struct {
	*machine
	waits    []time.Duration
	restarts int
}

func newSurvivor(t *rapid.T) *survivor { return &survivor{machine: newMachine(t)} }

func (s *survivor) actions() map[string]func(*rapid.T) {
	all := s.machine.actions()
	for name, action := range all {
		all[name] = func(t *rapid.T) {
			before := s.task.Seq
			action(t)
			for _, e := range s.events[before:] {
				if e.Type == EventRetryScheduled {
					s.waits = append(s.waits, s.task.NextRetryAt.Sub(s.env.Now))
				}
			}
		}
	}
	check := all[""]
	all[""] = func(t *rapid.T) { s.agree(t); check(t) }
	all["restart"] = s.restart
	return all
}

// agree replays the log so far and compares it with the live task.
func (s *survivor) agree(t *rapid.T) *Replay {
	r := wantSound(t, string(s.env.Seed), s.events)
	live := *s.task
	if err := impliedBy(r, &live); err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *survivor) restart(t *rapid.T) {
	next := s.agree(t).Task()
	next.MaxRetries, next.Policy, next.DueAt, next.Result = s.task.MaxRetries, s.task.Policy, s.task.DueAt, s.task.Result
	next.CreatedAt, next.UpdatedAt = s.task.CreatedAt, s.task.UpdatedAt
	if s.task.AppliedKind == OutcomeSkipped { // not in the log: its row says so
		next.AppliedKind = OutcomeSkipped
	}
	s.task = &next
	s.restarts++
}

// handled appends what people do with a dead letter.
func (s *survivor) handled(t *rapid.T) {
	if s.task.State != StateFailed {
		return
	}
	gen := rapid.SampledFrom([]EventType{EventDLQRequeued, EventDiscardProposed, EventDiscarded, EventDLQExpired})
	for _, typ := range rapid.SliceOfN(gen, 0, 4).Draw(t, "dead letter's events") {
		s.events = append(s.events, s.task.event(StateFailed, typ, s.env, ActorAPI))
	}
}

// tell compares a replay's history with the live one.
func (s *survivor) tell(t *rapid.T, r *Replay) {
	var waits []time.Duration
	ends := map[End]int{}
	claims, delivery := 0, int64(0)
	for i, x := range r.Executions {
		ends[x.End]++
		if !x.ClaimedAt.IsZero() {
			claims++
		}
		if x.Delivery <= delivery || x.Delivery > s.task.Delivery || x.EndedAt.Before(x.ClaimedAt) {
			t.Fatalf("execution %d after delivery %d: %+v", i+1, delivery, x)
		}
		delivery = x.Delivery
		if x.FinishedAt.Before(x.StartedAt) && !x.FinishedAt.IsZero() || x.FinishedAt.After(x.EndedAt) || x.StartedAt.After(x.EndedAt) {
			t.Fatalf("execution %d ran at times that can't be: %+v", i+1, x)
		}
		if (x.Retry != nil) != (x.End == EndRetried || x.End == EndSnoozed) {
			t.Fatalf("execution %d: %+v", i+1, x)
		}
		if x.Retry != nil {
			waits = append(waits, x.Retry.Delay)
		}
		if next := x.Attempt + 1; x.End == EndRetried && i+1 < len(r.Executions) && r.Executions[i+1].Attempt != next {
			t.Fatalf("after execution %d comes attempt %d, want %d", i+1, r.Executions[i+1].Attempt, next)
		}
	}
	if !slices.Equal(waits, s.waits) {
		t.Fatalf("delays %s, the task waited %s", waits, s.waits)
	}
	open, running := r.Running()
	if running != (s.task.State == StateRunning) || running && (open.Delivery != s.task.Delivery || open.Attempt != s.task.Attempt || open.End != "") {
		t.Fatalf("running %t: %+v", running, open)
	}
	if running {
		claims++
	}
	count := func(typ EventType) (n int) {
		for _, e := range s.events {
			if e.Type == typ {
				n++
			}
		}
		return n
	}
	if ends[EndRetried] != s.task.RetryCount() || ends[EndLost] != s.task.Interruptions || claims != count(EventClaimed) ||
		ends[EndRedispatched] != count(EventRedispatched) || ends[EndLost]+ends[EndReleased] != count(EventInterrupted) ||
		ends[EndSucceeded] != count(EventSucceeded) || ends[EndRetried]+ends[EndSnoozed] != count(EventRetryScheduled) {
		t.Fatalf("ends %v of %v", ends, told(r.Executions))
	}
	if c := r.RetryContext(); c.CurrentAttempt != s.task.Attempt || len(waits) > 0 && c.LastBackoff != waits[len(waits)-1].Milliseconds() {
		t.Fatalf("retry context %+v, delays %s", c, waits)
	}
}

// Whatever happens to a task, wherever it is restarted: its log replays to the
// live task, its attempts and its delays, and its delays can be recomputed.
func TestReplayAgreesWithTheLiveTask(t *testing.T) {
	t.Parallel()
	restarts, waits := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := newSurvivor(t)
		t.Repeat(s.actions())
		s.handled(t)
		s.tell(t, s.agree(t))
		events, err := readLog(logText(t, s.events))
		if err != nil {
			t.Fatal(err)
		}
		s.tell(t, wantSound(t, string(s.env.Seed), events))
		restarts, waits = restarts+s.restarts, waits+len(s.waits)
	})
	if restarts == 0 || waits == 0 {
		t.Errorf("%d restarts, %d delays: proves little", restarts, waits)
	}
}

// Two tasks whose steps alternate at random, one of them restarted in between:
// each log is that of the task alone.
func TestReplayOfInterleavedHistories(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pick := rapid.IntRange(0, len(scenarios)-1)
		merged, replays := []*Event(nil), map[ID]*Replay{}
		var sims []*sim
		var which, at []int
		for i := range rapid.IntRange(2, 5).Draw(t, "tasks") {
			n := pick.Draw(t, "scenario")
			s := newSim(t, testID(byte(i)), scenarioSeed, &scenarios[n])
			sims, which, at = append(sims, s), append(which, n), append(at, 0)
			merged = append(merged, s.events...)
			replays[s.task.ID] = &Replay{Seed: s.env.Seed}
		}
		for range rapid.IntRange(0, 40).Draw(t, "turns") {
			i := rapid.IntRange(0, len(sims)-1).Draw(t, "turn")
			s, steps := sims[i], scenarios[which[i]].steps
			if at[i] == len(steps) {
				continue
			}
			if rapid.Bool().Draw(t, "restart") {
				s.restart()
			}
			before := len(s.events)
			s.run(steps[at[i]])
			at[i]++
			merged = append(merged, s.events[before:]...)
		}
		for _, e := range merged {
			if err := replays[e.TaskID].Add(e); err != nil {
				t.Fatal(err)
			}
		}
		for i, s := range sims {
			alone := newSim(t, s.task.ID, scenarioSeed, &scenarios[which[i]])
			for _, f := range scenarios[which[i]].steps[:at[i]] {
				alone.run(f)
			}
			r := replays[s.task.ID]
			if err := impliedBy(r, alone.task); err != nil || len(r.Differences) > 0 || logText(t, s.events) != logText(t, alone.events) {
				t.Fatalf("%s: %v, %v", scenarios[which[i]].name, err, r.Differences)
			}
		}
	})
}

// tamper is a way to falsify a retry's event so that its own log contradicts
// it; it returns false where the event has nothing of that kind.
type tamper struct {
	name  string
	field string // one of the fields that must be reported; "" for any
	apply func(t *rapid.T, s *survivor, e *Event) bool
}

// some draws a number of milliseconds to be off by.
func some(t *rapid.T) int64 {
	return rapid.SampledFrom([]int64{-1_000_000_007, -1000, -1, 1, 2, 1000, 1_000_000_007}).Draw(t, "off by")
}

func fromPolicy(e *Event) (d RetryData, ok bool) {
	err := json.Unmarshal(e.Data, &d)
	return d, err == nil && d.Policy != nil
}

var tampers = []tamper{
	{"delay", "", func(t *rapid.T, _ *survivor, e *Event) bool {
		e.BackoffDelay += time.Duration(some(t)) * time.Millisecond
		return true
	}},
	{"delay with its time", "backoff_delay_ms", func(t *rapid.T, _ *survivor, e *Event) bool {
		_, ok := fromPolicy(e)
		d := time.Duration(some(t)) * time.Millisecond
		e.BackoffDelay, e.NextRetryAt = e.BackoffDelay+d, e.NextRetryAt.Add(d)
		return ok
	}},
	{"next_retry_at", "next_retry_at", func(t *rapid.T, _ *survivor, e *Event) bool {
		e.NextRetryAt = e.NextRetryAt.Add(time.Duration(some(t)) * time.Microsecond)
		return true
	}},
	{"occurred_at", "next_retry_at", func(t *rapid.T, _ *survivor, e *Event) bool {
		e.OccurredAt = e.OccurredAt.Add(time.Duration(some(t)) * time.Microsecond)
		return true
	}},
	{"jitter", "jitter_ms", func(t *rapid.T, _ *survivor, e *Event) bool {
		alter(e, func(d *RetryData) { d.JitterMS += some(t) })
		return true
	}},
	{"jitter, delay and time", "jitter_ms", func(t *rapid.T, _ *survivor, e *Event) bool {
		ms := some(t)
		alter(e, func(d *RetryData) { d.JitterMS += ms })
		e.BackoffDelay, e.NextRetryAt = e.BackoffDelay+time.Duration(ms)*time.Millisecond, e.NextRetryAt.Add(time.Duration(ms)*time.Millisecond)
		return true
	}},
	{"policy", "", func(t *rapid.T, s *survivor, e *Event) bool {
		d, ok := fromPolicy(e)
		if !ok {
			return false
		}
		p := genPolicy().Draw(t, "other policy")
		alter(e, func(d *RetryData) { d.Policy = &p })
		// A policy that gives the same delay contradicts nothing.
		n := e.RetryCount()
		return p.Backoff(n) != d.Policy.Backoff(n) || p.Jitter(s.env.Seed, e.TaskID, n) != d.Policy.Jitter(s.env.Seed, e.TaskID, n)
	}},
	{"policy removed", "policy", func(_ *rapid.T, _ *survivor, e *Event) bool {
		_, ok := fromPolicy(e)
		alter(e, func(d *RetryData) { d.Policy = nil })
		return ok
	}},
	{"policy added", "policy", func(_ *rapid.T, s *survivor, e *Event) bool {
		_, ok := fromPolicy(e)
		alter(e, func(d *RetryData) { d.Policy = &s.task.Policy })
		return !ok
	}},
	{"source", "", func(t *rapid.T, _ *survivor, e *Event) bool {
		before, ok := RetryData{}, true
		alter(e, func(d *RetryData) {
			before = *d
			d.DelaySource = rapid.SampledFrom([]string{DelayFromPolicy, DelayFromRetryAfter, DelayFromSnooze, "", "dice"}).Draw(t, "source")
			ok = d.DelaySource != before.DelaySource
		})
		return ok
	}},
	{"data", "", func(t *rapid.T, _ *survivor, e *Event) bool {
		e.Data = json.RawMessage(rapid.SampledFrom([]string{"", "{", "null", "[]", "0", `{"delay_source":1}`, "\xff"}).Draw(t, "data"))
		return true
	}},
}

func TestVerifyFindsWhatWasTamperedWith(t *testing.T) {
	t.Parallel()
	for _, tt := range tampers {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			hits := 0
			check := func(t *rapid.T) {
				s := newSurvivor(t)
				actions := s.actions()
				delete(actions, "")
				t.Repeat(actions)
				at := slices.DeleteFunc(slices.Clone(s.events), func(e *Event) bool { return e.Type != EventRetryScheduled })
				if len(at) == 0 {
					return
				}
				e := rapid.SampledFrom(at).Draw(t, "event")
				if !tt.apply(t, s, e) {
					return
				}
				hits++
				r, err := ReplayLog(s.env.Seed, s.events)
				if err != nil {
					t.Fatal(err)
				}
				found := slices.ContainsFunc(r.Differences, func(d Difference) bool {
					return d.Seq == e.Seq && (d.Field == tt.field || tt.field == "")
				})
				if !found {
					t.Fatalf("event %d was falsified; found %v", e.Seq, r.Differences)
				}
			}
			for range 50 { // short histories may have no place for it
				if rapid.Check(t, check); hits > 0 {
					break
				}
			}
			if hits == 0 {
				t.Error("no history had a place for it")
			}
		})
	}
}
