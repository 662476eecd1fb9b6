package acceptance

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Queues besides the main one: without a worker, with one that is stopped and
// started, and one with a single task.
const (
	queueIdle = "idle"
	queueStop = "stop"
	queueAck  = "ack"
)

func (r *run) queue(which string) string { return r.name + "-" + which }

// startWorker runs a worker until the acceptance ends.
func (r *run) startWorker(queue string, concurrency int, handlers map[string]task.Handler) error {
	stop, err := r.work(queue, concurrency, handlers)
	if err == nil {
		r.mu.Lock()
		r.stops = append(r.stops, stop)
		r.mu.Unlock()
	}
	return err
}

// work runs a worker until stop is called.
func (r *run) work(queue string, concurrency int, handlers map[string]task.Handler) (stop func() error, err error) {
	w, err := worker.New(worker.Options{
		RedisURL: r.o.RedisURL, RedisKeyPrefix: r.o.RedisKeyPrefix, Queues: []string{queue}, Concurrency: concurrency, VisibilityTimeout: r.o.VisibilityTimeout,
		ShutdownGrace: 3 * time.Second, StartDeadline: connectTime, OrchestratorURL: r.o.Server, OrchestratorToken: r.o.Token, OrchestratorTLS: r.o.TLS,
		Name: queue, IgnoreSignals: true, Log: r.o.Log,
	})
	if err != nil {
		return nil, err
	}
	for typ, h := range handlers {
		w.HandleRaw(typ, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}, nil
}

// quickly is the policy of tasks whose delays nobody is interested in.
var quickly = task.Retry{Strategy: "exponential", Base: 10 * time.Millisecond, MaxBackoff: time.Second, JitterMax: 5 * time.Millisecond}

// request makes a request for a step; change may be nil.
func (r *run) request(s script, change func(*task.Request)) *task.Request {
	policy := quickly
	req := &task.Request{Type: typeStep, Payload: s.json(), Queue: r.name, Tenant: Tenant, Timeout: 10 * time.Second, Retry: &policy, MaxRetries: ptr(3)}
	if change != nil {
		change(req)
	}
	return req
}

// patience is a start-to-close timeout beyond the visibility timeout: of two ways
// in which an execution that is lost may end, this is not the one that is tested.
func (r *run) patience() time.Duration { return 2*r.o.VisibilityTimeout + time.Minute }

func ptr[T any](v T) *T { return &v }

// enqueue is not interrupted half-way: a task that nobody knows of would keep its
// place in the queue for ever.
func (r *run) enqueue(ctx context.Context, req *task.Request) (*task.Enqueued, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
	defer cancel()
	e, err := r.o.Client.EnqueueTask(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("enqueue: %w", err)
	}
	r.keep(e.TaskID)
	return e, nil
}

// keep notes a task, to be ended with the acceptance.
func (r *run) keep(taskID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, taskID)
}

// story is what the system says about a task, and what the workers saw.
type story struct {
	task   *client.Task
	events []*penstockv1.Event
	states []*penstockv1.StateEvent
	seen   []sighting
	// dead is the task's dead letter; nil if there is none.
	dead *penstockv1.DeadLetter
}

// live enqueues a step and follows it to its end.
func (r *run) live(ctx context.Context, s script, change func(*task.Request)) (*story, error) {
	e, err := r.enqueue(ctx, r.request(s, change))
	if err != nil {
		return nil, err
	}
	return r.follow(ctx, e.TaskID)
}

// follow waits for a task's end and gathers what there is about it.
func (r *run) follow(ctx context.Context, taskID string) (*story, error) {
	if _, err := r.o.Client.Wait(ctx, Tenant, taskID); err != nil {
		state := "unknown"
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
		defer cancel()
		if t, gerr := r.o.Client.Get(last, Tenant, taskID); gerr == nil {
			state = t.State
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("task %s has not ended, it is %s", taskID, state)
		}
		return nil, fmt.Errorf("task %s, which is %s, can't be followed to its end: %w", taskID, state, err)
	}
	return r.gather(ctx, taskID)
}

func (r *run) gather(ctx context.Context, taskID string) (s *story, err error) {
	s = &story{seen: r.seen.of(taskID)}
	if s.task, err = r.o.Client.Get(ctx, Tenant, taskID); err != nil {
		return nil, err
	}
	if s.events, err = r.events(ctx, &penstockv1.ListEventsRequest{TaskId: taskID, Tenant: Tenant}); err != nil {
		return nil, err
	}
	states, err := r.o.Client.RPC().ListStateEvents(ctx, connect.NewRequest(&penstockv1.ListStateEventsRequest{TaskId: taskID, Tenant: Tenant}))
	if err != nil {
		return nil, err
	}
	s.states = states.Msg.Events
	if s.task.DlqId == "" {
		return s, nil
	}
	dead, err := r.o.Client.DeadLetters().GetDeadLetter(ctx, connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: s.task.DlqId}))
	if err != nil {
		if connect.CodeOf(err) == connect.CodeNotFound {
			return s, nil
		}
		return nil, err
	}
	s.dead = dead.Msg.DeadLetter
	return s, nil
}

