package protocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBackoffTable(t *testing.T) {
	t.Parallel()
	const (
		hour = 3_600_000
		day  = 24 * hour
	)
	exp := DefaultRetryPolicy()
	if want := (RetryPolicy{Strategy: "exponential", BaseMS: 1000, MaxBackoffMS: 30_000, JitterMaxMS: 300}); exp.Strategy != want.Strategy ||
		exp.BaseMS != want.BaseMS || exp.MaxBackoffMS != want.MaxBackoffMS || exp.JitterMaxMS != want.JitterMaxMS || exp.ScheduleMS != nil {
		t.Errorf("default policy is %+v", exp)
	}
	long := RetryPolicy{Strategy: StrategyExponential, BaseMS: hour, MaxBackoffMS: 365 * day}
	linear := RetryPolicy{Strategy: StrategyLinear, BaseMS: 1500, MaxBackoffMS: 5000}
	fixed := RetryPolicy{Strategy: StrategyFixed, BaseMS: 2500, MaxBackoffMS: 30_000}
	list := RetryPolicy{Strategy: StrategySchedule, BaseMS: 1, MaxBackoffMS: 1, ScheduleMS: []int64{60_000, 300_000, 900_000}}
	for _, tt := range []struct {
		name   string
		policy RetryPolicy
		want   map[int]int64
	}{
		{"exponential", exp, map[int]int64{1: 1000, 2: 2000, 3: 4000, 4: 8000, 5: 16_000, 6: 30_000, 7: 30_000, 63: 30_000, 64: 30_000, 65: 30_000, 1000: 30_000}},
		{"exponential, base 1 h", long, map[int]int64{
			1: hour, 2: 2 * hour, 14: 8192 * hour, 15: 365 * day, 40: 365 * day, 41: 365 * day, 42: 365 * day, 43: 365 * day,
			62: 365 * day, 63: 365 * day, 64: 365 * day, 65: 365 * day, 1000: 365 * day, math.MaxInt32: 365 * day,
		}},
		{"exponential, base = max", RetryPolicy{Strategy: StrategyExponential, BaseMS: 7, MaxBackoffMS: 7}, map[int]int64{1: 7, 2: 7, 1000: 7}},
		{"linear", linear, map[int]int64{1: 1500, 2: 3000, 3: 4500, 4: 5000, 1000: 5000}},
		{"linear, base 1 h", RetryPolicy{Strategy: StrategyLinear, BaseMS: hour, MaxBackoffMS: 365 * day}, map[int]int64{1: hour, 1000: 1000 * hour, 8760: 365 * day, 8761: 365 * day, math.MaxInt32: 365 * day}},
		{"fixed", fixed, map[int]int64{1: 2500, 2: 2500, 1000: 2500}},
		{"schedule", list, map[int]int64{1: 60_000, 2: 300_000, 3: 900_000, 4: 900_000, 1000: 900_000}},
		{"first retry, whatever is asked", exp, map[int]int64{0: 1000, -5: 1000}},
		{"empty schedule", RetryPolicy{Strategy: StrategySchedule}, map[int]int64{1: 0, 5: 0}},
	} {
		for n, ms := range tt.want {
			if got, want := tt.policy.Backoff(n), time.Duration(ms)*time.Millisecond; got != want {
				t.Errorf("%s: retry %d waits %s, want %s", tt.name, n, got, want)
			}
		}
	}
}

// A backoff is positive, bounded, and never shrinks from retry to retry
// (schedules may).
func TestBackoffProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := genPolicy().Draw(t, "policy")
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(1, MaxRetriesLimit).Draw(t, "retry")
		d, next := p.Backoff(n), p.Backoff(n+1)
		if d <= 0 || d > maxDelayMS*time.Millisecond {
			t.Fatalf("retry %d waits %s", n, d)
		}
		if p.Strategy == StrategySchedule {
			if want := p.ScheduleMS[min(n, len(p.ScheduleMS))-1]; d.Milliseconds() != want {
				t.Fatalf("retry %d waits %s, want %d ms", n, d, want)
			}
		} else if next < d || d.Milliseconds() > p.MaxBackoffMS || d.Milliseconds() < p.BaseMS {
			t.Fatalf("retries %d and %d wait %s and %s", n, n+1, d, next)
		}
		seed, id := []byte("s"), genID().Draw(t, "id")
		j := p.Jitter(seed, id, n)
		if j < 0 || j.Milliseconds() > p.JitterMaxMS || j%time.Millisecond != 0 {
			t.Fatalf("jitter is %s, at most %d ms are allowed", j, p.JitterMaxMS)
		}
		if got := p.Delay(seed, id, n); got != d+j {
			t.Fatalf("delay is %s, want %s + %s", got, d, j)
		}
	})
}

