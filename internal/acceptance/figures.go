package acceptance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// The targets of the workflow retry document.
const (
	targetP99      = 100 * time.Millisecond
	targetOverhead = 1.10
	// busyShare is how many times longer than on its own a bit of work may take
	// here, at the 95th percentile, on a machine that has time to measure.
	busyShare = 2.0
	warmUps   = 10
)

// wait is the configured delay before each retry, which is excluded.
const wait = 20 * time.Millisecond

// figures are what was measured, by the number of retries.
type figures struct {
	latency map[int][]time.Duration // of a step, less its waits
	attempt map[int][]time.Duration // the same by the number of attempts
	slowed  float64                 // how many times longer a bit of work took here meanwhile
}

// measured judges the steps with so many retries.
func measured(retries int) func(context.Context, *run, *finding) error {
	return func(ctx context.Context, r *run, f *finding) error {
		m, err := r.figures.get(func() (*figures, error) { return r.measure(ctx) })
		if err != nil {
			return err
		}
		m.judge(f, retries)
		return nil
	}
}

// judge compares with the targets. A figure that is missed while this machine
// was too busy to measure says nothing.
func (m *figures) judge(f *finding, retries int) {
	p50, p99 := quantile(m.latency[retries], .5), quantile(m.latency[retries], .99)
	f.notef("%d steps, latency p50 %s, p99 %s, without %s of configured waits", len(m.latency[retries]), round(p50), round(p99), time.Duration(retries)*wait)
	if len(m.latency[retries]) == 0 {
		f.wrongf("nothing was measured")
		return
	}
	if p99 >= targetP99 {
		f.wrongf("p99 is %s, want less than %s", round(p99), targetP99)
	}
	if retries > 0 {
		with, without := quantile(m.attempt[retries], .5), quantile(m.attempt[0], .5)
		ratio := float64(with) / float64(without)
		f.notef("overhead %+.1f %%: %s for an attempt, %s without retries", (ratio-1)*100, round(with), round(without))
		if ratio >= targetOverhead {
			f.wrongf("an attempt takes %.1f %% longer than without retries, want less than %.0f %%", (ratio-1)*100, (targetOverhead-1)*100)
		}
	}
	if f.unsure = len(f.wrong) > 0 && m.slowed > busyShare; f.unsure {
		f.wrongf("this machine is busy: work takes %.1f times as long as on its own, so the figures say nothing about the system", m.slowed)
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// quantile returns the value below which a share q of the sample lies.
func quantile(sample []time.Duration, q float64) time.Duration {
	if len(sample) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(sample))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// measure runs steps one at a time, the cases in turn, as the log has them: from
// task.created to task.succeeded, less the waits.
func (r *run) measure(ctx context.Context) (*figures, error) {
	m := &figures{latency: map[int][]time.Duration{}, attempt: map[int][]time.Duration{}}
	stop := watchMachine()
	defer func() { m.slowed = stop() }()
	for i := range warmUps + r.o.Steps {
		for _, retries := range []int{0, 1, 3} {
			s, err := r.live(ctx, script{Fail: retries}, func(t *task.Request) { t.Retry = &task.Retry{Strategy: "fixed", Base: wait, NoJitter: true} })
			if err != nil {
				return nil, err
			}
			took, err := lasted(s, retries)
			if err != nil {
				return nil, err
			}
			if i >= warmUps {
				m.latency[retries] = append(m.latency[retries], took)
				m.attempt[retries] = append(m.attempt[retries], took/time.Duration(retries+1))
			}
		}
	}
	return m, nil
}

// lasted is how long a step took, less its waits.
func lasted(s *story, retries int) (time.Duration, error) {
	from, to := s.of(protocol.EventCreated), s.of(protocol.EventSucceeded)
	if from == nil || to == nil || int(s.task.RetryCount) != retries {
		return 0, fmt.Errorf("task %s is %s after %d retries, want succeeded after %d", s.task.TaskId, s.task.State, s.task.RetryCount, retries)
	}
	took := to.OccurredAt.AsTime().Sub(from.OccurredAt.AsTime())
	for _, e := range s.events {
		if e.BackoffDelayMs != nil {
			took -= time.Duration(e.BackoffDelayMs.Value) * time.Millisecond
		}
	}
	return took, nil
}

// The bits of work by which a busy machine is told: longer than a time slice that
// the system gives to whoever has slept, and rare enough to disturb nobody.
const (
	bitOfWork  = 4 * time.Millisecond
	betweenBit = 100 * time.Millisecond
)

// spin works through n rounds and returns how long that took.
func spin(n int) time.Duration {
	began := time.Now()
	x := uint64(n) | 1
	for range n {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
	}
	if x == 0 { // never; but the work must not be optimised away
		return 0
	}
	return time.Since(began)
}

// watchMachine finds out how many times longer work takes here than on its own,
// at the 95th percentile, until stop is called.
func watchMachine() (stop func() float64) {
	const trial = 100_000
	best := spin(trial)
	for range 20 {
		best = min(best, spin(trial))
	}
	rounds := int(float64(trial) * float64(bitOfWork) / float64(max(best, time.Microsecond)))
	quit, slowed := make(chan struct{}), make(chan float64, 1)
	go func() {
		var sample []time.Duration
		for {
			select {
			case <-quit:
				slowed <- float64(quantile(sample, .95)) / float64(bitOfWork)
				return
			case <-time.After(betweenBit):
				sample = append(sample, spin(rounds))
			}
		}
	}()
	return func() float64 {
		close(quit)
		return <-slowed
	}
}
