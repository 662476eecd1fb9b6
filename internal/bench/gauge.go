package main

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/protocol"
)

// peaks are the most of what was seen while something was measured.
type peaks struct {
	heap, rss float64 // MB, of this process
	redis     float64 // MB, all of Redis
	entries   float64 // of the queue's stream, not acknowledged
}

// watchPeaks looks every 20 ms until stop is called.
func (b *bench) watchPeaks(ctx context.Context, queue string) (stop func() peaks) {
	runtime.GC() // what was needed before is not counted
	ctx, cancel := context.WithCancel(ctx)
	var p peaks
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			p.heap, p.rss = max(p.heap, liveHeap()), max(p.rss, resident())
			p.redis = max(p.redis, b.raw.memory(ctx))
			p.entries = max(p.entries, float64(b.raw.open(ctx, protocol.TaskStream(queue), protocol.GroupWorkers)))
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() peaks { cancel(); wg.Wait(); return p }
}

// liveHeap is what the last collection found in use, in MB.
func liveHeap() float64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return float64(s[0].Value.Uint64()) / 1e6
}

// resident is this process' RSS in MB; 0 where there is no /proc.
func resident() float64 {
	b, err := os.ReadFile("/proc/self/statm")
	f := bytes.Fields(b)
	if err != nil || len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(string(f[1]), 64)
	return pages * float64(os.Getpagesize()) / 1e6
}

// memory is Redis' used memory in MB; 0 if it does not answer.
func (r *rawStreams) memory(ctx context.Context) float64 {
	n, _ := strconv.ParseFloat(r.c.InfoMap(ctx, "memory").Item("Memory", "used_memory"), 64)
	return n / 1e6
}

// open is how many entries of a stream its group has not acknowledged; 0 if
// there is no such stream.
func (r *rawStreams) open(ctx context.Context, stream, group string) int64 {
	groups, _ := r.c.XInfoGroups(ctx, stream).Result()
	for _, g := range groups {
		if g.Name == group {
			return max(g.Lag, 0) + g.Pending
		}
	}
	return 0
}
