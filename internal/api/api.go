// Package api answers the public RPC: it translates between the wire's
// messages and the pipeline, and reads the record.
package api

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// Enqueuer accepts tasks.
type Enqueuer interface {
	Enqueue(ctx context.Context, r *enqueue.Request) (enqueue.Result, error)
	EnqueueAll(ctx context.Context, rs []*enqueue.Request) ([]batch.Result[enqueue.Result], error)
	EnqueueGraph(ctx context.Context, rs []*enqueue.Request) ([]enqueue.Result, error)
	Reschedule(ctx context.Context, r enqueue.Reschedule) error
}

// Service implements penstockv1connect.TaskServiceHandler.
type Service struct {
	penstockv1connect.UnimplementedTaskServiceHandler

	enqueue Enqueuer
	cancel  Canceller
	erase   Eraser
	store   *store.Store
	redis   *streams.Client
	waits   *Waits
	// principal returns who makes a call, or "".
	principal func(context.Context) string
	queues    *queueFigures
	// stop ends when the process is about to stop, so that calls that wait can
	// be answered.
	stop context.Context
}

// New makes a Service. Calls that wait or stream end when stop does; principal
// returns who makes a call, or "".
func New(stop context.Context, e Enqueuer, c Canceller, x Eraser, s *store.Store, r *streams.Client, w *Waits, principal func(context.Context) string) *Service {
	return &Service{enqueue: e, cancel: c, erase: x, store: s, redis: r, waits: w, principal: principal, stop: stop, queues: &queueFigures{store: s}}
}

// MaxBatch is the most tasks of one EnqueueBatch call that is no graph.
const MaxBatch = 1000

// failure gives an error its place in the RPC's error model.
func failure(err error) error {
	switch {
	case err == nil, protocol.CodeOf(err) != "":
		return err
	case errors.Is(err, batch.ErrFull):
		return rpc.Overloaded(errors.New("too many enqueue calls are waiting (enqueue.max_waiting): try again in a moment"))
	case errors.Is(err, batch.ErrClosed):
		return rpc.Unavailable(errors.New("this orchestrator is stopping: try another one"))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case store.IsUnavailable(err), errors.Is(err, enqueue.ErrGone), errors.Is(err, enqueue.ErrRulesChanged):
		return rpc.Unavailable(err)
	}
	return err
}

// requestOf is a request of the caller's.
func (s *Service) requestOf(ctx context.Context, m *penstockv1.EnqueueRequest) *enqueue.Request {
	r := requestOf(m)
	r.RequestedBy = s.principal(ctx)
	return r
}

// Enqueue implements the RPC.
func (s *Service) Enqueue(ctx context.Context, req *connect.Request[penstockv1.EnqueueRequest]) (*connect.Response[penstockv1.EnqueueResponse], error) {
	r, err := s.enqueue.Enqueue(ctx, s.requestOf(ctx, req.Msg))
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.EnqueueResponse{IdempotentHit: r.Hit, Task: taskOf(r.Task())}), nil
}

// EnqueueBatch implements the RPC.
func (s *Service) EnqueueBatch(ctx context.Context, req *connect.Request[penstockv1.EnqueueBatchRequest]) (*connect.Response[penstockv1.EnqueueBatchResponse], error) {
	if isGraph(req.Msg.Tasks) {
		return s.enqueueGraph(ctx, req.Msg)
	}
	n := len(req.Msg.Tasks)
	if n < 1 || n > MaxBatch {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "tasks", "has %d items, want 1 to %d", n, MaxBatch)
	}
	rs := make([]*enqueue.Request, n)
	for i, t := range req.Msg.Tasks {
		rs[i] = s.requestOf(ctx, t)
	}
	results, err := s.enqueue.EnqueueAll(ctx, rs)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.EnqueueBatchResponse{Results: make([]*penstockv1.EnqueueResult, n)}
	for i, r := range results {
		if r.Err != nil {
			out.Results[i] = &penstockv1.EnqueueResult{TaskId: rs[i].TaskID, Error: rpc.InfoOf(rpc.ToConnect(failure(r.Err)))}
			continue
		}
		item := &penstockv1.EnqueueResult{IdempotentHit: r.Value.Hit, TaskId: r.Value.TaskID()}
		if !req.Msg.IdsOnly {
			item.Task = taskOf(r.Value.Task())
		}
		out.Results[i] = item
	}
	return connect.NewResponse(out), nil
}

