package result

import (
	"context"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

const (
	// gather is the least time between two reads while outcomes come one by one.
	// Nobody waits for an outcome as they do for a start, and a transaction costs
	// several times as much as what an outcome adds to it.
	gather = 5 * time.Millisecond
	// few are so many outcomes that more may be gathered.
	few = 32
)

// turn lets consumers read one after the other, so that what comes within gather
// is one batch, and not one for each consumer. While one applies what it has read
// the next may read.
type turn struct {
	mu   sync.Mutex
	next time.Time // when the next read of new outcomes may begin
}

// read reads outcomes; new ones when it is the consumer's turn.
func (s *Stage) read(ctx context.Context, consumer, from string, count int) ([]streams.Entry, error) {
	// What was read is finished, though ctx ends.
	work := context.WithoutCancel(ctx)
	if from == streams.Fresh {
		s.turn.mu.Lock()
		defer s.turn.mu.Unlock()
		if wait := time.Until(s.turn.next); wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
		if ctx.Err() != nil {
			return nil, nil
		}
	}
	es, err := s.o.Redis.Read(work, protocol.StreamResult, protocol.GroupOrchestrators, consumer, from, count)
	if from == streams.Fresh && len(es) > 0 {
		s.turn.next = time.Time{}
		if len(es) < few {
			s.turn.next = time.Now().Add(gather)
		}
	}
	return es, err
}