// ids makes n task ids as a client would: times that go on, random rests.
func ids(n int) []ID {
	out := make([]ID, n)
	for i := range out {
		out[i] = testID(0)
		binary.BigEndian.PutUint32(out[i][2:], uint32(i/7))
		binary.BigEndian.PutUint32(out[i][10:], uint32(i))
	}
	return out
}

// Jitter is uniform on 0 … jitter_max, both included: chi-square over task ids
// and over retry numbers.
func TestJitterIsUniform(t *testing.T) {
	t.Parallel()
	seed := []byte("fixed seed of this test")
	chi := func(counts []int) float64 {
		n, x := 0, 0.0
		for _, c := range counts {
			n += c
		}
		want := float64(n) / float64(len(counts))
		for _, c := range counts {
			x += (float64(c) - want) * (float64(c) - want) / want
		}
		return x
	}
	// One uniform sample in a million exceeds these.
	for _, tt := range []struct {
		jitterMax int64
		limit     float64
	}{{1, 23.93}, {9, 45.1}, {99, 181.1}, {300, 431.3}} {
		p := RetryPolicy{Strategy: StrategyFixed, BaseMS: 1, MaxBackoffMS: 1, JitterMaxMS: tt.jitterMax}
		byTask, byRetry := make([]int, tt.jitterMax+1), make([]int, tt.jitterMax+1)
		for i, id := range ids(60_000) {
			byTask[p.Jitter(seed, id, 1).Milliseconds()]++
			byRetry[p.Jitter(seed, testID(1), i+1).Milliseconds()]++
		}
		for name, counts := range map[string][]int{"tasks": byTask, "retries": byRetry} {
			if x := chi(counts); x > tt.limit {
				t.Errorf("jitter_max %d over %s: chi-square %.1f, limit %.1f", tt.jitterMax, name, x, tt.limit)
			}
			if slices.Contains(counts, 0) {
				t.Errorf("jitter_max %d over %s: some value never comes: %v", tt.jitterMax, name, counts)
			}
		}
	}
}

// ASTER: jitter in [0, base/2) is jitter_max = base/2 - 1.
func TestASTERJitter(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{Strategy: StrategyExponential, BaseMS: 20, MaxBackoffMS: 1000, JitterMaxMS: 20/2 - 1}
	seen := map[int64]bool{}
	for _, id := range ids(1000) {
		seen[p.Jitter([]byte("aster"), id, 1).Milliseconds()] = true
	}
	for ms := range int64(10) {
		if !seen[ms] {
			t.Errorf("%d ms never comes", ms)
		}
	}
	if len(seen) != 10 {
		t.Errorf("jitters are %v, want 0 … 9", seen)
	}
}

// Every process and every release computes the same jitter; the values come
// from an independent computation of SHA-256(seed, id, retry).
func TestJitterGolden(t *testing.T) {
	t.Parallel()
	seed, id := []byte("deployment seed"), testID(0x2a)
	for _, tt := range []struct {
		retry               int
		to300, to499, toMax int64
	}{
		{1, 165, 274, 17311872987},
		{2, 3, 5, 347337294},
		{3, 173, 287, 18155566538},
		{4, 109, 181, 11478913492},
		{1000, 132, 219, 13852698775},
	} {
		for jitterMax, want := range map[int64]int64{300: tt.to300, 499: tt.to499, maxDelayMS: tt.toMax, 0: 0, -1: 0} {
			p := RetryPolicy{JitterMaxMS: jitterMax}
			if got := p.Jitter(seed, id, tt.retry).Milliseconds(); got != want {
				t.Errorf("retry %d, jitter_max %d: %d ms, want %d", tt.retry, jitterMax, got, want)
			}
		}
	}
}