// find reads a task by the id that its caller knows.
func (s *Service) find(ctx context.Context, tenant, taskID string) (*dbsqlc.Task, error) {
	if taskID == "" || len(taskID) > 255 {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "task_id", "has %d bytes, want 1 to 255", len(taskID))
	}
	if err := checkFilters(filter{"tenant", tenant}); err != nil {
		return nil, err
	}
	if tenant == "" {
		tenant = protocol.DefaultTenant
	}
	ids := []protocol.ID{protocol.NameID(tenant, taskID)}
	if id, err := protocol.ParseID(taskID); err == nil {
		ids = append([]protocol.ID{id}, ids...)
	}
	for _, id := range ids {
		t, err := s.store.GetTask(ctx, pgid.ID(id))
		if err == nil && t.Tenant == tenant {
			return t, nil
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return nil, failure(err)
		}
	}
	return nil, protocol.Errorf(protocol.CodeNotFound, "task_id", "no task %q of tenant %s", taskID, tenant)
}

// GetTask implements the RPC.
func (s *Service) GetTask(ctx context.Context, req *connect.Request[penstockv1.GetTaskRequest]) (*connect.Response[penstockv1.GetTaskResponse], error) {
	t, err := s.find(ctx, req.Msg.Tenant, req.Msg.TaskId)
	if err != nil {
		return nil, err
	}
	out := taskOf(t)
	if out.WaitsFor, err = s.waitsFor(ctx, t, time.Now()); err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.GetTaskResponse{Task: out}), nil
}

// Bounds of WaitTask.
const (
	defaultWait = 30 * time.Second
	maxWait     = 10 * time.Minute
	// A quarter of the caller's time, within these bounds, is kept back for the
	// answer: half of it for the last look, the rest for its way over a slow
	// network, or through a busy machine.
	minAnswerTime = 100 * time.Millisecond
	maxAnswerTime = 5 * time.Second
)

// answerTime is what WaitTask keeps back of the time that its caller has left.
func answerTime(left time.Duration) time.Duration {
	return min(max(left/4, minAnswerTime), maxAnswerTime)
}

// WaitTask implements the RPC.
func (s *Service) WaitTask(ctx context.Context, req *connect.Request[penstockv1.WaitTaskRequest]) (*connect.Response[penstockv1.WaitTaskResponse], error) {
	wait := time.Duration(req.Msg.TimeoutMs) * time.Millisecond
	if wait < 0 || wait > maxWait {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "timeout_ms", "is %d, want 0 to %d", req.Msg.TimeoutMs, maxWait.Milliseconds())
	}
	if wait == 0 {
		wait = defaultWait
	}
	now := time.Now()
	until, lastLook := now.Add(wait), now.Add(wait+maxAnswerTime)
	if d, ok := ctx.Deadline(); ok {
		back := answerTime(d.Sub(now))
		if d = d.Add(-back); d.Before(until) {
			until = d
		}
		if look := d.Add(back / 2); look.Before(lastLook) {
			lastLook = look
		}
	}
	t, err := s.find(ctx, req.Msg.Tenant, req.Msg.TaskId)
	if err != nil {
		return nil, err
	}
	if !protocol.State(t.State).Terminal() {
		limit, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		defer context.AfterFunc(s.stop, cancel)()
		s.waits.Wait(limit, protocol.ID(t.ID))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		look, cancelLook := context.WithDeadline(ctx, lastLook)
		defer cancelLook()
		last, err := s.store.GetTask(look, t.ID)
		switch {
		case err == nil:
			t = last
		case look.Err() == nil || ctx.Err() != nil:
			return nil, failure(err)
		}
		// Else Postgres takes its time: what the first look saw is an answer, too.
	}
	return connect.NewResponse(&penstockv1.WaitTaskResponse{Done: protocol.State(t.State).Terminal(), Task: taskOf(t)}), nil
}

// CountTasks implements the RPC.
func (s *Service) CountTasks(ctx context.Context, req *connect.Request[penstockv1.CountTasksRequest]) (*connect.Response[penstockv1.CountTasksResponse], error) {
	if err := checkFilters(filter{"tenant", req.Msg.Tenant}, filter{"queue", req.Msg.Queue}, filter{"type", req.Msg.Type}); err != nil {
		return nil, err
	}
	rows, err := s.store.CountTasks(ctx, dbsqlc.CountTasksParams{Tenant: req.Msg.Tenant, Queue: req.Msg.Queue, Type: req.Msg.Type})
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.CountTasksResponse{}
	for _, r := range rows {
		out.Counts = append(out.Counts, &penstockv1.StateCount{State: r.State, Count: r.Count})
	}
	return connect.NewResponse(out), nil
}
