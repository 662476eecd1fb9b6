package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/nearest"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const (
	// maxDepth is how many tasks of a queue are counted in Postgres, of each kind.
	maxDepth = 10_000
	// headEntries is how many of a stream's undelivered entries are looked at for
	// the one that waits longest: a cancelled task's may be among them.
	headEntries      = 4
	defaultQueuePage = 100
	maxQueuePage     = 200
	maxQueueName     = 64
)

// GetQueue implements the RPC.
func (s *Service) GetQueue(ctx context.Context, req *connect.Request[penstockv1.GetQueueRequest]) (*connect.Response[penstockv1.GetQueueResponse], error) {
	queue := req.Msg.Queue
	if queue == "" {
		queue = protocol.DefaultQueue
	}
	if err := checkFilters(filter{"queue", queue}); err != nil {
		return nil, err
	}
	out, found, err := s.describeQueues(ctx, []string{queue})
	if err != nil {
		return nil, err
	}
	if !found[queue] && queue != protocol.DefaultQueue {
		known, err := s.knownQueues(ctx)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(known, queue) {
			return nil, protocol.Errorf(protocol.CodeNotFound, "queue", "%s", unknownQueue(queue, known))
		}
	}
	return connect.NewResponse(out[0]), nil
}

// unknownQueue says which queues may have been meant.
func unknownQueue(queue string, known []string) string {
	text := fmt.Sprintf("no queue %q: nothing was enqueued to it lately, and no worker that sends heartbeats serves it", clip(queue))
	if near := nearest.Among(queue, known, 3); len(near) > 0 {
		return text + "; did you mean " + strings.Join(near, " or ") + "?"
	}
	const some = 5
	if len(known) > some {
		return fmt.Sprintf("%s; there are %s and %d more", text, strings.Join(known[:some], ", "), len(known)-some)
	}
	return text + "; there are " + strings.Join(known, ", ")
}

// ListQueues implements the RPC.
func (s *Service) ListQueues(ctx context.Context, req *connect.Request[penstockv1.ListQueuesRequest]) (*connect.Response[penstockv1.ListQueuesResponse], error) {
	size := int(req.Msg.PageSize)
	if size < 0 || size > maxQueuePage {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "page_size", "is %d, want 1 to %d", size, maxQueuePage)
	}
	if size == 0 {
		size = defaultQueuePage
	}
	after, err := nameAfter(req.Msg)
	if err != nil {
		return nil, err
	}
	names, err := s.knownQueues(ctx)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(q string) bool { return q <= after })
	out := &penstockv1.ListQueuesResponse{}
	if len(names) > size {
		names = names[:size]
		out.NextPageToken = tokenFor(req.Msg, cursor{Key: []string{names[size-1]}})
	}
	if len(names) > 0 {
		if out.Queues, _, err = s.describeQueues(ctx, names); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(out), nil
}

// knownQueues lists the queues that there are, in order.
func (s *Service) knownQueues(ctx context.Context) ([]string, error) {
	known := map[string]bool{protocol.DefaultQueue: true}
	names, err := s.redis.TaskStreams(ctx, protocol.StreamTask)
	if err != nil {
		return nil, rpc.Unavailable(err)
	}
	for _, name := range names {
		if q, ok := protocol.QueueOf(name); ok && q != "" && len(q) <= maxQueueName && utf8.ValidString(q) && checkFilters(filter{"queue", q}) == nil {
			known[q] = true
		}
	}
	due, err := s.store.DueQueues(ctx)
	if err != nil {
		return nil, failure(err)
	}
	for _, q := range due {
		known[q.Queue] = true
	}
	workers, err := s.store.ListWorkers(ctx, nil, maxWorkers)
	if err != nil {
		return nil, failure(err)
	}
	for _, w := range workers {
		for _, q := range w.Queues {
			known[q] = true
		}
	}
	figures, err := s.queues.get(ctx)
	if err != nil {
		return nil, failure(err)
	}
	for q := range figures.queues {
		known[q] = true
	}
	delete(known, protocol.QueueInternal)
	return slices.Sorted(maps.Keys(known)), nil
}

