package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/metrics"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// MaxClones is the most tasks that one call makes anew with a graph.
const MaxClones = 20_000

// regraph is what is made anew along with dead letters.
type regraph struct {
	// task is the new task of each original, and of those that an original was
	// requeued from; plan the dead letter behind each task that is made anew.
	task  map[pgid.ID]pgid.ID
	plan  map[pgid.ID]*plan
	order []pgid.ID // the originals of the clones, each after what it depends on within them, or beside it
	edges []*dbsqlc.EdgesToCloneRow
}

// lockUpstreams locks, in one order of ids, what the dead letters' tasks depended
// on and others, which the transaction will lock. The former are marked: the new
// tasks depend on them, and retention must see that.
func lockUpstreams(ctx context.Context, q *dbsqlc.Queries, plans []*plan, others []pgid.ID) ([]*dbsqlc.LockUpstreamsRow, error) {
	tasks := make([]pgid.ID, len(plans))
	for i, pl := range plans {
		tasks[i] = *pl.row.TaskID
	}
	ups, err := q.UpstreamsOf(ctx, tasks)
	if err != nil {
		return nil, fmt.Errorf("read what %d tasks depended on: %w", len(tasks), err)
	}
	lock := slices.Concat(tasks, ups, others)
	slices.SortFunc(lock, func(a, b pgid.ID) int { return slices.Compare(a[:], b[:]) })
	there, err := store.LockUpstreams(ctx, q, slices.Compact(lock))
	if err != nil {
		return nil, err
	}
	return there, store.MarkUpstreams(ctx, q, there, ups)
}

// planGraph finds the tasks that were cancelled because of the dead letters, and
// locks in one order of ids all that the transaction will lock.
func planGraph(ctx context.Context, q *dbsqlc.Queries, plans []*plan) (*regraph, error) {
	g := &regraph{task: map[pgid.ID]pgid.ID{}, plan: map[pgid.ID]*plan{}}
	var front []pgid.ID
	byTask := map[pgid.ID]*plan{}
	for _, pl := range plans {
		byTask[*pl.row.TaskID] = pl
		front = append(front, g.root(*pl.row.TaskID, pl))
	}
	origins, err := q.OriginsOf(ctx, front)
	if err != nil {
		return nil, fmt.Errorf("read what %d dead letters were requeued from: %w", len(plans), err)
	}
	for _, o := range origins {
		if g.plan[o.OriginID] == nil {
			front = append(front, g.root(o.OriginID, byTask[o.TaskID]))
		}
	}
	lock := slices.Clone(front)
	for len(front) > 0 {
		if front, err = g.next(ctx, q, front); err != nil {
			return nil, err
		}
	}
	for _, e := range g.edges {
		if _, cloned := g.task[e.UpstreamID]; !cloned {
			lock = append(lock, e.StandIn)
		}
	}
	there, err := lockUpstreams(ctx, q, plans, lock)
	if err != nil {
		return nil, err
	}
	g.keep(there)
	return g, nil
}

// root notes a task that the new one of a dead letter stands for.
func (g *regraph) root(id pgid.ID, pl *plan) pgid.ID {
	g.task[id], g.plan[id] = pgid.ID(pl.task), pl
	return id
}

// next finds the tasks that were cancelled because of those in front.
func (g *regraph) next(ctx context.Context, q *dbsqlc.Queries, front []pgid.ID) ([]pgid.ID, error) {
	untold, err := q.UntoldDependants(ctx, front)
	if err != nil {
		return nil, fmt.Errorf("look for tasks that wait for %d: %w", len(front), err)
	}
	if untold {
		return nil, conflict("graph", "tasks that depend on these are just being cancelled: try again in a moment")
	}
	found, err := q.CancelledDependants(ctx, front)
	if err != nil {
		return nil, fmt.Errorf("look for tasks that depended on %d: %w", len(front), err)
	}
	found = slices.DeleteFunc(found, func(id pgid.ID) bool { return g.plan[id] != nil })
	if len(g.order)+len(found) > MaxClones {
		return nil, bad("graph", "more than %d tasks were cancelled because of these dead letters: requeue fewer at a time", MaxClones)
	}
	edges, err := q.EdgesToClone(ctx, found)
	if err != nil {
		return nil, fmt.Errorf("read what %d tasks depended on: %w", len(found), err)
	}
	return g.adopt(found, edges), nil
}

