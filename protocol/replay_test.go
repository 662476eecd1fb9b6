package protocol

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// simulate runs a scenario's whole script.
func simulate(t testingT, id ID, seed string, sc *scenario) *sim {
	t.Helper()
	s := newSim(t, id, seed, sc)
	for _, f := range sc.steps {
		s.run(f)
	}
	return s
}

// wantSound replays a log and wants it to contradict nothing.
func wantSound(t testingT, seed string, events []*Event) *Replay {
	t.Helper()
	r, err := ReplayLog([]byte(seed), events)
	if err != nil || len(r.Differences) > 0 {
		t.Fatalf("error %v, differences %v", err, r.Differences)
	}
	return r
}

func eachScenario(t *testing.T, f func(t *testing.T, sc *scenario)) {
	t.Parallel()
	for i := range scenarios {
		t.Run(strings.ReplaceAll(scenarios[i].name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			f(t, &scenarios[i])
		})
	}
}

// A replay tells the attempts and delays that the live task had.
func TestReplayScenarios(t *testing.T) {
	eachScenario(t, func(t *testing.T, sc *scenario) {
		s := simulate(t, testID(1), scenarioSeed, sc)
		r := wantSound(t, scenarioSeed, s.events)
		if got := told(r.Executions); !slices.Equal(got, sc.want) {
			t.Errorf("executions\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(sc.want, "\n"))
		}
		if r.State != sc.state || r.Task().Code != sc.code {
			t.Errorf("ends %s, %s; want %s, %s", r.State, r.Task().Code, sc.state, sc.code)
		}
		if err := impliedBy(r, s.task); err != nil {
			t.Error(err)
		}
		if fold, err := Fold(s.events); err != nil || fold != r.Folded {
			t.Errorf("folded %+v, replayed %+v", fold, r.Folded)
		}
		if _, running := r.Running(); running != (sc.state == StateRunning) {
			t.Errorf("running: %t", running)
		}
		var waits []time.Duration
		for _, x := range r.Executions {
			if x.Retry != nil {
				waits = append(waits, x.Retry.Delay)
				if !x.Retry.At.Equal(x.EndedAt.Add(x.Retry.Delay)) {
					t.Errorf("attempt %d ended at %s, the next is due at %s", x.Attempt, x.EndedAt, x.Retry.At)
				}
			}
		}
		if !slices.Equal(waits, s.waits) {
			t.Errorf("delays %s, the task waited %s", waits, s.waits)
		}
		if c := r.RetryContext(); c.CurrentAttempt != s.task.Attempt || len(waits) > 0 && c.LastBackoff != waits[len(waits)-1].Milliseconds() {
			t.Errorf("retry context %+v", c)
		}
	})
}

// Same seed: the same bytes. Another seed: other jitters, and the log does not
// pass for one of that seed.
func TestReplayIsDeterministic(t *testing.T) {
	eachScenario(t, func(t *testing.T, sc *scenario) {
		one, two := simulate(t, testID(1), scenarioSeed, sc), simulate(t, testID(1), scenarioSeed, sc)
		if logText(t, one.events) != logText(t, two.events) {
			t.Fatal("two runs have different logs")
		}
		const otherSeed = "another seed"
		other := simulate(t, testID(1), otherSeed, sc)
		a, b := wantSound(t, scenarioSeed, one.events), wantSound(t, otherSeed, other.events)
		wrong, err := ReplayLog([]byte(otherSeed), one.events)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i, x := range a.Executions {
			if x.Retry == nil || x.Retry.Policy == nil || x.Retry.Policy.JitterMaxMS == 0 {
				continue
			}
			if y := b.Executions[i].Retry; x.Retry.JitterMS == y.JitterMS || x.Retry.Delay == y.Delay {
				t.Errorf("execution %d has the same jitter with another seed", i+1)
			}
			want = append(want, "jitter_ms", "backoff_delay_ms")
		}
		if got := fieldsOf(wrong.Differences); !slices.Equal(got, want) {
			t.Errorf("with the wrong seed %v differ, want %v", got, want)
		}
		if none, _ := ReplayLog(nil, one.events); len(none.Differences) > 0 {
			t.Errorf("without a seed %v", none.Differences)
		}
	})
}

func fieldsOf(ds []Difference) []string {
	var out []string
	for _, d := range ds {
		out = append(out, d.Field)
	}
	return out
}

// A task that is rebuilt from its log after every step, or after any one of
// them, goes on as if nothing had happened.
func TestReplayRestarts(t *testing.T) {
	eachScenario(t, func(t *testing.T, sc *scenario) {
		want := logText(t, simulate(t, testID(1), scenarioSeed, sc).events)
		for at := -1; at <= len(sc.steps); at++ {
			s := newSim(t, testID(1), scenarioSeed, sc)
			for i, f := range sc.steps {
				if at == i || at < 0 {
					s.restart()
				}
				s.run(f)
			}
			s.restart()
			if got := logText(t, s.events); got != want {
				t.Fatalf("restarted before step %d (-1: each), the log is\n%s\nwant\n%s", at, got, want)
			}
		}
	})
}

// What Postgres gives back (microseconds, milliseconds, JSON) replays like what
// was written, in one piece or event by event.
func TestReplayOfAStoredLog(t *testing.T) {
	eachScenario(t, func(t *testing.T, sc *scenario) {
		s := newSim(t, testID(1), scenarioSeed, sc)
		s.env.Now = s.env.Now.Add(999 * time.Nanosecond)
		for _, f := range sc.steps {
			s.run(f)
		}
		whole := wantSound(t, scenarioSeed, s.events)
		events, err := readLog(logText(t, s.events))
		if err != nil {
			t.Fatal(err)
		}
		read := wantSound(t, scenarioSeed, events)
		if !slices.Equal(told(read.Executions), told(whole.Executions)) || read.Folded != whole.Folded {
			t.Errorf("%v\n%v", told(read.Executions), told(whole.Executions))
		}
		// Whoever clears what was found between events loses nothing.
		r, found := &Replay{Seed: []byte(scenarioSeed)}, []Execution(nil)
		for i, e := range events {
			if err := r.Add(e); err != nil {
				t.Fatal(err)
			}
			found = append(found, r.Executions...)
			r.Executions = r.Executions[:0]
			prefix := wantSound(t, scenarioSeed, events[:i+1])
			if prefix.Folded != r.Folded || !reflect.DeepEqual(prefix.Task(), r.Task()) || prefix.RetryContext() != r.RetryContext() {
				t.Fatalf("after event %d: %+v, its prefix gives %+v", e.Seq, r.Task(), prefix.Task())
			}
		}
		if !reflect.DeepEqual(found, read.Executions) {
			t.Errorf("one by one %v", told(found))
		}
	})
}

// Tasks that run at the same time do not influence each other, and a log that
// holds their events in the order of commits replays task by task.
func TestReplayInterleaved(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	alone := make([]string, len(scenarios))
	for i := range scenarios {
		alone[i] = logText(t, simulate(t, testID(byte(i)), scenarioSeed, &scenarios[i]).events)
	}
	for range 20 {
		var turns []int
		sims, at := make([]*sim, len(scenarios)), make([]int, len(scenarios))
		for i := range scenarios {
			sims[i] = newSim(t, testID(byte(i)), scenarioSeed, &scenarios[i])
			turns = append(turns, slices.Repeat([]int{i}, len(scenarios[i].steps))...)
		}
		rng.Shuffle(len(turns), func(i, j int) { turns[i], turns[j] = turns[j], turns[i] })
		replays := map[ID]*Replay{}
		for _, s := range sims {
			replays[s.task.ID] = &Replay{Seed: []byte(scenarioSeed)}
			if err := replays[s.task.ID].Add(s.events[0]); err != nil {
				t.Fatal(err)
			}
		}
		for _, i := range turns {
			before := len(sims[i].events)
			sims[i].run(scenarios[i].steps[at[i]])
			at[i]++
			for _, e := range sims[i].events[before:] {
				if err := replays[e.TaskID].Add(e); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i, s := range sims {
			r := replays[s.task.ID]
			if logText(t, s.events) != alone[i] {
				t.Fatalf("%s: among others the log is another", scenarios[i].name)
			}
			if err := impliedBy(r, s.task); err != nil || len(r.Differences) > 0 {
				t.Fatalf("%s: %v, %v", scenarios[i].name, err, r.Differences)
			}
		}
	}
}

// The workflow retry document's retryContext, in its words.
func TestRetryContextJSON(t *testing.T) {
	t.Parallel()
	s := simulate(t, testID(1), scenarioSeed, &scenario{
		maxRetries: 3, policy: RetryPolicy{Strategy: StrategyFixed, BaseMS: 2000, MaxBackoffMS: 2000}, steps: []step{fail},
	})
	b, err := json.Marshal(wantSound(t, scenarioSeed, s.events).RetryContext())
	if want := `{"currentAttempt":2,"lastBackoff":2000}`; err != nil || string(b) != want {
		t.Errorf("%s, %v; want %s", b, err, want)
	}
	if c := wantSound(t, scenarioSeed, s.events[:1]).RetryContext(); c != (RetryContext{CurrentAttempt: 1}) {
		t.Errorf("before the first retry: %+v", c)
	}
}