// describeQueues tells how each queue stands, in the order of queues, and which
// of them have a stream or a task.
func (s *Service) describeQueues(ctx context.Context, queues []string) ([]*penstockv1.GetQueueResponse, map[string]bool, error) {
	figures, err := s.queues.get(ctx)
	if err != nil {
		return nil, nil, failure(err)
	}
	depths, err := s.store.QueueDepths(ctx, maxDepth, queues)
	if err != nil {
		return nil, nil, failure(err)
	}
	byQueue, found := map[string]*penstockv1.GetQueueResponse{}, map[string]bool{}
	for _, d := range depths {
		q := &penstockv1.GetQueueResponse{
			Queue: d.Queue, Stream: protocol.TaskStream(d.Queue), Backlog: d.Due, Scheduled: d.Scheduled, OldestWaitingMs: d.OldestMs,
			AtLeast: figures.cut || d.Due == maxDepth || d.Scheduled == maxDepth, Rates: &penstockv1.QueueRates{WindowMs: figures.window.Milliseconds()},
		}
		if f := figures.queues[d.Queue]; f != nil {
			q.States = f.states
			q.Rates.Enqueued, q.Rates.Succeeded, q.Rates.Failed, q.Rates.Cancelled = f.enqueued, f.succeeded, f.failed, f.cancelled
			found[d.Queue] = true
		}
		found[d.Queue] = found[d.Queue] || d.Due+d.Scheduled > 0
		byQueue[d.Queue] = q
	}
	heads := map[string][]streams.Entry{}
	for _, queue := range queues {
		q := byQueue[queue]
		info, err := s.redis.Info(ctx, q.Stream, protocol.GroupWorkers)
		if errors.Is(err, streams.ErrNoGroup) {
			continue
		}
		if err != nil {
			return nil, nil, rpc.Unavailable(err)
		}
		found[queue] = true
		q.Undelivered, q.Pending, q.Length = info.Undelivered, info.Pending, info.Length
		if info.Undelivered > 0 {
			if heads[queue], err = s.redis.Head(ctx, q.Stream, info.LastDelivered, headEntries); err != nil {
				return nil, nil, rpc.Unavailable(err)
			}
		}
	}
	if err := s.ageQueues(ctx, byQueue, heads); err != nil {
		return nil, nil, err
	}
	out := make([]*penstockv1.GetQueueResponse, len(queues))
	for i, queue := range queues {
		out[i] = byQueue[queue]
	}
	return out, found, nil
}

// ageQueues raises oldest_waiting_ms to what the first undelivered entries say.
// Those of tasks that do not wait any more say nothing; if none of the first
// does, it is the time since the last of them was added that counts.
func (s *Service) ageQueues(ctx context.Context, queues map[string]*penstockv1.GetQueueResponse, heads map[string][]streams.Entry) error {
	type head struct {
		queue    string
		delivery int64
	}
	of, ids := map[pgid.ID]head{}, []pgid.ID{}
	for queue, entries := range heads {
		for _, e := range entries {
			if t, err := protocol.DecodeTask(e.Values); err == nil {
				of[pgid.ID(t.ID)] = head{queue, t.Delivery}
				ids = append(ids, pgid.ID(t.ID))
			}
		}
	}
	if len(heads) == 0 {
		return nil
	}
	rows, err := s.store.WaitingFor(ctx, ids)
	if err != nil {
		return failure(err)
	}
	known := map[string]bool{}
	for _, r := range rows {
		if h := of[r.ID]; h.delivery == r.Delivery {
			q := queues[h.queue]
			q.OldestWaitingMs, known[h.queue] = max(q.OldestWaitingMs, r.Ms), true
		}
	}
	now := time.Time{}
	for queue, entries := range heads {
		if known[queue] || len(entries) == 0 {
			continue
		}
		if now.IsZero() {
			if now, err = s.redis.Now(ctx); err != nil {
				return rpc.Unavailable(err)
			}
		}
		q := queues[queue]
		q.OldestWaitingMs = max(q.OldestWaitingMs, now.Sub(streams.TimeOf(entries[len(entries)-1].ID)).Milliseconds())
	}
	return nil
}
