package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/pipeline/heartbeat"
	"github.com/penstock-dev/penstock/internal/pipeline/reclaim"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Workers implements penstockv1connect.WorkerServiceHandler.
type Workers struct {
	store *store.Store
	beats *heartbeat.Stage
	evict Evict
	// principal is who makes the call; empty: anonymous.
	principal func(ctx context.Context) string
}

// Evict takes over what a worker holds; it is reclaim.Reclaimer's.
type Evict func(ctx context.Context, e reclaim.Eviction) (reclaim.Evicted, error)

// NewWorkers makes a Workers. principal tells who makes a call.
func NewWorkers(s *store.Store, b *heartbeat.Stage, evict Evict, principal func(ctx context.Context) string) *Workers {
	return &Workers{store: s, beats: b, evict: evict, principal: principal}
}

const (
	// maxWorkers is the most workers of a list, maxShownTasks the most running tasks
	// of all of them together, and maxOfWorker of each.
	maxWorkers, maxShownTasks, maxOfWorker = 10_000, 10_000, 50
	// maxBeatInterval bounds the time between two heartbeats.
	maxBeatInterval = 24 * time.Hour
)

// Heartbeat implements the RPC.
func (s *Workers) Heartbeat(ctx context.Context, req *connect.Request[penstockv1.HeartbeatRequest]) (*connect.Response[penstockv1.HeartbeatResponse], error) {
	m := req.Msg
	w, tasks, err := beatOf(m)
	if err != nil {
		return nil, err
	}
	if m.Leaving {
		if err := s.beats.Leave(ctx, w.ID); err != nil {
			return nil, failure(err)
		}
		return connect.NewResponse(&penstockv1.HeartbeatResponse{}), nil
	}
	a, err := s.beats.Beat(ctx, w, tasks)
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.HeartbeatResponse{
		Cancelled: pairsOf(a.Cancelled), Superseded: pairsOf(a.Superseded), Drain: a.Drain, Unclaimed: pairsOf(a.Unclaimed),
	}), nil
}

func beatOf(m *penstockv1.HeartbeatRequest) (*heartbeat.Worker, []heartbeat.Running, error) {
	bad := func(field, format string, args ...any) error {
		return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
	}
	if m.WorkerId == "" {
		return nil, nil, bad("worker_id", "is required")
	}
	texts := map[string]string{"worker_id": m.WorkerId, "host": m.Host, "version": m.Version}
	for i, q := range m.Queues {
		texts[fmt.Sprintf("queues[%d]", i)] = q
	}
	for field, text := range texts {
		if len(text) > 255 || strings.ContainsRune(text, 0) {
			return nil, nil, bad(field, "has %d bytes, want at most 255 without NUL", len(text))
		}
	}
	switch {
	case len(m.Queues) > heartbeat.MaxTasks:
		return nil, nil, bad("queues", "has %d items, at most %d are allowed", len(m.Queues), heartbeat.MaxTasks)
	case len(m.Tasks) > heartbeat.MaxTasks:
		return nil, nil, bad("tasks", "has %d items, at most %d are allowed", len(m.Tasks), heartbeat.MaxTasks)
	case !m.Leaving && (m.IntervalMs < 1 || m.IntervalMs > maxBeatInterval.Milliseconds()):
		return nil, nil, bad("interval_ms", "is %d, want 1 to %d", m.IntervalMs, maxBeatInterval.Milliseconds())
	}
	tasks := make([]heartbeat.Running, len(m.Tasks))
	for i, t := range m.Tasks {
		id, err := protocol.ParseID(t.Id)
		if err != nil {
			return nil, nil, bad(fmt.Sprintf("tasks[%d].id", i), "%v", err)
		}
		tasks[i].Pair = protocol.Pair{ID: id, Delivery: t.Delivery}
		if len(t.Progress) == 0 {
			continue
		}
		if err := protocol.CheckProgress(t.Progress); err != nil {
			return nil, nil, bad(fmt.Sprintf("tasks[%d].progress", i), "%v", err)
		}
		tasks[i].Progress = t.Progress
	}
	queues := m.Queues
	if queues == nil {
		queues = []string{} // the column is not null
	}
	return &heartbeat.Worker{
		ID: m.WorkerId, Host: m.Host, Version: m.Version, PID: m.Pid, Queues: queues, Concurrency: m.Concurrency,
		Running: m.Running, Stuck: m.Stuck, Interval: time.Duration(m.IntervalMs) * time.Millisecond,
	}, tasks, nil
}

func pairsOf(ps []protocol.Pair) []*penstockv1.TaskDelivery {
	out := make([]*penstockv1.TaskDelivery, len(ps))
	for i, p := range ps {
		out[i] = &penstockv1.TaskDelivery{Id: p.ID.String(), Delivery: p.Delivery}
	}
	return out
}

