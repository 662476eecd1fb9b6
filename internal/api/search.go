package api

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// searchBack is how far SearchEvents looks back if it is told neither when nor
// which tasks.
const searchBack = 24 * time.Hour

// maxWorkflow is how many tasks a workflow or a trace may have for SearchEvents
// to follow it.
const maxWorkflow = 50_000

// checkTypes refuses what is no type of event.
func checkTypes(types []string) error {
	for _, t := range types {
		if !knownType(t) {
			return protocol.Errorf(protocol.CodeInputInvalid, "types", "has %q, want any of %v", clip(t), protocol.EventTypes())
		}
	}
	return nil
}

func checkAttempt(n int32) error {
	if n < 0 {
		return protocol.Errorf(protocol.CodeInputInvalid, "attempt", "is %d, want 1 or more, or 0 for all", n)
	}
	return nil
}

// attemptOf reads the attempt that a request's filters admit, and the id that
// its run_id names, if it has one.
func attemptOf(attempt int32, runID string) (n int32, taskID string, err error) {
	if err := checkAttempt(attempt); err != nil {
		return 0, "", err
	}
	if runID == "" {
		return attempt, "", nil
	}
	if attempt != 0 {
		return 0, "", protocol.Errorf(protocol.CodeInputInvalid, "run_id", "and attempt exclude each other")
	}
	i := strings.LastIndexByte(runID, ':')
	if i > 0 {
		if v, err := strconv.ParseInt(runID[i+1:], 10, 32); err == nil && v >= 1 && runID[i+1] != '+' {
			return int32(v), runID[:i], nil
		}
	}
	return 0, "", protocol.Errorf(protocol.CodeInputInvalid, "run_id", "is %q, want task_id:attempt", clip(runID))
}

// searchParams checks a request and turns its filters into parameters.
func searchParams(m *penstockv1.SearchEventsRequest, now time.Time) (p dbsqlc.SearchAllEventsParams, err error) {
	size, err := pageSize(m.PageSize)
	if err == nil {
		err = errors.Join(checkTypes(m.Types), checkAttempt(m.Attempt))
	}
	if err == nil {
		err = checkFilters(filter{"tenant", m.Tenant}, filter{"workflow_id", m.WorkflowId}, filter{"trace_id", m.TraceId})
	}
	if err != nil {
		return p, first(err)
	}
	p = dbsqlc.SearchAllEventsParams{
		Since: farPast, Until: farFuture, AfterAt: farPast, Tenant: m.Tenant, Attempt: m.Attempt, Types: append([]string{}, m.Types...), MaxRows: size + 1,
	}
	if m.WorkflowId == "" && m.TraceId == "" && m.Since == nil {
		p.Since = now.Add(-searchBack)
	}
	for _, b := range []struct {
		field string
		given *timestamppb.Timestamp
		set   *time.Time
	}{{"since", m.Since, &p.Since}, {"until", m.Until, &p.Until}} {
		if b.given == nil {
			continue
		}
		if !b.given.IsValid() {
			return p, protocol.Errorf(protocol.CodeInputInvalid, b.field, "is not a time from year 1 to 9999")
		}
		*b.set = b.given.AsTime()
	}
	if !p.Since.Before(p.Until) {
		return p, protocol.Errorf(protocol.CodeInputInvalid, "until", "is not after since (%s)", p.Since.UTC().Format(time.RFC3339))
	}
	c, err := cursorOf(m)
	if err != nil || c == nil {
		return p, err
	}
	p.AfterAt, p.AfterSeq = c.At, c.N
	p.AfterTask, err = c.id()
	return p, err
}

// first returns the first of joined errors: a caller is told one field.
func first(err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()[0]
	}
	return err
}

// SearchEvents implements the RPC.
func (s *Service) SearchEvents(ctx context.Context, req *connect.Request[penstockv1.SearchEventsRequest]) (*connect.Response[penstockv1.SearchEventsResponse], error) {
	m := req.Msg
	p, err := searchParams(m, time.Now())
	if err != nil {
		return nil, err
	}
	var rows []*dbsqlc.WatchEventsRow
	out := &penstockv1.SearchEventsResponse{}
	if m.WorkflowId == "" && m.TraceId == "" {
		var next time.Time
		if rows, next, err = s.searchAll(ctx, p, time.Now()); err != nil {
			return nil, err
		}
		if !next.IsZero() {
			out.NextPageToken, out.SearchedUntil = tokenFor(m, cursor{At: next}), timestamppb.New(next)
		}
	} else if rows, err = s.searchTasks(ctx, m, p); err != nil {
		return nil, err
	}
	if size := int(p.MaxRows) - 1; len(rows) > size {
		rows = rows[:size]
		last := rows[size-1]
		at := after(last.OccurredAt, last.TaskID)
		at.N = last.Seq
		out.NextPageToken = tokenFor(m, at)
	}
	for _, r := range rows {
		out.Events = append(out.Events, eventOf(r))
	}
	return connect.NewResponse(out), nil
}

