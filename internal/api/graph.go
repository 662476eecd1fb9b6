package api

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// isGraph reports whether any item has a local name or refers to one: then all
// are stored or none.
func isGraph(items []*penstockv1.EnqueueRequest) bool {
	for _, t := range items {
		if t.Name != "" {
			return true
		}
		for _, d := range t.DependsOn {
			if d.GetName() != "" {
				return true
			}
		}
	}
	return false
}

func (s *Service) enqueueGraph(ctx context.Context, m *penstockv1.EnqueueBatchRequest) (*connect.Response[penstockv1.EnqueueBatchResponse], error) {
	n := len(m.Tasks)
	if n > enqueue.MaxGraphTasks {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "tasks", "has %d items, want 1 to %d in a graph", n, enqueue.MaxGraphTasks)
	}
	rs := make([]*enqueue.Request, n)
	for i, t := range m.Tasks {
		rs[i] = s.requestOf(ctx, t)
	}
	results, err := s.enqueue.EnqueueGraph(ctx, rs)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.EnqueueBatchResponse{Results: make([]*penstockv1.EnqueueResult, n)}
	for i, r := range results {
		item := &penstockv1.EnqueueResult{IdempotentHit: r.Hit, TaskId: r.TaskID()}
		if !m.IdsOnly {
			item.Task = taskOf(r.Task())
		}
		out.Results[i] = item
	}
	return connect.NewResponse(out), nil
}

// Bounds of ListDependencies.
const (
	defaultDependencies = 100
	maxDependencies     = 1000
	// maxDependencyBytes bounds the results of one page; a single longer one is a
	// page of its own.
	maxDependencyBytes = 4 << 20
)

// ListDependencies implements the RPC.
func (s *Service) ListDependencies(ctx context.Context, req *connect.Request[penstockv1.ListDependenciesRequest]) (*connect.Response[penstockv1.ListDependenciesResponse], error) {
	m := req.Msg
	size := int(m.PageSize)
	if size < 0 || size > maxDependencies {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "page_size", "is %d, want 0 to %d", size, maxDependencies)
	}
	if size == 0 {
		size = defaultDependencies
	}
	after := -1
	if c, err := cursorOf(m); err != nil {
		return nil, err
	} else if c != nil {
		after = int(c.N)
	}
	t, err := s.find(ctx, m.Tenant, m.TaskId)
	if err != nil {
		return nil, err
	}
	arg := dbsqlc.DependencyResultsParams{TaskIds: []pgid.ID{t.ID}, AfterPosition: int32(after), MaxRows: int32(size + 1), MaxBytes: maxDependencyBytes}
	rows, err := s.store.DependencyResults(ctx, arg)
	if err == nil && len(rows) > 0 && rows[0].Cut {
		arg.MaxRows, arg.MaxBytes = 1, 1<<40
		if rows, err = s.store.DependencyResults(ctx, arg); err == nil && len(rows) > 0 {
			size = 0 // there may be more
		}
	}
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListDependenciesResponse{}
	for i, r := range rows {
		if i > 0 && (r.Cut || i == size) {
			break
		}
		d := store.DependencyResult(r)
		out.Dependencies = append(out.Dependencies, &penstockv1.DependencyState{
			TaskId: d.TaskID, Name: d.Name, Type: d.Type, State: string(d.State), Result: r.Result, ErrorCode: string(d.ErrorCode), Error: d.Error,
		})
		after = int(r.Position)
	}
	if len(out.Dependencies) < len(rows) || size == 0 {
		out.NextPageToken = tokenFor(m, cursor{N: int32(after)})
	}
	return connect.NewResponse(out), nil
}

// Bounds of GetTaskGraph.
const (
	defaultGraphTasks = 1000
	// maxGraphEdges bounds the edges that are looked at in one step.
	maxGraphEdges = 100_000
)

