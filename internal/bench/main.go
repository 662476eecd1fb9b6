// Command bench measures the whole system on this machine: how fast it
// accepts, runs and finishes tasks, and how long a task waits for its start.
// A raw go-redis loop over the same streams, without any record, runs in the
// same process and the same minutes; every figure is also given as its ratio
// to that. Figures are medians of several repetitions.
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
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/worker"
)

// bench is one run.
type bench struct {
	n, reps, latency int
	payload          []byte
	dev              *app.Dev
	client           *client.Client
	raw              *rawStreams
	results          []result
}

// result is one measured figure; Base names the raw figure it compares with.
type result struct {
	name, unit string
	values     []float64
	base       string
}

func (r *result) median() float64 {
	v := slices.Clone(r.values)
	slices.Sort(v)
	return v[len(v)/2]
}

func main() {
	n := flag.Int("n", 50_000, "tasks of each throughput measurement")
	reps := flag.Int("reps", 3, "repetitions; the median counts")
	latency := flag.Int("latency", 2_500, "tasks of each latency measurement, enqueued at 500/s")
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
	if err := run(ctx, &bench{n: *n, reps: *reps, latency: *latency}); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, b *bench) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg := config.DefaultOrchestrator()
	cfg.Server.Listen = "127.0.0.1:0"
	cfg.Dispatch.Window = 200_000 // the measured backlog waits in the stream, as it does in the raw loop
	wcfg := config.DefaultWorker()
	wcfg.Handlers = map[string]config.Handler{"unused": {Kind: "echo"}}
	wcfg.Queues = []string{"unused"}
	b.payload = payload()
	if b.dev, err = app.StartDev(ctx, app.DevOptions{Orchestrator: cfg, Worker: wcfg, Log: log}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.dev.Close()) }()
	dctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- b.dev.Run(dctx) }()
	defer func() { stop(); err = errors.Join(err, <-done) }()
	if b.client, err = client.New("http://" + b.dev.Orchestrator.Addr()); err != nil {
		return err
	}
	defer func() { _ = b.client.Close() }()
	if b.raw, err = newRaw(b.dev.RedisURL, b.payload); err != nil {
		return err
	}
	defer b.raw.close()
	for i := range b.reps {
		fmt.Fprintf(os.Stderr, "repetition %d of %d\n", i+1, b.reps)
		if err := b.once(ctx); err != nil {
			return err
		}
	}
	return b.report()
}

// once measures everything one time, raw and system in turn.
func (b *bench) once(ctx context.Context) error {
	steps := []func(context.Context) error{
		b.rawEnqueueDrain, b.enqueueDrain, b.rawThrough, b.through, b.single, b.rawLatency, b.startLatency,
	}
	for _, s := range steps {
		if err := s(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// add notes one value of a figure.
func (b *bench) add(name, unit, base string, v float64) {
	for i := range b.results {
		if b.results[i].name == name {
			b.results[i].values = append(b.results[i].values, v)
			return
		}
	}
	b.results = append(b.results, result{name: name, unit: unit, base: base, values: []float64{v}})
}

func (b *bench) report() error {
	fmt.Printf("\n%d tasks a measurement, payload %d bytes, median of %d; ratio to the raw go-redis loop of the same run.\n\n", b.n, len(b.payload), b.reps)
	byName := map[string]*result{}
	for i := range b.results {
		byName[b.results[i].name] = &b.results[i]
	}
	tw := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(tw, "measurement\tmedian\tmin\tmax\tunit\tratio to raw\t")
	for i := range b.results {
		r := &b.results[i]
		ratio := "-"
		if base := byName[r.base]; base != nil {
			ratio = fmt.Sprintf("%.2f", r.median()/base.median())
		}
		_, _ = fmt.Fprintf(tw, "%s\t%.*f\t%.*f\t%.*f\t%s\t%s\t\n", r.name, digits(r), r.median(), digits(r), slices.Min(r.values), digits(r), slices.Max(r.values), r.unit, ratio)
	}
	return tw.Flush()
}

func digits(r *result) int {
	if r.unit == "ms" {
		return 2
	}
	return 0
}

func payload() []byte {
	b := []byte(`{"n":1,"pad":"`)
	for len(b) < 198 {
		b = append(b, 'x')
	}
	return append(b, `"}`...)
}

// noopWorker runs a worker whose handler only counts, until stop is called.
func (b *bench) noopWorker(ctx context.Context, queue string, hit func()) (stop func() error, err error) {
	w, err := worker.New(worker.Options{
		RedisURL: b.dev.RedisURL, Queues: []string{queue}, Concurrency: concurrency, IgnoreSignals: true,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	w.HandleRaw(noop.Name(), counting(hit))
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error { cancel(); return <-done }, nil
}

const concurrency = 100

// elapsed turns a count and a start into a rate.
func elapsed(n int, since time.Time) float64 { return float64(n) / time.Since(since).Seconds() }