// Jitter depends on each of seed, task and retry number, and on nothing else.
func TestJitterIsPure(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{Strategy: StrategyFixed, BaseMS: 1, MaxBackoffMS: 1, JitterMaxMS: maxDelayMS}
	same := p.Jitter([]byte("a"), testID(1), 1)
	if q := (RetryPolicy{Strategy: StrategyLinear, BaseMS: 9, MaxBackoffMS: 99, JitterMaxMS: maxDelayMS}); q.Jitter([]byte("a"), testID(1), 1) != same {
		t.Error("depends on the backoff")
	}
	for name, other := range map[string]time.Duration{
		"seed": p.Jitter([]byte("b"), testID(1), 1), "task": p.Jitter([]byte("a"), testID(2), 1), "retry": p.Jitter([]byte("a"), testID(1), 2),
	} {
		if other == same {
			t.Errorf("does not depend on the %s", name)
		}
	}
	seed := []byte("seed")
	p.Jitter(seed, testID(1), 1)
	if string(seed) != "seed" {
		t.Error("the seed was changed")
	}
}

func TestValidateNamesTheField(t *testing.T) {
	t.Parallel()
	ok := DefaultRetryPolicy()
	schedule := RetryPolicy{Strategy: StrategySchedule, BaseMS: 1, MaxBackoffMS: 1, ScheduleMS: []int64{1, maxDelayMS}}
	with := func(p RetryPolicy, f func(*RetryPolicy)) RetryPolicy {
		p.ScheduleMS = slices.Clone(p.ScheduleMS)
		f(&p)
		return p
	}
	for _, p := range []RetryPolicy{
		ok, schedule,
		with(ok, func(p *RetryPolicy) { p.JitterMaxMS = 0 }),
		with(ok, func(p *RetryPolicy) { p.BaseMS, p.MaxBackoffMS, p.JitterMaxMS = maxDelayMS, maxDelayMS, maxDelayMS }),
		with(schedule, func(p *RetryPolicy) { p.ScheduleMS = slices.Repeat([]int64{5}, 100) }),
	} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, tt := range []struct {
		field  string
		policy RetryPolicy
	}{
		{"strategy", RetryPolicy{}},
		{"strategy", with(ok, func(p *RetryPolicy) { p.Strategy = "Exponential" })},
		{"strategy", with(ok, func(p *RetryPolicy) { p.Strategy = Strategy(strings.Repeat("é", 99)) })},
		{"schedule_ms", with(ok, func(p *RetryPolicy) { p.ScheduleMS = []int64{1} })},
		{"schedule_ms", with(schedule, func(p *RetryPolicy) { p.ScheduleMS = nil })},
		{"schedule_ms", with(schedule, func(p *RetryPolicy) { p.ScheduleMS[1] = 0 })},
		{"schedule_ms", with(schedule, func(p *RetryPolicy) { p.ScheduleMS[1]++ })},
		{"schedule_ms", with(schedule, func(p *RetryPolicy) { p.ScheduleMS = slices.Repeat([]int64{5}, 101) })},
		{"base_ms", with(ok, func(p *RetryPolicy) { p.BaseMS = 0 })},
		{"base_ms", with(ok, func(p *RetryPolicy) { p.BaseMS = -1 })},
		{"base_ms", with(ok, func(p *RetryPolicy) { p.BaseMS, p.MaxBackoffMS = maxDelayMS+1, maxDelayMS+1 })},
		{"max_backoff_ms", with(ok, func(p *RetryPolicy) { p.MaxBackoffMS = p.BaseMS - 1 })},
		{"max_backoff_ms", with(ok, func(p *RetryPolicy) { p.MaxBackoffMS = maxDelayMS + 1 })},
		{"jitter_max_ms", with(ok, func(p *RetryPolicy) { p.JitterMaxMS = -1 })},
		{"jitter_max_ms", with(ok, func(p *RetryPolicy) { p.JitterMaxMS = maxDelayMS + 1 })},
	} {
		wantFault(t, tt.policy.Validate(), "retry_policy."+tt.field)
	}
}

