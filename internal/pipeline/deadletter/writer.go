package deadletter

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// writer adds dead letters of tasks to stream:dlq, each once as long as the process
// lives, however often its reply or the transaction around it is lost. It is not
// safe for concurrent use.
type writer struct {
	redis *streams.Client
	// written are entries that are there, of letters not known to be recorded.
	written map[protocol.ID]string
	// unsure are letters, and their tasks, whose entry may be there, after tail.
	unsure map[protocol.ID]protocol.ID
	tail   string // the newest entry when nothing was unsure; "": not known yet
}

// maxKept bounds what a writer remembers. What is forgotten is written once more
// at worst, under the same dlq_id.
const maxKept = 10_000

func newWriter(redis *streams.Client) writer {
	return writer{redis: redis, written: map[protocol.ID]string{}, unsure: map[protocol.ID]protocol.ID{}}
}

// write returns the ids of the letters' entries.
func (w *writer) write(ctx context.Context, letters []*protocol.DeadLetter) (entries []string, err error) {
	if w.tail == "" {
		if w.tail, err = w.redis.LastID(ctx, protocol.StreamDLQ); err != nil {
			return nil, err
		}
	}
	if err := w.find(ctx); err != nil {
		return nil, err
	}
	var left []*protocol.DeadLetter
	var values [][]any
	for _, l := range letters {
		if w.written[l.DLQID] == "" {
			left, values = append(left, l), append(values, l.Values())
		}
	}
	var failed error
	for i, a := range w.redis.Append(ctx, protocol.StreamDLQ, values) {
		if a.Err == nil {
			w.written[left[i].DLQID] = a.ID
			if len(w.unsure) == 0 {
				w.tail = a.ID
			}
			continue
		}
		failed = a.Err
		if streams.Ambiguous(a.Err) {
			w.unsure[left[i].DLQID] = left[i].ID
		}
	}
	if failed != nil {
		return nil, failed
	}
	for _, l := range letters {
		entries = append(entries, w.written[l.DLQID])
	}
	return entries, nil
}

// find looks for letters that an append without a reply may have added.
func (w *writer) find(ctx context.Context) error {
	if len(w.unsure) == 0 {
		return nil
	}
	last := w.tail
	err := w.redis.Range(ctx, protocol.StreamDLQ, w.tail, func(e streams.Entry) bool {
		last = e.ID
		text, _ := e.Values[protocol.FieldDLQID].(string)
		// One with another task is a stranger's.
		if id, err := protocol.ParseID(text); err == nil && !w.unsure[id].IsZero() && e.Values[protocol.FieldID] == w.unsure[id].String() {
			w.written[id] = e.ID
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("look for dead letters in %s: %w", protocol.StreamDLQ, err)
	}
	clear(w.unsure)
	w.tail = last
	return nil
}

// recorded tells that letters are recorded, with their entries.
func (w *writer) recorded(ids []protocol.ID) {
	for _, id := range ids {
		delete(w.written, id)
	}
	if len(w.written) > maxKept {
		clear(w.written)
	}
}
