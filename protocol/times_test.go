package protocol

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// running says when an execution ran: started and ended after the worker got it,
// and when the orchestrator applied what its worker reported.
type running struct {
	started, took, applied time.Duration
	off                    time.Duration // how far the worker's clock is off
}

// dispatched makes a task that was dispatched at epoch.
func dispatched(t *testing.T, maxRetries int) *history {
	t.Helper()
	h := newHistory(t, maxRetries)
	h.task.CreatedAt, h.task.UpdatedAt = epoch.Add(-time.Hour), epoch
	return h
}

func (h *history) report(kind OutcomeKind, r running) []*Event {
	h.t.Helper()
	o := h.outcome(kind)
	o.StartedAt = epoch.Add(r.started + r.off)
	if o.FinishedAt = o.StartedAt.Add(r.took); kind == OutcomeClaimed {
		o.FinishedAt = time.Time{}
	}
	h.env.Now = epoch.Add(r.applied)
	return h.apply(o, Applied)
}

func (h *history) wantTimes(name string, started, finished time.Duration) {
	h.t.Helper()
	if got := h.task.StartedAt.Sub(epoch); got != started {
		h.t.Errorf("%s: started %s after the dispatch, want %s", name, got, started)
	}
	if finished < 0 {
		return
	}
	if got := h.task.FinishedAt.Sub(epoch); got != finished {
		h.t.Errorf("%s: finished %s after the dispatch, want %s", name, got, finished)
	}
}

const (
	ms    = time.Millisecond
	never = time.Duration(-1)
)

// The worker's own start and end are recorded, whether its claim came alone or
// inside the outcome.
func TestRunTimesAreTheWorkers(t *testing.T) {
	t.Parallel()
	h := dispatched(t, 0)
	events := h.report(OutcomeSucceeded, running{started: 3 * ms, took: 5 * ms, applied: 20 * ms})
	h.wantTimes("5 ms", 3*ms, 8*ms)
	if got, want := string(events[0].Data), `{"started_at":"2026-02-25T12:00:00.003Z"}`; got != want {
		t.Errorf("claim has data %s, want %s", got, want)
	}
	if got, want := string(events[1].Data), `{"started_at":"2026-02-25T12:00:00.003Z","finished_at":"2026-02-25T12:00:00.008Z","duration_ms":5}`; got != want {
		t.Errorf("success has data %s, want %s", got, want)
	}

	h = dispatched(t, 0)
	h.report(OutcomeClaimed, running{started: 3 * ms, applied: 230 * ms})
	h.wantTimes("claimed", 3*ms, never)
	h.report(OutcomeSucceeded, running{started: 3 * ms, took: 1000 * ms, applied: 1010 * ms})
	h.wantTimes("1,000 ms", 3*ms, 1003*ms)
}

// Clocks that are off by hours, forward and back: times stay between dispatch and
// the moment of recording, the duration is the worker's, and the event says how
// far the clock is off.
func TestRunTimesOfAWrongClock(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		off                     time.Duration
		short, shortEnd         time.Duration // claim inside the outcome
		claimed, long, longEnd  time.Duration // claim of its own
		claimSkew, skew, skewed int64
	}{
		"right":         {0, 3 * ms, 8 * ms, 3 * ms, 3 * ms, 1003 * ms, 0, 0, 0},
		"a bit ahead":   {100 * ms, 15 * ms, 20 * ms, 103 * ms, 10 * ms, 1010 * ms, 0, 0, 0},
		"a bit behind":  {-100 * ms, 0, 5 * ms, 0, 0, 1000 * ms, 0, 0, 0},
		"3 hours ahead": {3 * time.Hour, 15 * ms, 20 * ms, 230 * ms, 10 * ms, 1010 * ms, 3*3600_000 - 227, 3*3600_000 - 7, 3*3600_000 - 12},
		"3 hours back":  {-3 * time.Hour, 0, 5 * ms, 0, 0, 1000 * ms, -3*3600_000 + 3, -2*3600_000 + 3, -3*3600_000 + 3},
	} {
		h := dispatched(t, 0)
		events := h.report(OutcomeSucceeded, running{started: 3 * ms, took: 5 * ms, applied: 20 * ms, off: c.off})
		h.wantTimes(name+", short", c.short, c.shortEnd)
		if got := events[1].Times().ClockSkewMS; got != c.skewed {
			t.Errorf("%s: skew %d ms, want %d", name, got, c.skewed)
		}
		h = dispatched(t, 0)
		events = h.report(OutcomeClaimed, running{started: 3 * ms, applied: 230 * ms, off: c.off})
		h.wantTimes(name+", claimed", c.claimed, never)
		if got := events[0].Times().ClockSkewMS; got != c.claimSkew {
			t.Errorf("%s: skew in the claim %d ms, want %d", name, got, c.claimSkew)
		}
		events = h.report(OutcomeSucceeded, running{started: 3 * ms, took: 1000 * ms, applied: 1010 * ms, off: c.off})
		h.wantTimes(name+", long", c.long, c.longEnd)
		if got := events[0].Times().ClockSkewMS; got != c.skew {
			t.Errorf("%s: skew in the end %d ms, want %d", name, got, c.skew)
		}
	}
}