// A task with max_retries 1000 and a base of 1 h goes through all of its
// retries: each strategy grows to its maximum and stays there, and nothing
// overflows.
func TestThousandRetriesSaturate(t *testing.T) {
	t.Parallel()
	const hour, month = int64(3_600_000), int64(30 * 24 * 3_600_000)
	for _, tt := range []struct {
		policy RetryPolicy
		from   int   // the first retry that waits the maximum
		most   int64 // without jitter
	}{
		{RetryPolicy{Strategy: StrategyExponential, BaseMS: hour, MaxBackoffMS: month, JitterMaxMS: 300}, 11, month},
		{RetryPolicy{Strategy: StrategyExponential, BaseMS: hour, MaxBackoffMS: maxDelayMS, JitterMaxMS: maxDelayMS}, 15, maxDelayMS},
		{RetryPolicy{Strategy: StrategyLinear, BaseMS: hour, MaxBackoffMS: month, JitterMaxMS: 300}, 720, month},
		{RetryPolicy{Strategy: StrategyFixed, BaseMS: hour, MaxBackoffMS: hour, JitterMaxMS: 300}, 1, hour},
		{RetryPolicy{Strategy: StrategySchedule, BaseMS: 1, MaxBackoffMS: 1, JitterMaxMS: 300, ScheduleMS: []int64{hour, 24 * hour, month}}, 3, month},
	} {
		t.Run(fmt.Sprint(tt.policy.Strategy, " to ", tt.most), func(t *testing.T) {
			t.Parallel()
			if err := tt.policy.Validate(); err != nil {
				t.Fatal(err)
			}
			s := newSim(t, testID(1), scenarioSeed, &scenario{maxRetries: MaxRetriesLimit, policy: tt.policy})
			for n := 1; n <= MaxRetriesLimit; n++ {
				s.run(fail)
				wait := s.waits[n-1].Milliseconds() - tt.policy.Jitter(s.env.Seed, testID(1), n).Milliseconds()
				if s.task.Attempt != n+1 || wait < 1 || wait > tt.most || (wait == tt.most) != (n >= tt.from) || !s.task.NextRetryAt.After(s.env.Now) {
					t.Fatalf("retry %d waits %d ms, until %s", n, wait, s.task.NextRetryAt)
				}
			}
			s.run(fail)
			if s.task.State != StateDLQPending || s.task.Code != CodeRetryExhausted {
				t.Errorf("then it is %s, %s", s.task.State, s.task.Code)
			}
			wantSound(t, scenarioSeed, s.events)
		})
	}
	for _, n := range []int{MaxRetriesLimit + 1, math.MaxInt32, math.MaxInt} {
		for _, strategy := range []Strategy{StrategyExponential, StrategyLinear, StrategyFixed} {
			p := RetryPolicy{Strategy: strategy, BaseMS: maxDelayMS, MaxBackoffMS: maxDelayMS, JitterMaxMS: maxDelayMS}
			if d := p.Backoff(n).Milliseconds(); d != maxDelayMS {
				t.Errorf("%s: retry %d waits %d ms", strategy, n, d)
			}
		}
	}
}

// Zero and negative values are refused with the field's name.
func TestValidateRefusesZeroAndNegative(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		field string
		zero  bool // zero is refused as well
		set   func(*RetryPolicy, int64)
	}{
		{"base_ms", true, func(p *RetryPolicy, v int64) { p.BaseMS = v }},
		{"max_backoff_ms", true, func(p *RetryPolicy, v int64) { p.MaxBackoffMS = v }},
		{"jitter_max_ms", false, func(p *RetryPolicy, v int64) { p.JitterMaxMS = v }},
		{"schedule_ms", true, func(p *RetryPolicy, v int64) { p.Strategy, p.ScheduleMS = StrategySchedule, []int64{1000, v} }},
	} {
		for _, v := range []int64{0, -1, -1000, math.MinInt64} {
			p := DefaultRetryPolicy()
			tt.set(&p, v)
			if err := p.Validate(); v < 0 || tt.zero {
				wantFault(t, err, "retry_policy."+tt.field)
			} else if err != nil {
				t.Errorf("%s = %d: %v", tt.field, v, err)
			}
		}
	}
}
