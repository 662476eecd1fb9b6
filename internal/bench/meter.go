package main

import (
	"context"
	"errors"
	"syscall"
	"time"
)

// spent is what a section took: CPU seconds, and time.
type spent struct {
	orchestrators, redis, postgres, own float64
	took                                time.Duration
}

// servers is what everything but the client and the worker took.
func (s spent) servers() float64 { return s.orchestrators + s.redis + s.postgres }

// meter measures a section of a part on one system.
type meter struct {
	s     *system
	began time.Time
	at    spent
	prof  *profile // nil: none is wanted
}

// meter begins a section. With -profile it is profiled under its name.
func (s *system) meter(ctx context.Context, section string) (*meter, error) {
	m := &meter{s: s}
	if s.b.profile != "" {
		var err error
		if m.prof, err = s.startProfile(ctx, section); err != nil {
			return nil, err
		}
	}
	m.at, m.began = s.used(), time.Now()
	return m, nil
}

// lap is what was spent since the beginning.
func (m *meter) lap() spent {
	now := m.s.used()
	return spent{
		now.orchestrators - m.at.orchestrators, now.redis - m.at.redis, now.postgres - m.at.postgres, now.own - m.at.own, time.Since(m.began),
	}
}

// stop ends the section.
func (m *meter) stop(ctx context.Context) (spent, error) {
	s := m.lap()
	if m.prof != nil {
		return s, m.prof.stop(ctx)
	}
	return s, nil
}

// used is what the system's processes have used so far, and this one.
func (s *system) used() spent {
	u := spent{redis: ownCPU(s.stack.RedisPID()), postgres: treeCPU(s.stack.PostgresPID()), own: usedCPU(syscall.RUSAGE_SELF)}
	for _, o := range s.orchestrators {
		u.orchestrators += ownCPU(o.pid())
	}
	return u
}

// timed runs a section and returns what it took; an error ends it, too.
func (s *system) timed(ctx context.Context, section string, f func() error) (spent, error) {
	m, err := s.meter(ctx, section)
	if err != nil {
		return spent{}, err
	}
	err = f()
	u, stopped := m.stop(ctx)
	return u, errors.Join(err, stopped)
}

// rate notes how many tasks a second a section came to, and what the servers
// needed for a thousand of them. base is the section to compare with.
func (b *bench) rate(section, base string, n int, u spent) {
	b.add(section, "tasks/s", base, float64(n)/u.took.Seconds())
	b.add(section+", servers' CPU for 1,000", "CPU s", base+", servers' CPU for 1,000", u.servers()/float64(n)*1000)
}

// watchOthers returns how many processors others used, on average, while a part
// was measured. It is to be asked when all servers of the part have ended.
func watchOthers() func() float64 {
	used := func() float64 { return usedCPU(syscall.RUSAGE_SELF) + usedCPU(syscall.RUSAGE_CHILDREN) }
	busy, own, began := busyCPU(), used(), time.Now()
	return func() float64 {
		return max(0, (busyCPU()-busy-(used()-own))/time.Since(began).Seconds())
	}
}
