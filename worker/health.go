package worker

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/penstock-dev/penstock/internal/health"
)

const (
	// moveLimit is how long a loop may take for a round before /livez says that
	// the process hangs. Calls of Redis give up far sooner.
	moveLimit = time.Minute
	// maxScrapes bounds how many requests of /metrics are answered at a time.
	maxScrapes = 4
)

// serveHealth answers probes at Options.HealthListen, if there is one, until stop
// is called.
func (w *Worker) serveHealth() (stop func(), err error) {
	if w.o.HealthListen == "" {
		return func() {}, nil
	}
	host, port, err := net.SplitHostPort(w.o.HealthListen)
	if err != nil {
		return nil, fmt.Errorf("worker: health_listen: %w", err)
	}
	if host == "" {
		host = "127.0.0.1" // who asks for more names it
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("worker: health_listen: %w", err)
	}
	server := &http.Server{
		Handler: w.healthHandler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(w.o.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			w.o.Log.Error("probes and metrics are not answered any more", "addr", l.Addr(), "error", err)
		}
	}()
	w.o.Log.Info("answering probes and metrics", "addr", l.Addr())
	return func() { _ = server.Close(); <-served }, nil
}

// healthHandler answers /livez, /readyz and /metrics. None of them asks Redis.
func (w *Worker) healthHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(rw http.ResponseWriter, _ *http.Request) { health.Live(rw, w.pulse.Moving(w.moveLimit)) })
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		stuck := w.Stuck()
		health.Ready(rw, w.Check(), &stuck)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(w.registry(), promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes}))
	return mux
}

// registry has this worker's metrics, and those of the process.
func (w *Worker) registry() *prometheus.Registry {
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), w.counts.renewals, w.counts.lost,
		gauge("penstock_worker_slots", "The most tasks that run at once.", func() int { return w.o.Concurrency }),
		gauge("penstock_worker_running", "Tasks that run now.", func() int { running, _ := w.census(); return running }),
		gauge("penstock_worker_stuck_handlers", "Handlers that ignore the end of their context; each holds a slot.", w.Stuck),
		gauge("penstock_worker_outcomes_pending", "Tasks that have ended and whose outcome is not in Redis yet.", func() int { _, ended := w.census(); return ended }),
	)
	return r
}

// census counts the tasks that run, and those whose outcome Redis has not taken.
func (w *Worker) census() (running, ended int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.running {
		x.mu.Lock()
		switch {
		case x.concluded:
			ended++
		case !x.started.IsZero() && !x.lost:
			running++
		}
		x.mu.Unlock()
	}
	return running, ended
}

// counts are what a worker counts.
type counts struct {
	renewals *prometheus.CounterVec
	lost     prometheus.Counter
}

func newCounts() counts {
	c := counts{
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_worker_lease_renewals_total", Help: "Rounds in which the leases of all tasks in hand were renewed, by whether that worked.",
		}, []string{"result"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_worker_leases_lost_total", Help: "Tasks in hand that were taken over by others.",
		}),
	}
	for _, result := range []string{"renewed", "failed"} {
		c.renewals.WithLabelValues(result)
	}
	return c
}
