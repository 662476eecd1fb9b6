// Package replay settles dead letters: it requeues them as new tasks, keeps
// edits of their payloads, and discards what two people gave up. Bulk work is
// a batch in Postgres: a frozen set, worked off in chunks by whichever
// orchestrator comes first, each chunk and its progress in one transaction, so
// that nothing is done twice whatever is restarted.
package replay

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/metrics"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	Redis *streams.Client
	// CheckPayload checks an edited payload as at enqueue and returns it as it
	// is to be stored; the error is an *protocol.Error.
	CheckPayload func(typ string, payload []byte) ([]byte, error)
	// ProposalTTL is how long a discard waits for its confirmation, DraftTTL
	// how long a dry run can be started.
	ProposalTTL, DraftTTL time.Duration
	// Keep is how long settled dead letters keep their content; 0: for ever.
	Keep time.Duration
	// Wake is told when tasks became due.
	Wake func(at time.Time)
	Log  *slog.Logger
	// Tasks, if set, counts tasks that are made along with those of dead letters.
	Tasks   *metrics.Tasks
	Metrics prometheus.Registerer
}

// Stage settles dead letters. It is safe for concurrent use, and any number of
// replicas may run at once.
type Stage struct {
	o       Options
	now     chan struct{}
	settled *prometheus.CounterVec
	refused prometheus.Counter
}

// New makes a Stage; Run works on batches until its context ends.
func New(o Options) *Stage {
	if o.Tasks == nil {
		o.Tasks = metrics.NewTasks(nil, nil)
	}
	s := &Stage{
		o: o, now: make(chan struct{}, 1),
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_dead_letters_settled_total", Help: "Dead letters requeued, discarded or expired.",
		}, []string{"how"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_dead_letters_skipped_total", Help: "Dead letters that were not as they had to be when they were to be requeued or discarded.",
		}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.settled, s.refused)
	}
	return s
}

const (
	idlePause   = time.Second
	busyPause   = 100 * time.Millisecond
	errorPause  = 500 * time.Millisecond
	expireEvery = time.Minute
)

// Kick makes Run look for work at once.
func (s *Stage) Kick() {
	select {
	case s.now <- struct{}{}:
	default:
	}
}

// Run works on batches, ends what was not confirmed or started in time, and
// expires the content of settled dead letters, until ctx ends.
func (s *Stage) Run(ctx context.Context) error {
	pause := time.Duration(0)
	var expired time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.now:
		case <-time.After(pause):
		}
		err := s.work(ctx)
		if err == nil && time.Since(expired) >= expireEvery {
			if err = s.expire(ctx); err == nil {
				expired = time.Now()
			}
		}
		if err == nil {
			pause, err = s.rest(ctx)
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			s.o.Log.Warn("dead-letter batches wait", "error", err, "retry_in", errorPause)
			pause = errorPause
		}
	}
}

// work does what is to be done now.
func (s *Stage) work(ctx context.Context) error {
	if _, err := s.o.Store.ExpireBatches(ctx); err != nil {
		return err
	}
	for ctx.Err() == nil {
		// A chunk that was begun is finished while stopping: it takes
		// milliseconds, and its transaction is lost otherwise.
		more, err := s.Step(context.WithoutCancel(ctx))
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// rest tells how long there is nothing to do.
func (s *Stage) rest(ctx context.Context) (time.Duration, error) {
	ms, err := s.o.Store.NextBatchWait(ctx)
	switch {
	case err != nil || ms < 0:
		return idlePause, err
	case ms == 0: // another replica is working on it
		return busyPause, nil
	}
	return min(time.Duration(ms*float64(time.Millisecond))+time.Millisecond, idlePause), nil
}

// ErrNobody: the call needs a principal, and its caller is anonymous.
var ErrNobody = errors.New("an anonymous caller can't propose, confirm or reject a discard: send a token (auth.tokens_file; dlq-replay --token-file)")

// ErrSamePerson: who proposed a discard can't confirm it.
var ErrSamePerson = errors.New("a discard must be confirmed by another person than the one who proposed it")

func conflict(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInvalidTransition, field, format, args...)
}

func bad(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
}

// checkReason bounds what goes into events.
func checkReason(reason string, required bool) error {
	switch {
	case len(reason) > 1000:
		return bad("reason", "has %d bytes, at most 1000 are allowed", len(reason))
	case protocol.Text(reason) != reason:
		return bad("reason", "contains characters that can't be stored")
	case required && reason == "":
		return bad("reason", "is required: say why these dead letters are given up")
	}
	return nil
}