// events reads a task's log to its end.
func (r *run) events(ctx context.Context, req *penstockv1.ListEventsRequest) (out []*penstockv1.Event, err error) {
	req.PageSize = 1000
	for {
		res, err := r.o.Client.RPC().ListEvents(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		out = append(out, res.Msg.Events...)
		if req.AfterSeq = res.Msg.NextAfterSeq; req.AfterSeq == 0 {
			return out, nil
		}
	}
}

// types writes the types of a log's events: "created claimed succeeded".
func types(events []*penstockv1.Event) string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = strings.TrimPrefix(e.Type, "task.")
	}
	return strings.Join(out, " ")
}

// path is the history in a vocabulary's words.
func (s *story) path(v protocol.Vocabulary) string {
	states := make([]protocol.State, len(s.events))
	for i, e := range s.events {
		states[i] = protocol.State(e.Status)
	}
	return v.Path(states)
}

// count counts the events of a type.
func (s *story) count(typ protocol.EventType) (n int) {
	for _, e := range s.events {
		if e.Type == string(typ) {
			n++
		}
	}
	return n
}

// of returns the first event of a type; nil if there is none.
func (s *story) of(typ protocol.EventType) *penstockv1.Event {
	for _, e := range s.events {
		if e.Type == string(typ) {
			return e
		}
	}
	return nil
}

// attempts lists those that the workers saw, one for each execution.
func (s *story) attempts() (out []int) {
	for _, x := range s.seen {
		out = append(out, x.Attempt)
	}
	return out
}

// whole checks what holds for every log: it has no gaps, and at most one end.
func (s *story) whole(f *finding) {
	ends := 0
	for i, e := range s.events {
		if e.Seq != int32(i+1) {
			f.wrongf("task %s: event %d has seq %d", s.task.TaskId, i+1, e.Seq)
			return
		}
		if protocol.State(e.Status).Terminal() && e.Status != e.PreviousStatus {
			ends++
		}
	}
	if ends != 1 {
		f.wrongf("task %s has %d final events, want exactly one: %s", s.task.TaskId, ends, types(s.events))
	}
}

// ended checks how a task stands.
func (s *story) ended(f *finding, state protocol.State, attempt int, code protocol.Code) {
	if s.task.State != string(state) || int(s.task.Attempt) != attempt {
		f.wrongf("task %s is %s in attempt %d, want %s in attempt %d", s.task.TaskId, s.task.State, s.task.Attempt, state, attempt)
	}
	if got := s.task.LastErrorCode.GetValue(); state != protocol.StateSucceeded && got != string(code) {
		f.wrongf("task %s has code %q, want %q", s.task.TaskId, got, code)
	}
}

// eventsOf turns the RPC's events into the protocol's, to be replayed.
func eventsOf(id protocol.ID, in []*penstockv1.Event) []*protocol.Event {
	out := make([]*protocol.Event, len(in))
	for i, e := range in {
		ev := &protocol.Event{
			TaskID: id, Seq: int(e.Seq), Type: protocol.EventType(e.Type), From: protocol.State(e.PreviousStatus), To: protocol.State(e.Status),
			Attempt: int(e.Attempt), Delivery: e.Delivery, Code: protocol.Code(e.ErrorCode), Reason: e.Reason, BackoffDelay: -1,
			Actor: e.Actor, WorkerID: e.WorkerId, MessageID: e.MessageId, TraceID: e.TraceId, OccurredAt: e.OccurredAt.AsTime(), Data: json.RawMessage(e.Data),
		}
		if e.NextRetryAt != nil {
			ev.NextRetryAt = e.NextRetryAt.AsTime()
		}
		if e.BackoffDelayMs != nil {
			ev.BackoffDelay = time.Duration(e.BackoffDelayMs.Value) * time.Millisecond
		}
		out[i] = ev
	}
	return out
}

// uuidOf is the id under which a task is stored.
func uuidOf(taskID string) protocol.ID {
	if id, err := protocol.ParseID(taskID); err == nil {
		return id
	}
	return protocol.NameID(Tenant, taskID)
}

// held reads a queue's stream as a worker does that is never heard of again: it
// takes an entry and does not acknowledge it.
func (r *run) held(ctx context.Context, queue, consumer string) (e streams.Entry, t *protocol.TaskEntry, err error) {
	err = r.until(ctx, func() (bool, error) {
		es, err := r.redis.ReadNow(ctx, protocol.TaskStream(queue), protocol.GroupWorkers, consumer, 1)
		if streams.LostGroup(err) || err == nil && len(es) == 0 {
			return false, fmt.Errorf("no entry in %s", protocol.TaskStream(queue))
		}
		if err != nil {
			return false, err
		}
		e = es[0]
		return true, nil
	})
	if err != nil {
		return e, nil, err
	}
	t, err = protocol.DecodeTask(e.Values)
	return e, t, err
}
