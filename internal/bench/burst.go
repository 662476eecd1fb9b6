package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// burst is very many retries that become due at once.
var burst = &part{
	name: "burst", group: "failures", ratio: "plain drain", most: 1,
	about: func(b *bench) string {
		return fmt.Sprintf(`%d tasks: drained without failures from a backlog in Postgres, then as retries that become due within one second. Rates are from the start of the worker, or the first due time, until the last result is on record. Order: by stream
entry against next_retry_at. RSS is the orchestrator's`, b.burst)
	},
	once: []func(*bench, context.Context, *system) error{(*bench).plainBacklog, (*bench).burstRetries},
}

// plainBacklog drains a backlog that does not fail.
func (b *bench) plainBacklog(ctx context.Context, s *system) error {
	q := newQueue()
	if _, err := s.enqueueAll(ctx, b.burst, noops(b.payload, q)); err != nil {
		return err
	}
	c, peaks, began := newCounter(b.burst), s.watchPeaks(ctx, q), time.Now()
	stop, err := s.noopWorker(ctx, c.hit, q)
	if err != nil {
		return err
	}
	if err := errors.Join(c.wait(ctx), s.onRecord(ctx, q)); err != nil {
		return err
	}
	took := time.Since(began)
	b.add("plain: drain", "tasks/s", "plain: drain", float64(b.burst)/took.Seconds())
	b.addPeaks("plain", peaks())
	b.lead = max(b.lead, 3*took+2*time.Second)
	return stop()
}

func (b *bench) addPeaks(of string, p peaks) {
	for _, f := range []struct {
		name, unit string
		v          float64
	}{{"entries not acknowledged, most", "entries", p.entries}, {"Redis memory, most", "MB", p.redis}, {"RSS, most", "MB", p.rss}} {
		b.add(of+": "+f.name, f.unit, "plain: "+f.name, f.v)
	}
}

// retried is one task of a burst: when it was due, and where its second
// entry came in its stream.
type retried struct {
	due   time.Time
	entry [2]uint64
}

// burstTasks fail once, so that all are due within a second from at on.
type burstTasks struct {
	at    time.Time
	tasks []retried
	open  atomic.Bool // outcomes are recorded without delay: go on
	again *counter
}

// spread is within how long the retries of a burst become due; the rest of the
// second is for the time until an outcome is recorded, by which a delay begins.
const spread = 700 * time.Millisecond

func (t *burstTasks) handle(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
	i, err := strconv.Atoi(string(r.Payload))
	if err != nil {
		return nil, err
	}
	if r.Attempt == 1 {
		for !t.open.Load() {
			if err := pause(ctx, time.Millisecond); err != nil {
				return nil, err
			}
		}
		due := t.at.Add(rand.N(spread))
		return nil, task.RetryAfter(time.Until(due), errors.New("fails once"))
	}
	ms, seq, _ := strings.Cut(r.MessageID, "-")
	t.tasks[i].entry[0], _ = strconv.ParseUint(ms, 10, 64)
	t.tasks[i].entry[1], _ = strconv.ParseUint(seq, 10, 64)
	t.again.hit()
	return nil, nil
}

// throttle lets the first attempts run only as fast as they are recorded, until
// ctx ends.
func (s *system) throttle(ctx context.Context, t *burstTasks) {
	for ctx.Err() == nil {
		t.open.Store(s.raw.open(ctx, protocol.StreamResult, protocol.GroupOrchestrators) < 1000)
		_ = pause(ctx, 5*time.Millisecond)
	}
}

// burstRetries measures the drain of retries that become due together. It
// schedules them again, for later, if the machine was too slow for the time
// that it was given.
func (b *bench) burstRetries(ctx context.Context, s *system) error {
	for try := 1; ; try++ {
		err := b.burstOnce(ctx, s)
		if !errors.Is(err, errLate) || try == 3 {
			return err
		}
		b.lead *= 2
	}
}

// errLate: a retry became due before all had been scheduled.
var errLate = errors.New("the retries could not be scheduled in time: try a smaller -burst")

func (b *bench) burstOnce(ctx context.Context, s *system) error {
	q := newQueue()
	t := &burstTasks{at: time.Now().Add(b.lead), tasks: make([]retried, b.burst), again: newCounter(b.burst)}
	ids, err := s.enqueueAll(ctx, b.burst, func(i int) *task.Request {
		return &task.Request{Type: "bench.burst", Queue: q, Payload: json.RawMessage(strconv.Itoa(i))}
	})
	if err != nil {
		return err
	}
	tctx, untilRetries := context.WithCancel(ctx)
	var throttled sync.WaitGroup
	throttled.Go(func() { s.throttle(tctx, t) })
	defer throttled.Wait()
	defer untilRetries()
	stop, err := s.work(ctx, []string{q}, concurrency, map[string]task.Handler{"bench.burst": t.handle})
	if err != nil {
		return err
	}
	began := time.Now()
	late := s.allRetrying(ctx, q, ids, t)
	if late == nil {
		b.lead = time.Since(began)*5/4 + 2*time.Second // of the next repetition
		untilRetries()
	} else if !errors.Is(late, errLate) {
		return late
	}
	peaks := s.watchPeaks(ctx, q)
	if err := errors.Join(t.again.wait(ctx), s.onRecord(ctx, q)); err != nil {
		return err
	}
	end, most := time.Now(), peaks()
	if late == nil {
		b.judge(t.tasks, end)
		b.addPeaks("retries", most)
	}
	return errors.Join(stop(), late)
}

// allRetrying waits until all tasks are scheduled for their retry and reads
// when. It returns errLate if the first became due before that.
func (s *system) allRetrying(ctx context.Context, queue string, ids []string, t *burstTasks) error {
	intime, cancel := context.WithDeadline(ctx, t.at)
	defer cancel()
	err := s.become(intime, queue, "retrying", len(ids), 300*time.Millisecond)
	if err == nil {
		err = s.readDue(intime, queue, ids, t)
	}
	if err != nil && intime.Err() != nil && ctx.Err() == nil {
		return errLate
	}
	return err
}

func (s *system) readDue(ctx context.Context, queue string, ids []string, t *burstTasks) error {
	index := make(map[string]int, len(ids))
	for i, id := range ids {
		index[id] = i
	}
	for token := ""; ; {
		res, err := s.client.RPC().ListTasks(ctx, connect.NewRequest(&penstockv1.ListTasksRequest{
			Queue: queue, States: []string{"retrying"}, PageSize: 1000, PageToken: token,
		}))
		if err != nil {
			return err
		}
		for _, x := range res.Msg.Tasks {
			t.tasks[index[x.TaskId]].due = x.NextRetryAt.AsTime()
		}
		if token = res.Msg.NextPageToken; token == "" {
			return ctx.Err()
		}
	}
}

// judge compares the order in which the retries were dispatched with that in
// which they were due.
func (b *bench) judge(tasks []retried, end time.Time) {
	slices.SortFunc(tasks, func(x, y retried) int { return slices.Compare(x.entry[:], y.entry[:]) })
	first, last, late := tasks[0].due, tasks[0].due, 0
	for _, t := range tasks {
		if t.due.Before(last) {
			late++
		}
		if t.due.Before(first) {
			first = t.due
		}
		if t.due.After(last) {
			last = t.due
		}
	}
	b.add("retries: drain", "tasks/s", "plain: drain", float64(len(tasks))/end.Sub(first).Seconds())
	b.add("retries: from the first due time to the last", "s", "", last.Sub(first).Seconds())
	b.add("retries: dispatched after one due later (target 0)", "tasks", "", float64(late))
}