// adopt plans a clone of each task that was found, by its edges, and returns them.
// One of which no edge leads to a planned task any more is left out: retention
// has just removed what it depended on.
func (g *regraph) adopt(found []pgid.ID, edges []*dbsqlc.EdgesToCloneRow) []pgid.ID {
	by := map[pgid.ID]*plan{}
	for _, e := range edges {
		if pl := g.plan[e.UpstreamID]; pl != nil && by[e.TaskID] == nil {
			by[e.TaskID] = pl
		}
	}
	found = slices.DeleteFunc(found, func(id pgid.ID) bool { return by[id] == nil })
	for _, id := range found {
		g.plan[id], g.task[id] = by[id], pgid.ID(uuid.Must(uuid.NewV7()))
	}
	edges = slices.DeleteFunc(edges, func(e *dbsqlc.EdgesToCloneRow) bool { return by[e.TaskID] == nil })
	g.order, g.edges = append(g.order, found...), append(g.edges, edges...)
	return found
}

// keep leaves out edges to tasks that are neither made anew nor there.
func (g *regraph) keep(there []*dbsqlc.LockUpstreamsRow) {
	found := make(map[pgid.ID]bool, len(there))
	for _, r := range there {
		found[r.ID] = true
	}
	g.edges = slices.DeleteFunc(g.edges, func(e *dbsqlc.EdgesToCloneRow) bool {
		id, cloned := g.task[e.UpstreamID]
		if !cloned { // what stands for it now may be made anew, too
			id, cloned = g.task[e.StandIn]
		}
		if cloned {
			e.StandIn = id
		}
		return !cloned && !found[e.StandIn]
	})
}

// store makes the clones, after the new tasks of the dead letters are stored.
func (g *regraph) store(ctx context.Context, q *dbsqlc.Queries, st *store.Store, tasks *metrics.Tasks, o RequeueOptions) error {
	if g == nil || len(g.order) == 0 {
		return nil
	}
	p := dbsqlc.CloneTasksParams{Actor: protocol.ActorUser(o.Principal), Principal: orAnonymous(o.Principal)}
	var edges dbsqlc.InsertDependenciesParams
	seen := map[[2]pgid.ID]bool{}
	count := map[pgid.ID]int32{}
	for _, e := range g.edges {
		if g.plan[e.TaskID].result.Err != nil || seen[[2]pgid.ID{e.TaskID, e.StandIn}] {
			continue
		}
		seen[[2]pgid.ID{e.TaskID, e.StandIn}] = true
		edges.TaskIds, edges.UpstreamIds = append(edges.TaskIds, g.task[e.TaskID]), append(edges.UpstreamIds, e.StandIn)
		edges.Positions, edges.Names = append(edges.Positions, e.Position), append(edges.Names, e.Name)
		count[e.TaskID]++
	}
	for _, id := range g.order {
		pl := g.plan[id]
		if pl.result.Err != nil {
			continue
		}
		clone := g.task[id]
		p.TaskIds, p.CloneIds, p.DlqIds = append(p.TaskIds, id), append(p.CloneIds, clone), append(p.DlqIds, pl.row.DlqID)
		p.TraceIds = append(p.TraceIds, fmt.Sprintf("trace-run-%s:1-%s", protocol.ID(clone), uuid.NewString()))
		p.Dependencies = append(p.Dependencies, count[id])
		pl.result.Clones++
	}
	made, err := q.CloneTasks(ctx, p)
	if err != nil {
		return fmt.Errorf("make %d cancelled tasks anew: %w", len(p.TaskIds), err)
	}
	if len(made) != len(p.TaskIds) { // retention removed one just now
		return fmt.Errorf("requeue: %d of %d cancelled tasks found; try again", len(made), len(p.TaskIds))
	}
	st.AfterCommit(q, func() {
		for _, m := range made {
			tasks.Enqueued(m.Queue, m.Type, metrics.Requeued)
		}
	})
	return st.Depend(ctx, q, edges, nil)
}
