// Package internaljobs is the run interface for development and acceptance: it
// makes jobs, and moves each through the states when it is told to, by the same
// decisions that outcomes of workers go through.
//
//	POST /api/v1/internal/jobs                                  makes a job
//	GET  /api/v1/internal/jobs/{job_id}                         shows it
//	POST /api/v1/internal/jobs/{job_id}/run                     it succeeds
//	POST /api/v1/internal/jobs/{job_id}/run?transient_fail=true it is retried, the 4th time given up
//	POST /api/v1/internal/jobs/{job_id}/run?force_fail=true     it is given up
//
// A job is a task of the queue protocol.QueueInternal, which nothing dispatches,
// times out or reconciles. Replies use the words of protocol.VocabularyB2.
package internaljobs

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

// Prefix is where a Service is to be mounted.
const Prefix = "/api/v1/internal/"

// Actor is the actor of the events that calls cause.
const Actor = "internal-jobs"

// Enqueuer accepts tasks.
type Enqueuer interface {
	Enqueue(ctx context.Context, r *enqueue.Request) (enqueue.Result, error)
}

// Waits tells when a task may have become terminal.
type Waits interface {
	Wait(ctx context.Context, id protocol.ID)
}

// Options are the settings of a Service.
type Options struct {
	Enqueue Enqueuer
	Store   *store.Store
	Waits   Waits
	Env     protocol.Env // Seed; Now is Postgres'
	// Dead is told that a job was given up.
	Dead func()
	// Judged, if set, is told which outcomes were applied or refused, as by the
	// stage that applies those of workers.
	Judged  func(ctx context.Context, judged iter.Seq2[*protocol.Outcome, string])
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Service answers the calls. It is safe for concurrent use.
type Service struct {
	o    Options
	runs *prometheus.CounterVec
	wait time.Duration // deadLetterWait; shorter in tests
}

// New makes a Service.
func New(o Options) *Service {
	s := &Service{o: o, wait: deadLetterWait, runs: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "penstock_internal_job_runs_total", Help: "Calls that run a job by hand, by what was asked for and what became of it.",
	}, []string{"run", "verdict"})}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.runs)
	}
	return s
}

// ServeHTTP implements http.Handler.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rest, ok := strings.CutPrefix(r.URL.Path, Prefix+"jobs")
	parts := strings.Split(rest, "/") // "" before the first slash
	var err error
	switch {
	case !ok || parts[0] != "":
		rpc.Refuse(w, http.StatusNotFound, "there is nothing at this path")
	case len(parts) == 1:
		err = on(w, r, http.MethodPost, func() error { return s.create(w, r) })
	case len(parts) == 2:
		err = on(w, r, http.MethodGet, func() error { return s.get(w, r, parts[1]) })
	case len(parts) == 3 && parts[2] == "run":
		err = on(w, r, http.MethodPost, func() error { return s.run(w, r, parts[1]) })
	default:
		rpc.Refuse(w, http.StatusNotFound, "there is nothing at this path")
	}
	if err == nil {
		return
	}
	err = failure(err)
	if rpc.InfoOf(rpc.ToConnect(err)).GetCode() == "" && r.Context().Err() == nil {
		s.o.Log.Warn("internal job call failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	rpc.WriteProblem(w, err)
}

// on calls fn if the request's method is the path's.
func on(w http.ResponseWriter, r *http.Request, method string, fn func() error) error {
	if r.Method != method {
		w.Header().Set("Allow", method)
		rpc.Refuse(w, http.StatusMethodNotAllowed, "the path does not take "+r.Method)
		return nil
	}
	return fn()
}

// failure gives an error its place in the RPC's error model.
func failure(err error) error {
	switch {
	case protocol.CodeOf(err) != "", errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, batch.ErrFull):
		return rpc.Overloaded(err)
	case errors.Is(err, batch.ErrClosed), store.IsUnavailable(err), errors.Is(err, enqueue.ErrGone):
		return rpc.Unavailable(err)
	}
	return err
}

// notFound is the error of a job_id that is none.
func notFound(jobID string) error {
	return protocol.Errorf(protocol.CodeNotFound, "job_id", "no job %q was made through this interface", clip(jobID))
}

// bad is the error of a request that is wrong in one field.
func bad(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
}

// clip shortens a caller's text for an error.
func clip(s string) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return strings.ToValidUTF8(s, "")
}
