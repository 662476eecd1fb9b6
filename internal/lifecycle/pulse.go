package lifecycle

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Pulse tells whether the loops of a program make progress: one that has
// returned, hangs in a call that never answers, or only fails, shows. Its zero
// value, and nil, watch nothing. It is safe for concurrent use.
type Pulse struct {
	mu    sync.Mutex
	beats []*Beat
}

// Beat is the sign of life of one loop, which calls Mark or Fail once a
// round. The methods of a nil Beat do nothing, so that a loop can run unwatched.
type Beat struct {
	name           string
	quiet, failing time.Duration

	mu      sync.Mutex
	last    time.Time // end of the last round, good or bad
	resting bool
	why     string    // of the failure; empty after a good round
	since   time.Time // first failure after the last good round
}

// Watch adds a loop. Check reports it once it has finished no round for longer
// than quiet, or has failed in every round for at least failing; 0 reports
// the first failure. Watch of a nil Pulse returns nil.
func (p *Pulse) Watch(name string, quiet, failing time.Duration) *Beat {
	if p == nil {
		return nil
	}
	b := &Beat{name: name, quiet: quiet, failing: failing, last: time.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beats = append(p.beats, b)
	return b
}

// Check returns nil if all loops make progress, else one joined error for each
// that does not, such as "result: no round finished for 12s".
func (p *Pulse) Check() error {
	p.mu.Lock()
	beats := p.beats
	p.mu.Unlock()
	var errs []error
	for _, b := range beats {
		errs = append(errs, b.check(time.Now()))
	}
	return errors.Join(errs...)
}

// Moving returns nil unless a loop that does not wait on purpose has finished no
// round for longer than limit, and than it may: it hangs, whatever the reason.
// Failed rounds are rounds.
func (p *Pulse) Moving(limit time.Duration) error {
	p.mu.Lock()
	beats := p.beats
	p.mu.Unlock()
	now := time.Now()
	var errs []error
	for _, b := range beats {
		errs = append(errs, b.moving(now, limit))
	}
	return errors.Join(errs...)
}

// Mark notes a good round.
func (b *Beat) Mark() { b.note("") }

// Fail notes a round that failed. why completes "… for 12s" for anyone who asks
// whether the process is ready, so it holds no addresses or data.
func (b *Beat) Fail(why string) { b.note(why) }

// Rest notes that the loop waits on purpose, for however long: until its next
// call it is not late. What failed before has still failed.
func (b *Beat) Rest() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.resting = true
	b.mu.Unlock()
}

// Alive notes progress within a round, or that one begins: the loop is not late.
// What failed before has still failed.
func (b *Beat) Alive() {
	if b == nil {
		return
	}
	b.mu.Lock()
	b.last, b.resting = time.Now(), false
	b.mu.Unlock()
}

func (b *Beat) note(why string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last, b.resting = time.Now(), false
	if why != "" && b.why == "" {
		b.since = b.last
	}
	b.why = why
}

func (b *Beat) check(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if silent := now.Sub(b.last); !b.resting && silent > b.quiet {
		return fmt.Errorf("%s: no round finished for %s", b.name, silent.Round(time.Second))
	}
	if failed := now.Sub(b.since); b.why != "" && failed >= b.failing {
		return fmt.Errorf("%s: %s for %s", b.name, b.why, failed.Round(time.Second))
	}
	return nil
}

func (b *Beat) moving(now time.Time, limit time.Duration) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if silent := now.Sub(b.last); !b.resting && silent > max(limit, b.quiet) {
		return fmt.Errorf("%s: no round finished for %s", b.name, silent.Round(time.Second))
	}
	return nil
}
