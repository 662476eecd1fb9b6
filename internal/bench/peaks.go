package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/protocol"
)

// peaks are the most of what was seen while something was measured.
type peaks struct {
	rss     float64 // MB, of the orchestrator
	redis   float64 // MB, all of Redis
	entries float64 // of the queue's stream, not acknowledged
}

// watchPeaks looks every 20 ms until stop is called.
func (s *system) watchPeaks(ctx context.Context, queue string) (stop func() peaks) {
	ctx, cancel := context.WithCancel(ctx)
	var p peaks
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			p.rss = max(p.rss, nowRSS(s.orchestrators[0].pid()))
			p.redis = max(p.redis, s.raw.memory(ctx))
			p.entries = max(p.entries, float64(s.raw.open(ctx, protocol.TaskStream(queue), protocol.GroupWorkers)))
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() peaks { cancel(); wg.Wait(); return p }
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
