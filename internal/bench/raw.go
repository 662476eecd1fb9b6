package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// rawStreams is the lower bound: XADD, XREADGROUP, XACK with go-redis and
// nothing else. It commits nothing and keeps no record.
type rawStreams struct {
	c       *redis.Client
	payload []byte
}

func newRaw(url string, payload []byte) (*rawStreams, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	o.PoolSize, o.MaxRetries = 64, -1
	return &rawStreams{c: redis.NewClient(o), payload: payload}, nil
}

func (r *rawStreams) close() { _ = r.c.Close() }

const rawGroup = "bench"

func (r *rawStreams) stream(ctx context.Context) (string, error) {
	s := fmt.Sprintf("bench:raw:%d", time.Now().UnixNano())
	return s, r.c.XGroupCreateMkStream(ctx, s, rawGroup, "0").Err()
}

func (r *rawStreams) enqueue(ctx context.Context, stream string, n int) error {
	for i := 0; i < n; i += 100 {
		p := r.c.Pipeline()
		for range min(100, n-i) {
			p.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []any{"payload", r.payload}})
		}
		if _, err := p.Exec(ctx); err != nil {
			return err
		}
	}
	return nil
}

// work reads, hands entries to as many goroutines as the system's worker has,
// and acknowledges in batches, until n entries are acknowledged.
func (r *rawStreams) work(ctx context.Context, stream string, n int, handle func(redis.XMessage)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work, done := make(chan redis.XMessage, concurrency), make(chan string, 4*concurrency)
	var wg sync.WaitGroup
	for range concurrency {
		wg.Go(func() {
			for m := range work {
				handle(m)
				done <- m.ID
			}
		})
	}
	defer wg.Wait()
	defer close(work)
	acked := make(chan error, 1)
	go func() { acked <- r.ack(ctx, stream, n, done) }()
	for {
		select {
		case err := <-acked:
			return err
		default:
		}
		res, err := r.c.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: rawGroup, Consumer: "w", Streams: []string{stream, ">"}, Count: 100, Block: 50 * time.Millisecond,
		}).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return err
		}
		for _, m := range res[0].Messages {
			work <- m
		}
	}
}

func (r *rawStreams) ack(ctx context.Context, stream string, n int, done <-chan string) error {
	for acked := 0; acked < n; {
		ids := []string{<-done}
		for more := true; more && len(ids) < 100; {
			select {
			case id := <-done:
				ids = append(ids, id)
			default:
				more = false
			}
		}
		if err := r.c.XAck(ctx, stream, rawGroup, ids...).Err(); err != nil {
			return err
		}
		acked += len(ids)
	}
	return nil
}

// Names of the raw loop's figures, which others are compared with.
const (
	rawAdd     = "raw: XADD, pipelines of 100"
	rawDrain   = "raw: drain (XREADGROUP, XACK)"
	rawThrough = "raw: through (XADD and drain at once)"
)

func (b *bench) rawEnqueueDrain(ctx context.Context, sys *system) error {
	raw := sys.raw
	s, err := raw.stream(ctx)
	if err != nil {
		return err
	}
	t := time.Now()
	if err := raw.enqueue(ctx, s, b.n); err != nil {
		return err
	}
	b.add(rawAdd, "tasks/s", "", elapsed(b.n, t))
	t = time.Now()
	if err := raw.work(ctx, s, b.n, func(redis.XMessage) {}); err != nil {
		return err
	}
	b.add(rawDrain, "tasks/s", "", elapsed(b.n, t))
	return raw.c.Del(ctx, s).Err()
}

func (b *bench) rawThrough(ctx context.Context, sys *system) error {
	raw := sys.raw
	s, err := raw.stream(ctx)
	if err != nil {
		return err
	}
	t := time.Now()
	errs := make(chan error, 1)
	go func() { errs <- raw.enqueue(ctx, s, b.n) }()
	if err := raw.work(ctx, s, b.n, func(redis.XMessage) {}); err != nil {
		return err
	}
	b.add(rawThrough, "tasks/s", "", elapsed(b.n, t))
	return errors.Join(<-errs, raw.c.Del(ctx, s).Err())
}

func (b *bench) rawLatency(ctx context.Context, sys *system) error {
	raw := sys.raw
	s, err := raw.stream(ctx)
	if err != nil {
		return err
	}
	n := int(rawRate * b.latency.Seconds())
	lat := newLatencies(n)
	worked := make(chan error, 1)
	go func() {
		worked <- raw.work(ctx, s, n, func(m redis.XMessage) {
			var i int
			_, _ = fmt.Sscan(m.Values["i"].(string), &i)
			lat.started(i)
		})
	}()
	err = pace(ctx, n, rawRate, func(i int) error {
		lat.sent(i)
		return raw.c.XAdd(ctx, &redis.XAddArgs{Stream: s, Values: []any{"i", i}}).Err()
	})
	if err != nil {
		return err
	}
	if err := <-worked; err != nil {
		return err
	}
	p50, p99 := lat.percentiles()
	b.add(fmt.Sprintf("raw, %d/s: p50", rawRate), "ms", "", p50)
	b.add(fmt.Sprintf("raw, %d/s: p99", rawRate), "ms", "", p99)
	return raw.c.Del(ctx, s).Err()
}
