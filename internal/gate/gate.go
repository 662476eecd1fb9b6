// Package gate runs the acceptance replays RP-001 to RP-005 against a running
// system: real tasks, enqueued through the RPC, executed by a worker of the
// gate's own on a queue of its own, and judged by what the RPC says about them
// afterwards.
package gate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Tenant is whose tasks those of a gate are, so that the dead letter that each
// leaves is easily told from others.
const Tenant = "gate-b2"

// Options are the settings of Run.
type Options struct {
	// Client reaches the system's RPC.
	Client *client.Client
	// RedisURL is the Redis that the system uses.
	RedisURL string
	// RedisKeyPrefix is the system's redis.key_prefix.
	RedisKeyPrefix string
	// Timeout bounds the replays; 0: one minute.
	Timeout time.Duration
	// Log gets what the gate's worker has to say.
	Log *slog.Logger
}

// Result is what became of one replay.
type Result struct {
	ReplayID           string `json:"replay_id"`
	TraceID            string `json:"trace_id"`
	JobID              string `json:"job_id"`
	RetryCount         int    `json:"retry_count"`
	StatusTransition   string `json:"status_transition"`
	ExpectedRetryCount int    `json:"expected_retry_count"`
	ExpectedTransition string `json:"expected_transition"`
	// DLQID is the dead letter of RP-004.
	DLQID string `json:"dlq_id,omitempty"`
	// ErrorCode is why RP-004 was given up, and what the second end of RP-005
	// was refused with.
	ErrorCode string `json:"error_code,omitempty"`
	Passed    bool   `json:"passed"`
	// Wrong says what is not as it must be.
	Wrong []string `json:"wrong,omitempty"`
}

// Report is what became of all replays.
type Report struct {
	Passed  bool     `json:"passed"`
	Queue   string   `json:"queue"`
	Results []Result `json:"results"`
	// Left says what could not be cleaned up; empty if nothing is left.
	Left string `json:"left,omitempty"`
}

const (
	defaultTimeout = time.Minute
	// connectTime bounds the search for Redis, and for the queue's stream in it,
	// and what is asked or removed once the replays are over.
	connectTime = 10 * time.Second
	// settleTime is how long tasks that are not finished when their time is over
	// keep their worker. Those of a gate that was interrupted have the rest of
	// their time, up to interruptedTime: a system that works needs little of it,
	// on a busy machine too.
	settleTime, interruptedTime = 3 * time.Second, 30 * time.Second
	// taskTimeout is the start-to-close timeout of the tasks, which take no time.
	taskTimeout = 10 * time.Second
	look        = 20 * time.Millisecond
)

// gate is one run.
type gate struct {
	o     Options
	name  string // also the queue's
	redis *streams.Client
	seed  []byte
	ids   []string // of the tasks, as replays
}

// Run runs the replays at once, and removes the queue's stream at the end.
// Any number of gates may run at the same time. The error says why there is no
// report: the RPC or Redis can't be reached, or do not belong together. A replay
// that fails is no error.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	g := &gate{o: o, name: "gate-b2-" + hex.EncodeToString(random[:])}
	if err := g.connect(ctx); err != nil {
		return nil, err
	}
	defer func() { _ = g.redis.Close() }()
	stop, err := g.startWorker()
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(o.Timeout)
	report, err := g.play(ctx)
	g.settle(ctx, end)
	err = errors.Join(err, stop())
	left := g.clean()
	if err != nil && left != "" {
		err = fmt.Errorf("%w; left behind: %s", err, left)
	}
	if err != nil {
		return nil, err
	}
	report.Left = left
	return report, nil
}

// connect reaches both sides before anything is enqueued.
func (g *gate) connect(ctx context.Context) error {
	d, err := g.o.Client.RPC().GetDeployment(ctx, connect.NewRequest(&penstockv1.GetDeploymentRequest{}))
	if err != nil {
		return err
	}
	if g.seed, err = hex.DecodeString(d.Msg.Seed); err != nil {
		return fmt.Errorf("the deployment's seed: %w", err)
	}
	if g.redis, err = streams.New(streams.Options{URL: g.o.RedisURL, Prefix: g.o.RedisKeyPrefix, Readers: 1, Name: "gate", Log: g.o.Log}); err != nil {
		return err
	}
	_, err = g.redis.Info(ctx, protocol.StreamResult, protocol.GroupOrchestrators)
	if errors.Is(err, streams.ErrNoGroup) {
		err = fmt.Errorf("no orchestrator uses this Redis: %s has no group %s; is redis.url the orchestrator's?", protocol.StreamResult, protocol.GroupOrchestrators)
	}
	if err != nil {
		return errors.Join(err, g.redis.Close())
	}
	return nil
}