// ListWorkers implements the RPC.
func (s *Workers) ListWorkers(ctx context.Context, _ *connect.Request[penstockv1.ListWorkersRequest]) (*connect.Response[penstockv1.ListWorkersResponse], error) {
	tasks, err := s.store.RunningTasks(ctx, maxShownTasks)
	if err != nil {
		return nil, failure(err)
	}
	byWorker := map[string][]*dbsqlc.RunningTasksRow{}
	for _, t := range tasks {
		byWorker[t.WorkerID] = append(byWorker[t.WorkerID], t)
	}
	delete(byWorker, "") // moved by hand
	full := len(tasks) == maxShownTasks
	rows, err := s.store.ListWorkers(ctx, slices.Collect(maps.Keys(byWorker)), maxWorkers)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListWorkersResponse{}
	for _, w := range rows {
		out.Workers = append(out.Workers, withTasks(workerOf(w), byWorker[w.ID], full))
		delete(byWorker, w.ID)
	}
	for id, tasks := range byWorker {
		out.Workers = append(out.Workers, withTasks(&penstockv1.WorkerInfo{WorkerId: id}, tasks, full))
	}
	slices.SortFunc(out.Workers, func(a, b *penstockv1.WorkerInfo) int { return strings.Compare(a.WorkerId, b.WorkerId) })
	out.Workers = out.Workers[:min(len(out.Workers), maxWorkers)]
	return connect.NewResponse(out), nil
}

// withTasks adds what a worker runs, longest running first; cut tells that there may
// be more.
func withTasks(w *penstockv1.WorkerInfo, tasks []*dbsqlc.RunningTasksRow, cut bool) *penstockv1.WorkerInfo {
	slices.SortStableFunc(tasks, func(a, b *dbsqlc.RunningTasksRow) int { return a.StartedAt.Time.Compare(b.StartedAt.Time) })
	w.TasksCut = cut || len(tasks) > maxOfWorker
	for _, t := range tasks[:min(len(tasks), maxOfWorker)] {
		w.Tasks = append(w.Tasks, &penstockv1.WorkerTask{
			TaskId: store.TaskID(protocol.ID(t.ID), store.Deref(t.Name)), Tenant: t.Tenant, Type: t.Type, Queue: t.Queue, Attempt: t.Attempt, StartedAt: timeOf(t.StartedAt),
		})
	}
	return w
}

// EvictWorker implements the RPC.
func (s *Workers) EvictWorker(ctx context.Context, req *connect.Request[penstockv1.EvictWorkerRequest]) (*connect.Response[penstockv1.EvictWorkerResponse], error) {
	m := req.Msg
	done, err := s.evict(ctx, reclaim.Eviction{Worker: m.WorkerId, Principal: s.principal(ctx), Reason: m.Reason, Force: m.Force})
	switch {
	case err == nil:
	case protocol.CodeOf(err) == "" && ctx.Err() == nil && (reclaim.Unreachable(err) || errors.Is(err, reclaim.ErrBacklog)):
		return nil, rpc.Unavailable(err)
	default:
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.EvictWorkerResponse{Reclaimed: int32(done.Reclaimed), Entries: int32(done.Entries)}), nil
}

// DrainWorker implements the RPC.
func (s *Workers) DrainWorker(ctx context.Context, req *connect.Request[penstockv1.DrainWorkerRequest]) (*connect.Response[penstockv1.DrainWorkerResponse], error) {
	id := req.Msg.WorkerId
	if id == "" || len(id) > 255 || strings.ContainsRune(id, 0) {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "worker_id", "has %d bytes, want 1 to 255 without NUL", len(id))
	}
	by := s.principal(ctx)
	if by == "" {
		by = protocol.Anonymous
	}
	w, err := s.store.DrainWorker(ctx, by, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "worker_id", "no worker %q has sent a heartbeat lately", clip(id))
	}
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.DrainWorkerResponse{Worker: workerOf(w)}), nil
}

func workerOf(w *dbsqlc.Worker) *penstockv1.WorkerInfo {
	return &penstockv1.WorkerInfo{
		WorkerId: w.ID, Host: w.Host, Pid: w.Pid, Version: w.Version, Queues: w.Queues, Concurrency: w.Concurrency, Running: w.Running,
		Stuck: w.Stuck, StartedAt: timestamppb.New(w.StartedAt), SeenAt: timestamppb.New(w.SeenAt), DrainAt: timeOf(w.DrainAt), DrainBy: store.Deref(w.DrainBy),
	}
}
