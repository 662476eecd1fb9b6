// Package metrics counts, by queue and type, what the pipeline has committed, and
// measures what waits.
package metrics

import (
	"slices"
	"sync"
)

// Other stands for all queues or types that have no label of their own.
const Other = "other"

const (
	// MaxQueues is the most queues that have a label of their own; metrics.queues takes as many.
	MaxQueues = 50
	// maxPairs bounds the pairs of queue and type that have labels of their own:
	// those that come first.
	maxPairs = 500
)

// Labels are the queues and types that metrics name; all others are Other, so that
// callers can't make series. A nil *Labels names none. It is safe for concurrent use.
type Labels struct {
	queues []string
	types  map[string]bool

	mu    sync.RWMutex
	pairs map[pair]bool
}

type pair struct{ queue, typ string }

// NewLabels makes Labels of the first MaxQueues queues, and types.
func NewLabels(queues, types []string) *Labels {
	l := &Labels{types: map[string]bool{}, pairs: map[pair]bool{}}
	for _, q := range queues {
		if len(l.queues) < MaxQueues && !slices.Contains(l.queues, q) {
			l.queues = append(l.queues, q)
		}
	}
	for _, t := range types {
		l.types[t] = true
	}
	return l
}

// Queues lists the queues that have a label.
func (l *Labels) Queues() []string {
	if l == nil {
		return nil
	}
	return slices.Clone(l.queues)
}

// Of returns the values of the labels queue and type for a task.
func (l *Labels) Of(queue, typ string) (queueLabel, typeLabel string) {
	if l == nil {
		return Other, Other
	}
	if !slices.Contains(l.queues, queue) {
		queue = Other
	}
	if !l.types[typ] || !l.admit(pair{queue, typ}) {
		typ = Other
	}
	return queue, typ
}

// admit reports whether the pair is among the first maxPairs.
func (l *Labels) admit(p pair) bool {
	l.mu.RLock()
	known, full := l.pairs[p], len(l.pairs) >= maxPairs
	l.mu.RUnlock()
	if known || full {
		return known
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pairs) < maxPairs {
		l.pairs[p] = true
	}
	return l.pairs[p]
}
