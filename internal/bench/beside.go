package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-dev/penstock/client"
)

// beside is what one client's batches do to the single tasks of another.
var beside = &part{
	name: "beside", group: "throughput", ratio: "alone", fresh: true,
	about: func(b *bench) string {
		return fmt.Sprintf(`start latency of single tasks at %d/s for %s: alone, and while a client in another process enqueues batches as fast as it can into a queue that
nobody works on. Target: the p99 beside batches is within 5 times that alone`, besideRate, b.latency)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).besideBatches},
}

// besideRate is how many single tasks a second are enqueued.
const besideRate = 200

func (b *bench) besideBatches(ctx context.Context, s *system) error {
	alone, _, err := s.startLatency(ctx, "alone", besideRate, b.latency)
	if err != nil {
		return err
	}
	stop, err := startFlood(s.orchestrators[0].url, newQueue())
	if err != nil {
		return err
	}
	began := time.Now()
	mixed, _, err := s.startLatency(ctx, "beside batches", besideRate, b.latency)
	n, stopped := stop()
	rate := elapsed(n, began)
	if err := errors.Join(err, stopped); err != nil {
		return err
	}
	for _, x := range []struct {
		name string
		l    *latencies
	}{{"alone", alone}, {"beside batches", mixed}} {
		p50, p99 := x.l.percentiles()
		b.add(x.name+": p50", "ms", "alone: p50", p50)
		b.add(x.name+": p99 (target: ratio ≤ 5)", "ms", "alone: p99 (target: ratio ≤ 5)", p99)
	}
	b.add("the batches meanwhile", "tasks/s", "", rate)
	return nil
}

// errNoFlood: the arguments are not those of the client that enqueues batches.
var errNoFlood = errors.New("no flood")

// floodArg is the first argument of this program as that client.
const floodArg = "flood"

// startFlood starts this program as a client that enqueues batches. stop ends it
// and returns how many tasks it enqueued.
func startFlood(url, queue string) (stop func() (int, error), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, floodArg, url, queue)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}
	var out, failed strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &failed
	p, err := spawn(cmd)
	if err != nil {
		return nil, fmt.Errorf("start the client that enqueues batches: %w", err)
	}
	return func() (int, error) {
		_ = p.proc.Signal(syscall.SIGTERM)
		<-p.done
		n, err := strconv.Atoi(strings.TrimSpace(out.String()))
		if p.err != nil || err != nil {
			return 0, fmt.Errorf("the client that enqueues batches: %w: %s", errors.Join(p.err, err), failed.String())
		}
		return n, nil
	}, nil
}

// mainFlood is that client's process: it enqueues until ctx ends, and prints how
// many tasks.
func mainFlood(ctx context.Context, args []string) error {
	if len(args) != 4 || args[1] != floodArg {
		return errNoFlood
	}
	c, err := client.New(args[2])
	if err != nil {
		return err
	}
	const batch = 2000
	s, n := &system{client: c, clients: []*client.Client{c}}, 0
	for ctx.Err() == nil {
		if _, err := s.enqueueAll(ctx, batch, noops(payloadOf(smallPayload), args[3])); err == nil {
			n += batch
		} else if ctx.Err() == nil {
			return errors.Join(err, c.Close())
		}
	}
	fmt.Println(n)
	return c.Close()
}
