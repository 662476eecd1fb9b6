// Command bench measures the whole system on this machine: how fast it
// accepts, runs and finishes tasks, how long a task waits for its start, and
// what failures cost. A raw go-redis loop over the same streams, without any
// record, runs in the same process and the same minutes; throughput is also
// given as its ratio to that. The failure path is compared with the same work
// that does not fail. Figures are medians of several repetitions, and what is
// compared is measured in turn within each of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// bench is one run.
type bench struct {
	n, latency, reps   int
	steps, burst, dead int
	window             time.Duration
	timers, future     int
	span               time.Duration
	payload            []byte

	// Of the part that is being measured.
	dev     *app.Dev
	client  *client.Client
	raw     *rawStreams
	results []result
	lead    time.Duration // see burstRetries
	filled  bool          // see fill
}

// part is one subject; it is measured on servers of its own.
type part struct {
	name, ratio string
	about       func(*bench) string
	// window is dispatch.window; 0: the default.
	window int
	once   []func(*bench, context.Context) error
}

var parts = []*part{throughput, retries, burst, poison, deadLetters, timers, future}

// throughput is the path of tasks that do not fail.
var throughput = &part{
	name: "throughput", ratio: "raw",
	about: func(b *bench) string {
		return fmt.Sprintf("%d tasks a measurement, payload %d bytes; ratio to the raw go-redis loop of the same run", b.n, len(b.payload))
	},
	window: 200_000, // the measured backlog waits in the stream, as it does in the raw loop
	once: []func(*bench, context.Context) error{
		(*bench).rawEnqueueDrain, (*bench).enqueueDrain, (*bench).rawThrough, (*bench).through, (*bench).single, (*bench).rawLatency, (*bench).startLatency,
	},
}

func main() {
	b := &bench{payload: payload()}
	flag.IntVar(&b.n, "n", 50_000, "tasks of each throughput measurement")
	flag.IntVar(&b.reps, "reps", 3, "repetitions; the median counts")
	flag.IntVar(&b.latency, "latency", 2_500, "tasks of each latency measurement, enqueued at 500/s")
	flag.IntVar(&b.steps, "steps", 200, "steps of each case of retries")
	flag.IntVar(&b.burst, "burst", 100_000, "retries that become due within one second")
	flag.IntVar(&b.dead, "dead", 20_000, "dead letters of each measurement")
	flag.DurationVar(&b.window, "window", 2*time.Second, "how long each case of poison is measured")
	flag.IntVar(&b.timers, "timers", 10_000, "tasks of each measurement of timers")
	flag.DurationVar(&b.span, "span", time.Minute, "within how long these become due")
	flag.IntVar(&b.future, "future", 1_000_000, "tasks that wait while enqueue is measured")
	only := flag.String("only", "", "the parts to measure, separated by commas, of: "+partNames()+"; empty: all")
	profile := flag.String("cpuprofile", "", "write a CPU profile of this process to a file")
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		defer pprof.StopCPUProfile()
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, b, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func partNames() string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	return strings.Join(names, ", ")
}

func run(ctx context.Context, b *bench, only string) error {
	chosen := parts
	if only != "" {
		chosen = nil
		for _, name := range strings.Split(only, ",") {
			i := slices.IndexFunc(parts, func(p *part) bool { return p.name == strings.TrimSpace(name) })
			if i < 0 {
				return fmt.Errorf("-only names the part %q, want any of %s", name, partNames())
			}
			chosen = append(chosen, parts[i])
		}
	}
	if min(b.n, b.reps, b.latency, b.steps, b.burst, b.dead, b.timers, b.future) < 1 || b.window <= 0 || b.span <= 0 {
		return errors.New("-n, -reps, -latency, -steps, -burst, -dead, -timers, -future, -window and -span must be above 0")
	}
	began := time.Now()
	for _, p := range chosen {
		if err := b.measure(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	fmt.Printf("\nmeasured in %s\n", time.Since(began).Round(time.Second))
	return nil
}

// start starts a system; window is dispatch.window, 0: the default. stop ends it.
func (b *bench) start(ctx context.Context, window int) (stop func() error, err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg := config.DefaultOrchestrator()
	cfg.Server.Listen = "127.0.0.1:0"
	if window > 0 {
		cfg.Dispatch.Window = window
	}
	wcfg := config.DefaultWorker()
	wcfg.Handlers = map[string]config.Handler{"unused": {Kind: "echo"}}
	wcfg.Queues = []string{"unused"}
	b.results, b.lead, b.filled = nil, 0, false
	if b.dev, err = app.StartDev(ctx, app.DevOptions{Orchestrator: cfg, Worker: wcfg, Log: log}); err != nil {
		return nil, err
	}
	dctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- b.dev.Run(dctx) }()
	stop = func() error {
		if b.raw != nil {
			b.raw.close()
		}
		if b.client != nil {
			_ = b.client.Close()
		}
		cancel()
		return errors.Join(<-done, b.dev.Close())
	}
	b.client, b.raw = nil, nil
	if b.client, err = client.New("http://" + b.dev.Orchestrator.Addr()); err == nil {
		b.raw, err = newRaw(b.dev.RedisURL, b.payload)
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// measure starts a system, measures the part in each repetition, and reports.
func (b *bench) measure(ctx context.Context, p *part) (err error) {
	stop, err := b.start(ctx, p.window)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for i := range b.reps {
		fmt.Fprintf(os.Stderr, "%s: repetition %d of %d\n", p.name, i+1, b.reps)
		for _, step := range p.once {
			if err := step(b, ctx); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return b.report(os.Stdout, p)
}

func payload() []byte {
	b := []byte(`{"n":1,"pad":"`)
	for len(b) < 198 {
		b = append(b, 'x')
	}
	return append(b, `"}`...)
}

// concurrency is that of workers, unless a measurement is about it.
const concurrency = 100

// work runs a worker until stop is called.
func (b *bench) work(ctx context.Context, queue string, slots int, handlers map[string]task.Handler) (stop func() error, err error) {
	w, err := worker.New(worker.Options{
		RedisURL: b.dev.RedisURL, Queues: []string{queue}, Concurrency: slots, IgnoreSignals: true,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	for typ, h := range handlers {
		w.HandleRaw(typ, h)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error { cancel(); return <-done }, nil
}

// noopWorker runs a worker whose handler only counts, until stop is called.
func (b *bench) noopWorker(ctx context.Context, queue string, hit func()) (stop func() error, err error) {
	return b.work(ctx, queue, concurrency, map[string]task.Handler{noop.Name(): counting(hit)})
}

// elapsed turns a count and a start into a rate.
func elapsed(n int, since time.Time) float64 { return float64(n) / time.Since(since).Seconds() }
