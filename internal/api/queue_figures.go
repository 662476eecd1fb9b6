package api

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const (
	// figuresAge is how long figures are good for, so that what they cost depends
	// neither on how many ask nor on how many queues there are.
	figuresAge = 2 * time.Second
	// What one look reads at most, of the deployment: live tasks of one state, and
	// tasks or events of the rates' window.
	maxOfState  = 5_000
	maxRecent   = 20_000
	rateWindow  = time.Minute
	lookTimeout = 10 * time.Second
)

// queueFigures keeps the last look at all queues.
type queueFigures struct {
	store *store.Store

	mu   sync.Mutex // held while looking: the others wait for the same look
	at   time.Time
	last *allQueues
}

// allQueues is what one look found.
type allQueues struct {
	queues map[string]*queueNumbers
	window time.Duration // of the rates
	cut    bool          // there may be more tasks than states have
}

// queueNumbers is about one queue; rates are tasks a second.
type queueNumbers struct {
	states                                 []*penstockv1.StateCount
	enqueued, succeeded, failed, cancelled float64
}

// get returns the figures, at most figuresAge old.
func (f *queueFigures) get(ctx context.Context) (*allQueues, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != nil && time.Since(f.at) < figuresAge {
		return f.last, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	all, err := f.look(ctx)
	if err != nil {
		return nil, err
	}
	f.at, f.last = time.Now(), all
	return all, nil
}

func (f *queueFigures) look(ctx context.Context) (*allQueues, error) {
	all := &allQueues{queues: map[string]*queueNumbers{}, window: rateWindow}
	of := func(queue string) *queueNumbers {
		q := all.queues[queue]
		if q == nil {
			q = &queueNumbers{}
			all.queues[queue] = q
		}
		return q
	}
	states, err := f.store.QueueStates(ctx, maxOfState)
	if err != nil {
		return nil, err
	}
	for _, s := range states {
		q := of(s.Queue)
		q.states = append(q.states, &penstockv1.StateCount{State: s.State, Count: s.Tasks})
		all.cut = all.cut || s.Cut
	}
	var enqueued []*dbsqlc.RecentlyEnqueuedRow
	var ended []*dbsqlc.RecentlyEndedRow
	err = f.store.Look(ctx, func(q *dbsqlc.Queries) (err error) {
		if enqueued, err = q.RecentlyEnqueued(ctx, rateWindow.Milliseconds(), maxRecent); err != nil {
			return err
		}
		ended, err = q.RecentlyEnded(ctx, maxRecent, rateWindow.Milliseconds())
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, r := range enqueued {
		of(r.Queue).enqueued = all.rate(r.Tasks, r.CoveredMs)
	}
	for _, r := range ended {
		q, rate := of(r.Queue), all.rate(r.Tasks, r.CoveredMs)
		switch r.Type {
		case "task.succeeded":
			q.succeeded = rate
		case "task.failed":
			q.failed = rate
		default:
			q.cancelled = rate
		}
	}
	for _, q := range all.queues {
		slices.SortFunc(q.states, func(a, b *penstockv1.StateCount) int { return strings.Compare(a.State, b.State) })
	}
	return all, nil
}

// rate is so many a second; it shortens the window to what was covered.
func (a *allQueues) rate(tasks, coveredMS int64) float64 {
	covered := time.Duration(coveredMS) * time.Millisecond
	a.window = min(a.window, covered)
	return float64(tasks) / covered.Seconds()
}
