package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/inject"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// backoff is the configured wait before each retry, fixed and without jitter.
const backoff = 20 * time.Millisecond

// retries is what a retry costs a single step.
var retries = &part{
	name: "retries", group: "failures", ratio: "no retry",
	about: func(b *bench) string {
		return fmt.Sprintf(`%d steps of each case, one at a time and the cases in turn; a failed attempt waits %s, which is excluded.
A step is one task. Its latency: from the call of Enqueue until another call shows it succeeded, less the waits.
Time per attempt: from task.created to task.succeeded less the waits, all as the event log has them, by the number of attempts;
so an attempt is from due (by enqueue or by the retry's timer) over dispatch and run to its outcome being recorded`, b.steps, backoff)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).retrySteps},
}

// retryCase is a kind of step: it fails so often before it succeeds.
type retryCase struct {
	name    string
	retries int
	lat     []float64 // ms
	attempt []float64 // ms
}

func (c *retryCase) typ() string { return fmt.Sprintf("bench.step%d", c.retries) }

// handler fails the first attempts and tells when the last one ran.
func (c *retryCase) handler(ran chan<- struct{}) task.Handler {
	h := counting(func() { ran <- struct{}{} })
	if c.retries == 0 {
		return h
	}
	plan := inject.Plan{Mode: inject.TransientError}
	for n := range c.retries {
		plan.Attempts = append(plan.Attempts, n+1)
	}
	return inject.Wrap(plan, h)
}

// retrySteps runs steps of all cases in turn, one at a time.
func (b *bench) retrySteps(ctx context.Context, s *system) error {
	cases := []*retryCase{{name: "no retry"}, {name: "one retry", retries: 1}, {name: "three retries", retries: 3}}
	handlers, ran := map[string]task.Handler{}, make(chan struct{}, 1)
	for _, c := range cases {
		handlers[c.typ()] = c.handler(ran)
	}
	q := newQueue()
	stop, err := s.work(ctx, []string{q}, concurrency, handlers)
	if err != nil {
		return err
	}
	const uncounted = 20
	for i := range uncounted + b.steps {
		for _, c := range cases {
			if err := s.step(ctx, q, c, ran); err != nil {
				return fmt.Errorf("%s: %w", c.name, err)
			}
			if i < uncounted {
				c.lat, c.attempt = nil, nil
			}
		}
	}
	for _, c := range cases {
		b.add(c.name+": step latency, p50", "ms", "no retry: step latency, p50", quantile(c.lat, .5))
		b.add(c.name+": step latency, p99 (target < 100)", "ms", "no retry: step latency, p99 (target < 100)", quantile(c.lat, .99))
		b.add(c.name+": time per attempt (target ≤ 1.10)", "ms", "no retry: time per attempt (target ≤ 1.10)", quantile(c.attempt, .5))
	}
	return stop()
}

// step enqueues one task and waits until it has succeeded on record.
func (s *system) step(ctx context.Context, queue string, c *retryCase, ran <-chan struct{}) error {
	began := time.Now()
	e, err := s.client.EnqueueTask(ctx, &task.Request{
		Type: c.typ(), Queue: queue, Payload: json.RawMessage(`{}`), Retry: &task.Retry{Strategy: "fixed", Base: backoff, NoJitter: true},
	})
	if err != nil {
		return err
	}
	select {
	case <-ran:
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Minute):
		return fmt.Errorf("task %s did not get to its last attempt within a minute", e.TaskID)
	}
	for {
		t, err := s.client.Get(ctx, "", e.TaskID)
		if err != nil {
			return err
		}
		if t.State == "succeeded" {
			break
		}
		if err := pause(ctx, 200*time.Microsecond); err != nil {
			return err
		}
	}
	took := time.Since(began)
	whole, waits, err := s.logged(ctx, e.TaskID)
	if err != nil {
		return err
	}
	c.lat = append(c.lat, millis(took-waits))
	c.attempt = append(c.attempt, millis(whole-waits)/float64(c.retries+1))
	return nil
}

// logged reads from a task's log how long it took and how long it had to wait.
func (s *system) logged(ctx context.Context, id string) (whole, waits time.Duration, err error) {
	res, err := s.client.RPC().ListEvents(ctx, connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: id}))
	if err != nil {
		return 0, 0, err
	}
	es := res.Msg.Events
	for _, e := range es {
		if e.Type == "task.retry_scheduled" {
			waits += e.NextRetryAt.AsTime().Sub(e.OccurredAt.AsTime())
		}
	}
	if len(es) == 0 || es[len(es)-1].Type != "task.succeeded" {
		return 0, 0, fmt.Errorf("the log of task %s does not end with task.succeeded", id)
	}
	return es[len(es)-1].OccurredAt.AsTime().Sub(es[0].OccurredAt.AsTime()), waits, nil
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
