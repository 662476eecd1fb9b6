package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// dependencyOverhead is what one dependency takes besides its result and error
// text, in bytes of JSON, at least.
const dependencyOverhead = 150

// InlineDependencies returns, for each of the tasks, how what it depends on ended,
// as its entry carries it: JSON of a protocol.Dependencies of at most
// protocol.MaxInlineDependencies bytes.
func InlineDependencies(ctx context.Context, q *dbsqlc.Queries, ids []protocol.ID) (map[protocol.ID][]byte, error) {
	rows, err := q.DependencyResults(ctx, dbsqlc.DependencyResultsParams{
		TaskIds: pgid.Slice(ids), AfterPosition: -1, MaxRows: protocol.MaxInlineDependencies/dependencyOverhead + 1, MaxBytes: protocol.MaxInlineDependencies,
	})
	if err != nil {
		return nil, fmt.Errorf("read the dependencies of %d tasks: %w", len(ids), err)
	}
	out := make(map[protocol.ID][]byte, len(ids))
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && rows[n].TaskID == rows[0].TaskID {
			n++
		}
		if out[protocol.ID(rows[0].TaskID)], err = inline(rows[:n]); err != nil {
			return nil, err
		}
		rows = rows[n:]
	}
	return out, nil
}

// inline takes as many as fit, in order.
func inline(rows []*dbsqlc.DependencyResultsRow) ([]byte, error) {
	d := protocol.Dependencies{Complete: true, Tasks: []protocol.DependencyResult{}}
	size := len(`{"complete":false,"tasks":[]}`)
	for i, r := range rows {
		one := DependencyResult(r)
		b, err := json.Marshal(one)
		// The error: JSON to Postgres, but not to this program.
		if size += len(b) + 1; err != nil || r.Cut || size > protocol.MaxInlineDependencies || i >= protocol.MaxInlineDependencies/dependencyOverhead {
			d.Complete = false
			break
		}
		d.Tasks = append(d.Tasks, one)
	}
	return json.Marshal(d)
}

// DependencyResult translates a row.
func DependencyResult(r *dbsqlc.DependencyResultsRow) protocol.DependencyResult {
	d := protocol.DependencyResult{
		TaskID: TaskID(protocol.ID(r.UpstreamID), Deref(r.UpstreamName)), Name: r.Name, Type: r.Type, State: protocol.State(r.State),
		Result: json.RawMessage("null"),
	}
	if len(r.Result) > 0 {
		d.Result = r.Result
	}
	if d.State != protocol.StateSucceeded {
		d.ErrorCode, d.Error = protocol.Code(Deref(r.LastErrorCode)), Deref(r.LastErrorReason)
	}
	return d
}

// Depend stores which tasks new ones depend on, in the transaction that stored
// them: it locks what they depend on in id order, so that an upstream that ends
// meanwhile either sees them or is seen to have ended. positions and names are
// those of the edges. roots are tasks whose id is the graph of some of the new
// ones: those that were alone are put into it. A *MissingError tells of upstreams
// that are gone.
func (s *Store) Depend(ctx context.Context, q *dbsqlc.Queries, edges dbsqlc.InsertDependenciesParams, roots []pgid.ID) error {
	if len(edges.TaskIds)+len(roots) == 0 {
		return nil
	}
	seen := make(map[pgid.ID]bool, len(edges.UpstreamIds))
	var ids []pgid.ID
	for _, id := range edges.UpstreamIds {
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	rows, err := LockUpstreams(ctx, q, slices.Concat(ids, without(roots, seen)))
	if err != nil {
		return err
	}
	if len(roots) > 0 {
		if err := q.BeginGraphs(ctx, roots); err != nil {
			return fmt.Errorf("begin %d graphs: %w", len(roots), err)
		}
	}
	return s.depend(ctx, q, edges, ids, rows)
}

// LockUpstreams locks tasks that others are about to depend on, live ones first,
// each in order of ids; those that are gone are missing.
func LockUpstreams(ctx context.Context, q *dbsqlc.Queries, ids []pgid.ID) ([]*dbsqlc.LockUpstreamsRow, error) {
	rows, err := q.LockUpstreams(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("lock %d tasks that others depend on: %w", len(ids), err)
	}
	live := make(map[pgid.ID]bool, len(rows))
	for _, r := range rows {
		live[r.ID] = true
	}
	ended, err := q.LockEndedUpstreams(ctx, without(ids, live))
	if err != nil {
		return nil, fmt.Errorf("lock finished ones of %d tasks that others depend on: %w", len(ids), err)
	}
	for _, r := range ended {
		rows = append(rows, (*dbsqlc.LockUpstreamsRow)(r))
	}
	return rows, nil
}

// MarkUpstreams tells those of the locked tasks that are among ids that others depend
// on them.
func MarkUpstreams(ctx context.Context, q *dbsqlc.Queries, locked []*dbsqlc.LockUpstreamsRow, ids []pgid.ID) error {
	marked := make(map[pgid.ID]bool, len(ids))
	for _, id := range ids {
		marked[id] = true
	}
	var live, ended []pgid.ID
	for _, r := range locked {
		switch {
		case !marked[r.ID]:
		case protocol.State(r.State).Terminal():
			ended = append(ended, r.ID)
		default:
			live = append(live, r.ID)
		}
	}
	if err := q.MarkUpstreams(ctx, live); err != nil {
		return fmt.Errorf("mark %d tasks that others depend on: %w", len(live), err)
	}
	if len(ended) == 0 {
		return nil
	}
	if err := q.MarkEndedUpstreams(ctx, ended); err != nil {
		return fmt.Errorf("mark %d finished tasks that others depend on: %w", len(ended), err)
	}
	return nil
}

// without returns those ids that are not in a set.
func without(ids []pgid.ID, set map[pgid.ID]bool) []pgid.ID {
	return slices.DeleteFunc(slices.Clone(ids), func(id pgid.ID) bool { return set[id] })
}

// depend stores edges to upstreams, of which rows are those that are there, locked.
func (s *Store) depend(ctx context.Context, q *dbsqlc.Queries, edges dbsqlc.InsertDependenciesParams, ids []pgid.ID, rows []*dbsqlc.LockUpstreamsRow) error {
	if len(ids) == 0 {
		return nil
	}
	missing := make(map[pgid.ID]bool, len(ids))
	for _, id := range ids {
		missing[id] = true
	}
	var ended []pgid.ID
	for _, r := range rows {
		if missing[r.ID] && protocol.State(r.State).Terminal() {
			ended = append(ended, r.ID)
		}
		delete(missing, r.ID)
	}
	for id := range missing {
		return &MissingError{ID: protocol.ID(id)}
	}
	if err := MarkUpstreams(ctx, q, rows, ids); err != nil {
		return err
	}
	if err := q.InsertDependencies(ctx, edges); err != nil {
		return fmt.Errorf("store %d dependencies: %w", len(edges.TaskIds), err)
	}
	if len(ended) == 0 {
		return nil
	}
	if err := q.InsertSettlements(ctx, ended); err != nil {
		return fmt.Errorf("note %d tasks that ended before others depended on them: %w", len(ended), err)
	}
	s.tellEnded(q)
	return nil
}

// MissingError: a task that a new one was to depend on is gone.
type MissingError struct{ ID protocol.ID }

func (e *MissingError) Error() string { return fmt.Sprintf("task %s is gone", e.ID) }
