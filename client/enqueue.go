package client

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/batch"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// EnqueueTask enqueues one task; calls made at the same time share a round
// trip. Without an error the task is committed. The error is a
// *protocol.Error if the request was refused (TASK_INPUT_INVALID,
// TASK_DUPLICATE). If ctx ends first, the task may or may not have been
// stored; repeating the call with the same TaskID is safe.
func (c *Client) EnqueueTask(ctx context.Context, r *task.Request) (*task.Enqueued, error) {
	req, err := request(r)
	if err != nil {
		return nil, err
	}
	return c.batch.Submit(ctx, req)
}

// Result is the outcome of one request of EnqueueMany.
type Result = batch.Result[*task.Enqueued]

// EnqueueMany enqueues several tasks, each for itself: the results are in the
// order of the requests.
func (c *Client) EnqueueMany(ctx context.Context, rs []*task.Request) ([]Result, error) {
	out := make([]Result, len(rs))
	var reqs []*penstockv1.EnqueueRequest
	var at []int
	for i, r := range rs {
		req, err := request(r)
		if err != nil {
			out[i].Err = err
			continue
		}
		reqs, at = append(reqs, req), append(at, i)
	}
	res, err := c.batch.SubmitAll(ctx, reqs)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	for i, r := range res {
		out[at[i]] = r
	}
	return out, nil
}

// maxCallBytes bounds one call's payloads, well below what a server accepts.
const maxCallBytes = 16 << 20

// flush sends a batch, in as many calls as its size needs, until an
// orchestrator takes it.
func (c *Client) flush(ctx context.Context, reqs []*penstockv1.EnqueueRequest) []Result {
	out := make([]Result, 0, len(reqs))
	for len(reqs) > 0 {
		n, size := 1, len(reqs[0].Payload)
		for n < len(reqs) && size+len(reqs[n].Payload) <= maxCallBytes {
			size += len(reqs[n].Payload)
			n++
		}
		out = append(out, c.send(ctx, reqs[:n])...)
		reqs = reqs[n:]
	}
	return out
}

// send makes one call.
func (c *Client) send(ctx context.Context, reqs []*penstockv1.EnqueueRequest) []Result {
	out := make([]Result, len(reqs))
	res, err := retry(ctx, c, func(ctx context.Context, s penstockv1connect.TaskServiceClient) (*connect.Response[penstockv1.EnqueueBatchResponse], error) {
		return s.EnqueueBatch(ctx, connect.NewRequest(&penstockv1.EnqueueBatchRequest{Tasks: reqs, IdsOnly: true}))
	})
	switch {
	case err != nil:
		for i := range out {
			out[i].Err = fromConnect(err)
		}
		return out
	case len(res.Msg.Results) != len(reqs):
		for i := range out {
			out[i].Err = fmt.Errorf("client: the server answered %d of %d tasks", len(res.Msg.Results), len(reqs))
		}
		return out
	}
	var again []*penstockv1.EnqueueRequest
	var at []int
	for i, r := range res.Msg.Results {
		switch {
		case r.Error == nil:
			out[i].Value = &task.Enqueued{TaskID: r.TaskId, IdempotentHit: r.IdempotentHit}
		case r.Error.Retryable && c.retryFor > 0:
			again, at = append(again, reqs[i]), append(at, i)
		default:
			out[i].Err = fromInfo(r.Error)
		}
	}
	if len(again) > 0 {
		for i, r := range c.flushAgain(ctx, again) {
			out[at[i]] = r
		}
	}
	return out
}

// flushAgain repeats items that the server could not take just then.
func (c *Client) flushAgain(ctx context.Context, reqs []*penstockv1.EnqueueRequest) []Result {
	once := &Client{servers: c.servers, retryFor: -1}
	deadline := time.Now().Add(c.retryFor)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		once.current.Store(c.current.Load())
		out := once.send(ctx, reqs)
		left := false
		for _, r := range out {
			left = left || r.Err != nil && protocol.CodeOf(r.Err) == ""
		}
		if !left || ctx.Err() != nil || time.Now().After(deadline) {
			return out
		}
	}
}