// GetTaskGraph implements the RPC.
func (s *Service) GetTaskGraph(ctx context.Context, req *connect.Request[penstockv1.GetTaskGraphRequest]) (*connect.Response[penstockv1.GetTaskGraphResponse], error) {
	most := int(req.Msg.MaxTasks)
	if most < 0 || most > enqueue.MaxGraphTasks {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "max_tasks", "is %d, want 0 to %d", most, enqueue.MaxGraphTasks)
	}
	if most == 0 {
		most = defaultGraphTasks
	}
	t, err := s.find(ctx, req.Msg.Tenant, req.Msg.TaskId)
	if err != nil {
		return nil, err
	}
	w := &graphWalk{store: s.store, most: most, seen: map[pgid.ID]bool{}, edges: map[[2]pgid.ID]*dbsqlc.TaskDependency{}}
	if err := w.walk(ctx, t.ID); err != nil {
		return nil, failure(err)
	}
	out, err := w.response(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(out), nil
}

// graphWalk follows edges in both directions, breadth first.
type graphWalk struct {
	store     *store.Store
	most      int
	order     []pgid.ID
	seen      map[pgid.ID]bool
	edges     map[[2]pgid.ID]*dbsqlc.TaskDependency
	sorted    []*dbsqlc.TaskDependency
	truncated bool
}

func (w *graphWalk) add(id pgid.ID, next []pgid.ID) []pgid.ID {
	switch {
	case w.seen[id]:
		return next
	case len(w.order) >= w.most:
		w.truncated = true
		return next
	}
	w.seen[id] = true
	w.order = append(w.order, id)
	return append(next, id)
}

func (w *graphWalk) walk(ctx context.Context, from pgid.ID) error {
	for front := w.add(from, nil); len(front) > 0; {
		rows, err := w.store.EdgesOf(ctx, maxGraphEdges, front)
		if err != nil {
			return fmt.Errorf("read the dependencies of %d tasks: %w", len(front), err)
		}
		w.truncated = w.truncated || len(rows) == maxGraphEdges
		front = nil
		for _, e := range rows {
			key := [2]pgid.ID{e.TaskID, e.UpstreamID}
			if w.edges[key] == nil {
				w.edges[key] = e
				w.sorted = append(w.sorted, e)
			}
			front = w.add(e.TaskID, w.add(e.UpstreamID, front))
		}
	}
	return nil
}

// response reads the tasks. One that is gone is there with its id only.
func (w *graphWalk) response(ctx context.Context) (*penstockv1.GetTaskGraphResponse, error) {
	rows, err := w.store.GraphTasks(ctx, w.order)
	if err != nil {
		return nil, fmt.Errorf("read %d tasks: %w", len(w.order), err)
	}
	byID := make(map[pgid.ID]*dbsqlc.GraphTasksRow, len(rows))
	for _, r := range rows {
		byID[r.ID] = r
	}
	out := &penstockv1.GetTaskGraphResponse{Truncated: w.truncated}
	for _, id := range w.order {
		t := &penstockv1.GraphTask{Id: protocol.ID(id).String(), TaskId: protocol.ID(id).String()}
		if r := byID[id]; r != nil {
			t.TaskId, t.Type, t.Queue, t.State = store.TaskID(protocol.ID(id), store.Deref(r.Name)), r.Type, r.Queue, r.State
			t.Attempt, t.OpenDependencies, t.OnDependencyFailure = r.Attempt, r.OpenDependencies, store.Deref(r.OnDependencyFailure)
			t.ErrorCode, t.Error = store.Deref(r.LastErrorCode), store.Deref(r.LastErrorReason)
			t.CreatedAt, t.StartedAt, t.FinishedAt = timestamppb.New(r.CreatedAt), timeOf(r.StartedAt), timeOf(r.FinishedAt)
		}
		out.Tasks = append(out.Tasks, t)
	}
	for _, e := range w.sorted {
		if w.seen[e.TaskID] && w.seen[e.UpstreamID] {
			out.Edges = append(out.Edges, &penstockv1.GraphEdge{
				Id: protocol.ID(e.TaskID).String(), UpstreamId: protocol.ID(e.UpstreamID).String(), Name: e.Name, Settled: e.Settled,
			})
		}
	}
	return out, nil
}