// Every kind of end has the times of its execution, beside what else its event
// tells.
func TestRunTimesOfEveryEnd(t *testing.T) {
	t.Parallel()
	for _, kind := range OutcomeKinds() {
		if kind == OutcomeClaimed {
			continue
		}
		h := dispatched(t, 3)
		o := h.outcome(kind)
		o.StartedAt, o.FinishedAt, o.Retryable = epoch.Add(3*ms), epoch.Add(8*ms), true
		h.env.Now = epoch.Add(20 * ms)
		events := h.apply(o, Applied)
		got := events[1].Times()
		if got.StartedAt.Sub(epoch) != 3*ms || got.FinishedAt.Sub(epoch) != 8*ms {
			t.Errorf("%s: %s has %+v", kind, events[1].Type, got)
		}
		h.wantTimes(string(kind), 3*ms, never)
		if h.task.State == StateRetrying {
			if want := epoch.Add(20 * ms).Add(events[1].BackoffDelay); !h.task.NextRetryAt.Equal(want) {
				t.Errorf("%s: next retry %s, want %s: a delay begins when it is decided, by Postgres' clock", kind, h.task.NextRetryAt, want)
			}
		}
		wantSound(t, "seed of the tests", h.events)
	}
}

// A task that is given up ended when its last execution did, not when its dead
// letter was written.
func TestRunTimesOfADeadLetter(t *testing.T) {
	t.Parallel()
	h := dispatched(t, 0)
	h.report(OutcomeFailed, running{started: 3 * ms, took: 1000 * ms, applied: 1010 * ms})
	h.env.Now = epoch.Add(time.Minute)
	h.do(h.task.RecordDeadLetter(h.env))
	h.wantTimes("failed", 3*ms, 1003*ms)
	if r := wantSound(t, "seed of the tests", h.events); !r.Task().FinishedAt.Equal(h.task.FinishedAt) {
		t.Errorf("the log implies that it finished at %s", r.Task().FinishedAt)
	}
	runs := Runs(h.events)
	if !runs[0].StartedAt.Equal(h.task.StartedAt) || !runs[0].FinishedAt.Equal(h.task.FinishedAt) {
		t.Errorf("its run is %+v", runs[0])
	}
}

// A worker whose clock is behind can't make its own task time out before its time:
// the backstop goes by when the claim was recorded.
func TestTheBackstopKnowsNoWorkersClock(t *testing.T) {
	t.Parallel()
	h := dispatched(t, 0)
	h.report(OutcomeClaimed, running{started: 30 * time.Minute, applied: 30 * time.Minute, off: -3 * time.Hour})
	h.wantTimes("claimed", 0, never)
	h.env.Now = epoch.Add(31 * time.Minute)
	if _, ok := h.task.TimedOut(h.env, time.Minute, time.Second); ok {
		t.Error("timed out before timeout and grace were over")
	}
	h.env.Now = epoch.Add(31*time.Minute + time.Second)
	h.do(h.task.TimedOut(h.env, time.Minute, time.Second))
}

// Nonsense on the wire is refused or held to what can be.
func TestRunTimesOfNonsense(t *testing.T) {
	t.Parallel()
	for _, field := range []string{FieldStartedAt, FieldFinishedAt} {
		for _, v := range []string{"-1", "1e3", "9223372036854775808", "253402300800000", "soon", "1.5"} {
			values := wire((&Outcome{ID: testID(1), Delivery: 1, Kind: OutcomeSucceeded, StartedAt: epoch, FinishedAt: epoch, Delay: -1}).Values())
			values[field] = v
			_, err := DecodeOutcome(values)
			wantFault(t, err, field)
		}
	}
	first, last := time.UnixMilli(1).UTC(), time.UnixMilli(maxMillis).UTC()
	at := func(d time.Duration) time.Time { return epoch.Add(d) }
	for _, c := range []struct{ from, to time.Time }{
		{first, last}, {last, first}, {first, first}, {last, last}, {at(10 * ms), at(5 * ms)}, {at(10 * ms), time.Time{}}, {first, time.Time{}},
		{last, time.Time{}}, {time.Time{}, at(10 * ms)}, {time.Time{}, last}, {time.Time{}, time.Time{}}, {at(3 * ms), last}, {first, at(3 * ms)},
	} {
		for _, alone := range []bool{false, true} {
			h := dispatched(t, 0)
			o := h.outcome(OutcomeSucceeded)
			o.StartedAt, o.FinishedAt = c.from, c.to
			if alone {
				claim := *o
				claim.Kind, claim.FinishedAt = OutcomeClaimed, time.Time{}
				h.env.Now = at(15 * ms)
				h.apply(&claim, Applied)
			}
			h.env.Now = at(20 * ms)
			h.apply(o, Applied)
			from, to := h.task.StartedAt.Sub(epoch), h.task.FinishedAt.Sub(epoch)
			if from < 0 || to < from || to > 20*ms {
				t.Errorf("%s to %s, claim alone %t: recorded as %s to %s", c.from, c.to, alone, from, to)
			}
			wantSound(t, "seed of the tests", h.events)
		}
	}
}