// searchTasks reads a page of the events of a workflow's or a trace's tasks.
func (s *Service) searchTasks(ctx context.Context, m *penstockv1.SearchEventsRequest, p dbsqlc.SearchAllEventsParams) (rows []*dbsqlc.WatchEventsRow, err error) {
	ids, err := s.searched(ctx, m)
	if err != nil {
		return nil, err
	}
	found, err := s.store.SearchTaskEvents(ctx, dbsqlc.SearchTaskEventsParams{
		TaskIds: ids, Since: p.Since, Until: p.Until, AfterAt: p.AfterAt, AfterTask: p.AfterTask, AfterSeq: p.AfterSeq,
		Attempt: p.Attempt, Types: p.Types, MaxRows: p.MaxRows,
	})
	if err != nil {
		return nil, failure(err)
	}
	for _, r := range found {
		rows = append(rows, (*dbsqlc.WatchEventsRow)(r))
	}
	return rows, nil
}

// searched finds the tasks that both the workflow and the trace admit.
func (s *Service) searched(ctx context.Context, m *penstockv1.SearchEventsRequest) (ids []pgid.ID, err error) {
	if m.WorkflowId != "" {
		root, err := s.workflow(ctx, m.Tenant, m.WorkflowId)
		if err != nil {
			return nil, err
		}
		ids, err = s.store.WorkflowTasks(ctx, dbsqlc.WorkflowTasksParams{WorkflowID: &root, Tenant: m.Tenant, MaxRows: maxWorkflow + 1})
		if err = followed("workflow_id", ids, err); err != nil {
			return nil, err
		}
	}
	if m.TraceId != "" {
		traced, err := s.store.TraceTasks(ctx, dbsqlc.TraceTasksParams{TraceID: m.TraceId, Tenant: m.Tenant, NamedIn: pgid.ID(tracedTask(m.TraceId)), MaxRows: maxWorkflow + 1})
		if err = followed("trace_id", traced, err); err != nil {
			return nil, err
		}
		if m.WorkflowId == "" {
			ids = traced
		} else {
			ids = both(ids, traced)
		}
	}
	return ids, nil
}

// followed refuses a workflow or a trace, named by a field, of too many tasks.
func followed(field string, ids []pgid.ID, err error) error {
	if err == nil && len(ids) > maxWorkflow {
		return protocol.Errorf(protocol.CodeInputInvalid, field, "has more than %d tasks, which is too many to follow: give a time instead (since, until)", maxWorkflow)
	}
	if err != nil {
		return failure(err)
	}
	return nil
}

func both(a, b []pgid.ID) (out []pgid.ID) {
	in := make(map[pgid.ID]bool, len(a))
	for _, id := range a {
		in[id] = true
	}
	for _, id := range b {
		if in[id] {
			out = append(out, id)
		}
	}
	return out
}

// tracedTask is the task for which a trace id was made; zero if a caller gave it.
func tracedTask(traceID string) protocol.ID {
	rest, ok := strings.CutPrefix(traceID, "trace-run-")
	if i := strings.IndexByte(rest, ':'); ok && i > 0 {
		if id, err := protocol.ParseID(rest[:i]); err == nil {
			return id
		}
	}
	return protocol.ID{}
}

// workflow resolves the id of a graph, or of any of its tasks, to the graph's;
// that of another task to its own.
func (s *Service) workflow(ctx context.Context, tenant, workflowID string) (pgid.ID, error) {
	if workflowID == "" || len(workflowID) > 255 {
		return pgid.ID{}, protocol.Errorf(protocol.CodeInputInvalid, "workflow_id", "has %d bytes, want 1 to 255", len(workflowID))
	}
	t, err := s.find(ctx, tenant, workflowID)
	if err == nil {
		if t.GraphID != nil {
			return *t.GraphID, nil
		}
		return t.ID, nil
	}
	if protocol.CodeOf(err) != protocol.CodeNotFound {
		return pgid.ID{}, err
	}
	// Its first task may be gone, and a UUID needs no tenant.
	if id, perr := protocol.ParseID(workflowID); perr == nil {
		if _, serr := s.store.WorkflowState(ctx, pgid.ID(id), tenant); serr == nil {
			return pgid.ID(id), nil
		} else if !errors.Is(serr, pgx.ErrNoRows) {
			return pgid.ID{}, failure(serr)
		}
	}
	return pgid.ID{}, protocol.Errorf(protocol.CodeNotFound, "workflow_id", "there is no workflow %q", clip(workflowID))
}

// GetWorkflow implements the RPC.
func (s *Service) GetWorkflow(ctx context.Context, req *connect.Request[penstockv1.GetWorkflowRequest]) (*connect.Response[penstockv1.GetWorkflowResponse], error) {
	root, err := s.workflow(ctx, req.Msg.Tenant, req.Msg.WorkflowId)
	if err != nil {
		return nil, err
	}
	w, err := s.store.WorkflowState(ctx, root, req.Msg.Tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, protocol.Errorf(protocol.CodeNotFound, "workflow_id", "there is no workflow %q", clip(req.Msg.WorkflowId))
	}
	if err != nil {
		return nil, failure(err)
	}
	var r protocol.RetryContext
	if err := json.Unmarshal(w.RetryContext, &r); err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.GetWorkflowResponse{
		WorkflowId: protocol.ID(w.WorkflowID).String(), Status: w.Status, Tasks: w.Tasks, OpenTasks: w.OpenTasks,
		RetryContext: &penstockv1.RetryContext{CurrentAttempt: int32(r.CurrentAttempt), LastBackoff: r.LastBackoff},
		CreatedAt:    timestamppb.New(w.CreatedAt), UpdatedAt: timestamppb.New(w.UpdatedAt),
	}), nil
}