// startWorker runs the gate's worker until stop is called. Its leases need no
// renewing: a handler returns at once. So its visibility timeout can be the
// longest usual one, whatever the orchestrators' is.
func (g *gate) startWorker() (stop func() error, err error) {
	w, err := worker.New(worker.Options{
		RedisURL: g.o.RedisURL, RedisKeyPrefix: g.o.RedisKeyPrefix, Queues: []string{g.name}, Concurrency: len(replays), ShutdownGrace: settleTime, StartDeadline: connectTime,
		Name: g.name, IgnoreSignals: true, Log: g.o.Log,
	})
	if err != nil {
		return nil, err
	}
	set := map[string]bool{}
	for _, r := range replays {
		if typ := r.taskType(); !set[typ] {
			set[typ] = true
			w.HandleRaw(typ, handler(r.failures))
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}, nil
}

// handler fails its first executions, then succeeds.
func handler(failures int) task.Handler {
	return func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
		if r.Attempt <= failures {
			return nil, fmt.Errorf("transient error of attempt %d", r.Attempt)
		}
		return json.RawMessage(`"done"`), nil
	}
}

// play enqueues the tasks and judges what becomes of them.
func (g *gate) play(ctx context.Context) (*Report, error) {
	if err := g.enqueue(ctx); err != nil {
		return nil, err
	}
	if err := g.findStream(ctx); err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(ctx, g.o.Timeout)
	defer cancel()
	report := &Report{Queue: g.name, Results: make([]Result, len(replays)), Passed: true}
	var wg sync.WaitGroup
	for i, r := range replays {
		wg.Go(func() { report.Results[i] = g.one(limit, r, g.ids[i]) })
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	for _, r := range report.Results {
		report.Passed = report.Passed && r.Passed
	}
	return report, nil
}

func traceID(gate string, r replay) string { return gate + "-" + strings.ToLower(r.id) }

// enqueue is not interrupted half-way: a task that nobody knows of would keep its
// place in the queue for ever.
func (g *gate) enqueue(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
	defer cancel()
	reqs := make([]*task.Request, len(replays))
	for i, r := range replays {
		reqs[i] = &task.Request{
			Type: r.taskType(), Payload: json.RawMessage(`{"replay":"` + r.id + `"}`), Queue: g.name, Tenant: Tenant, Timeout: taskTimeout,
			TraceID: traceID(g.name, r), MaxRetries: &maxRetries,
			Retry: &task.Retry{
				Strategy: string(policy.Strategy), Base: policy.Backoff(1), MaxBackoff: time.Duration(policy.MaxBackoffMS) * time.Millisecond,
				JitterMax: time.Duration(policy.JitterMaxMS) * time.Millisecond,
			},
		}
	}
	results, err := g.o.Client.EnqueueMany(ctx, reqs)
	if err != nil {
		return err
	}
	for i, r := range results {
		if r.Err != nil {
			return fmt.Errorf("enqueue the task of %s: %w", replays[i].id, r.Err)
		}
		g.ids = append(g.ids, r.Value.TaskID)
	}
	return nil
}

// findStream waits until the queue's stream is there: the orchestrator makes it
// in its own Redis.
func (g *gate) findStream(ctx context.Context) error {
	limit, cancel := context.WithTimeout(ctx, min(connectTime, g.o.Timeout))
	defer cancel()
	stream := protocol.TaskStream(g.name)
	absent := false // Redis answered, and had no such stream; the last look may be cut off by the limit
	for {
		_, err := g.redis.Info(limit, stream, protocol.GroupWorkers)
		if err == nil {
			return nil
		}
		absent = absent || errors.Is(err, streams.ErrNoGroup)
		select {
		case <-limit.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if absent {
				err = fmt.Errorf("%s is not in this Redis: is redis.url the orchestrator's?", stream)
			}
			return err
		case <-time.After(look):
		}
	}
}