// Whatever workers say: an execution began after its dispatch, if its claim came
// with its end, and ended by the time it was recorded; what its worker measured is
// kept if it can be true.
func TestRunTimesAreBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.OneOf(rapid.Int64Range(-2000, 2000), rapid.Int64Range(-maxMillis/2, maxMillis/2))
		draw := func(name string) time.Time {
			n := epoch.UnixMilli() + some.Draw(t, name)
			return time.UnixMilli(min(max(n, 1), maxMillis)).UTC()
		}
		task, _ := born(StateQueued, 0)
		task.CreatedAt, task.UpdatedAt = epoch.Add(-time.Minute), epoch
		o := &Outcome{ID: task.ID, Delivery: 1, Kind: OutcomeSucceeded, StartedAt: draw("start"), FinishedAt: draw("end"), Delay: -1}
		took := max(o.FinishedAt.Sub(o.StartedAt), 0)
		env, from := testEnv(), epoch
		if rapid.Bool().Draw(t, "claim alone") {
			from = task.CreatedAt
			env.Now = epoch.Add(time.Duration(rapid.IntRange(0, 2_000_000).Draw(t, "claimed")) * time.Microsecond)
			claim := *o
			claim.Kind, claim.FinishedAt = OutcomeClaimed, time.Time{}
			task.ApplyOutcome(&claim, env)
			if task.StartedAt.Before(epoch) || task.StartedAt.After(env.Now) || !task.ClaimedAt.Equal(env.Now) {
				t.Fatalf("claimed at %s, started at %s", env.Now, task.StartedAt)
			}
		} else {
			env.Now = epoch
		}
		env.Now = env.Now.Add(time.Duration(rapid.IntRange(0, 2_000_000).Draw(t, "applied")) * time.Microsecond)
		task.ApplyOutcome(o, env)
		got := task.FinishedAt.Sub(task.StartedAt)
		if task.StartedAt.Before(from) || task.FinishedAt.After(env.Now) || got < 0 {
			t.Fatalf("recorded at %s: %s to %s", env.Now, task.StartedAt, task.FinishedAt)
		}
		if got != took && took <= env.Now.Sub(from) {
			t.Fatalf("ran %s, recorded as %s", took, got)
		}
	})
}

// A replay reports run times that can't be: an end before the start or after the
// event, and times that are none.
func TestVerifyFindsImpossibleRunTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		event int
		data  string
		field string
	}{
		"claim after its event": {1, `{"started_at":"2026-02-25T12:00:09Z"}`, "started_at"},
		"end before its start":  {2, `{"started_at":"2026-02-25T12:00:00.003Z","finished_at":"2026-02-25T12:00:00.002Z","duration_ms":5}`, "finished_at"},
		"end after its event":   {2, `{"started_at":"2026-02-25T12:00:00.003Z","finished_at":"2026-02-25T12:00:09Z","duration_ms":5}`, "finished_at"},
		"another duration":      {2, `{"started_at":"2026-02-25T12:00:00.003Z","finished_at":"2026-02-25T12:00:00.008Z","duration_ms":6}`, "duration_ms"},
		"no time":               {2, `{"started_at":"yesterday","finished_at":"2026-02-25T12:00:00.008Z"}`, "data"},
		"no object":             {1, `[]`, "data"},
	} {
		h := dispatched(t, 0)
		h.report(OutcomeSucceeded, running{started: 3 * ms, took: 5 * ms, applied: 20 * ms})
		h.events[c.event].Data = json.RawMessage(c.data)
		r, err := ReplayLog(nil, h.events)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(r.Differences, func(d Difference) bool { return d.Seq == c.event+1 && d.Field == c.field }) {
			t.Errorf("%s: found %v, want one in %s", name, r.Differences, c.field)
		}
	}
}

// Logs from before workers' times were kept replay as they were.
func TestRunTimesOfOldLogs(t *testing.T) {
	t.Parallel()
	h := dispatched(t, 0)
	h.report(OutcomeSucceeded, running{started: 3 * ms, took: 5 * ms, applied: 20 * ms})
	h.events[1].Data = json.RawMessage(fmt.Sprintf(`{"worker_started_at_ms":%d}`, epoch.UnixMilli()))
	h.events[2].Data = json.RawMessage(`{"duration_ms":1000}`)
	r := wantSound(t, "seed of the tests", h.events)
	if got := r.Task(); !got.StartedAt.Equal(h.env.Now) || !got.FinishedAt.Equal(h.env.Now) {
		t.Errorf("%s to %s, want both %s", got.StartedAt, got.FinishedAt, h.env.Now)
	}
}
