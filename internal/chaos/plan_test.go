package main

import (
	"strings"
	"testing"
	"time"
)

// What a run of 30 minutes must have at least.
func TestQuotas(t *testing.T) {
	t.Parallel()
	plan, err := schedule(options{duration: 30 * time.Minute, seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for i, p := range plan {
		n[p.kind.name]++
		if i > 0 && p.at < plan[i-1].at {
			t.Fatalf("fault %d is due before the one before it", i)
		}
	}
	for what, c := range map[string]struct{ got, least int }{
		"kills":             {n["kill-worker"] + n["kill-orchestrator"], 300},
		"FLUSHALLs":         {n["flushall"], 20},
		"Postgres restarts": {n["postgres-restart"], 20},
		"SIGSTOPs":          {n["pause-worker"], 20},
		"lost replies":      {n["lost-reply"], 100},
	} {
		if c.got < c.least {
			t.Errorf("%d %s, want at least %d", c.got, what, c.least)
		}
	}
}

// A short run has some of everything, within the time between the calm parts.
func TestShortRunHasEverything(t *testing.T) {
	t.Parallel()
	o := options{duration: 2 * time.Minute, seed: 3}
	plan, err := schedule(o)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[*fault]bool{}
	h := harness{options: o}
	for _, p := range plan {
		kinds[p.kind] = true
		if p.at < 0 || p.at > o.duration-2*h.calm() {
			t.Errorf("%s is due at %s", p.kind.name, p.at)
		}
	}
	if len(kinds) != len(faults()) {
		t.Errorf("%d kinds of %d", len(kinds), len(faults()))
	}
}

func TestScheduleFollowsTheSeed(t *testing.T) {
	t.Parallel()
	at := func(seed uint64) (s string) {
		plan, err := schedule(options{duration: time.Minute, seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range plan {
			s += p.kind.name + p.at.String()
		}
		return s
	}
	first := at(1)
	if at(1) != first {
		t.Error("two schedules of one seed")
	}
	if at(2) == first {
		t.Error("two seeds have one schedule")
	}
}

func TestChosenFaults(t *testing.T) {
	t.Parallel()
	plan, err := schedule(options{duration: time.Minute, faults: "flushall=3, steal"})
	if err != nil || len(plan) != 5 { // 40 in 30 minutes are 2 in one
		t.Errorf("%d faults, %v", len(plan), err)
	}
	for given, want := range map[string]string{"flush": "-faults list", "flushall=0": "from 1 on", "flushall=x": "from 1 on", ",": `names ""`} {
		if _, err := schedule(options{duration: time.Minute, faults: given}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", given, err, want)
		}
	}
}

func TestShiftTimes(t *testing.T) {
	t.Parallel()
	in := "*8\r\n$4\r\nxadd\r\n$13\r\nstream:result\r\n$10\r\nstarted_at\r\n$13\r\n1795853147500\r\n$11\r\nfinished_at\r\n$13\r\n1795853147600\r\n"
	want := strings.NewReplacer("1795853147500", "1795853207500", "1795853147600", "1795853207600").Replace(in)
	if got := string(shiftTimes([]byte(in), time.Minute)); got != want {
		t.Errorf("%q", got)
	}
	for _, other := range []string{
		strings.Replace(in, "stream:result", "stream:task00", 1), "*2\r\n$13\r\nstream:result\r\n$10\r\nstarted_at\r\n$1\r\n0\r\n", "$13\r\nstream:result\r\nstarted_at\r\n$13\r\n17958531475xx\r\n",
	} {
		if got := string(shiftTimes([]byte(other), time.Minute)); got != other {
			t.Errorf("%q was changed to %q", other, got)
		}
	}
}
