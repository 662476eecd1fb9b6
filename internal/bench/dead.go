package main

import (
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/inject"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// deadLetters is giving tasks up, and giving them another chance.
var deadLetters = &part{
	name: "dead-letters", group: "failures", ratio: "plain",
	about: func(b *bench) string {
		return fmt.Sprintf(`%d tasks: succeed at once (plain), are given up at once, and are requeued by one batch. Given up: until the last is failed, that is in
dlq_items, in stream:dlq and on record; by the plain drain. Requeued: from the call of CreateDeadLetterBatch until the last new task is
committed; by the plain enqueue`, b.dead)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).plainDrain, (*bench).giveUpAndRequeue},
}

func (b *bench) plainDrain(ctx context.Context, s *system) error {
	q, began := newQueue(), time.Now()
	if _, err := s.enqueueAll(ctx, b.dead, noops(b.payload, q)); err != nil {
		return err
	}
	b.add("plain: enqueue", "tasks/s", "plain: enqueue", elapsed(b.dead, began))
	began = time.Now()
	stop, err := s.noopWorker(ctx, func() {}, q)
	if err != nil {
		return err
	}
	if err := s.become(ctx, q, "succeeded", b.dead, 20*time.Millisecond); err != nil {
		return err
	}
	b.add("plain: drain", "tasks/s", "plain: drain", elapsed(b.dead, began))
	return stop()
}

func (b *bench) giveUpAndRequeue(ctx context.Context, s *system) error {
	q := newQueue()
	if _, err := s.enqueueAll(ctx, b.dead, noops(b.payload, q)); err != nil {
		return err
	}
	fails := inject.Wrap(inject.Plan{Mode: inject.PermanentError, Always: true}, counting(func() {}))
	began := time.Now()
	stop, err := s.work(ctx, []string{q}, concurrency, map[string]task.Handler{noop.Name(): fails})
	if err != nil {
		return err
	}
	if err := s.become(ctx, q, "failed", b.dead, 20*time.Millisecond); err != nil {
		return err
	}
	b.add("given up", "tasks/s", "plain: drain", elapsed(b.dead, began))
	if err := stop(); err != nil {
		return err
	}
	began = time.Now()
	if err := s.requeue(ctx, q, b.dead); err != nil {
		return err
	}
	b.add("requeued by a batch", "tasks/s", "plain: enqueue", elapsed(b.dead, began))
	return s.empty(ctx, q, b.dead)
}

// requeue requeues all dead letters of a queue and waits for the end.
func (s *system) requeue(ctx context.Context, queue string, n int) error {
	res, err := s.client.DeadLetters().CreateDeadLetterBatch(ctx, connect.NewRequest(&penstockv1.CreateDeadLetterBatchRequest{
		Filter: &penstockv1.DeadLetterFilter{Queue: queue}, Reason: "bench",
	}))
	if err != nil {
		return err
	}
	x := res.Msg.Batch
	for x.Status == "running" {
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		got, err := s.client.DeadLetters().GetDeadLetterBatch(ctx, connect.NewRequest(&penstockv1.GetDeadLetterBatchRequest{BatchId: x.BatchId}))
		if err != nil {
			return err
		}
		x = got.Msg.Batch
	}
	if x.Status != "finished" || int(x.Done) != n {
		return fmt.Errorf("the batch ended %s with %d of %d dead letters requeued", x.Status, x.Done, n)
	}
	return nil
}

// empty runs what was requeued, so that it is not in the way of what is
// measured next.
func (s *system) empty(ctx context.Context, queue string, n int) error {
	c := newCounter(n)
	stop, err := s.noopWorker(ctx, c.hit, queue)
	if err != nil {
		return err
	}
	if err := c.wait(ctx); err != nil {
		return err
	}
	return stop()
}
