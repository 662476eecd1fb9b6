package enqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

type scopedKey struct{ scope, key string }

// hits are the existing tasks that a batch ran into.
type hits struct {
	byKey map[scopedKey]*dbsqlc.Task
	byID  map[protocol.ID]*dbsqlc.Task
	// lost lists items that are not new: their key belongs to another task, or
	// their id is stale, or the scope of their key is another tenant's.
	lost    map[*item]bool
	foreign map[*item]bool
}

func newHits() *hits {
	return &hits{byKey: map[scopedKey]*dbsqlc.Task{}, byID: map[protocol.ID]*dbsqlc.Task{}, lost: map[*item]bool{}, foreign: map[*item]bool{}}
}

// stale reports whether a task is stored under the item's old UUIDv7.
func (h *hits) stale(it *item) bool { return !it.stale.IsZero() && h.byID[it.stale] != nil }

// result answers an item that was not created.
func (h *hits) result(it *item) batch.Result[Result] {
	t, byKey := h.byID[it.id], false
	switch {
	case h.stale(it):
		t = h.byID[it.stale]
	case h.lost[it]:
		t, byKey = h.byKey[scopedKey{it.scope, it.key}], true
	}
	// A tenant that took a name as its scope before there was a tenant of that name
	// can still repeat what it asked for.
	if t == nil && h.foreign[it] || byKey && t != nil && t.Tenant != it.tenant {
		return batch.Result[Result]{Err: bad("idempotency_scope", "is %q, which is another tenant's: choose a scope of your own", clip(it.scope))}
	}
	if t == nil {
		return batch.Result[Result]{Err: ErrGone}
	}
	if err := same(it, t, byKey); err != nil {
		return batch.Result[Result]{Err: err}
	}
	return batch.Result[Result]{Value: Result{Task: t, Hit: true}}
}

// insert takes the keys, stores the tasks that may be new, and reads those
// that exist. Keys are taken in order before ids, and ids in order, so that
// concurrent batches never wait for each other in a circle. again: the last try
// ended with errEnded.
func (s *Stage) insert(ctx context.Context, q *dbsqlc.Queries, items []*item, arg dbsqlc.InsertTasksParams, again bool) (map[protocol.ID]*dbsqlc.InsertTasksRow, *hits, error) {
	h := newHits()
	// Items with a stale id take no key: it would belong to no task.
	if err := h.findStale(ctx, q, items); err != nil {
		return nil, nil, err
	}
	if err := s.takeKeys(ctx, q, items, h); err != nil {
		return nil, nil, err
	}
	skip := h.lost
	if again { // some ids are of tasks that have ended
		var err error
		if skip, err = ended(ctx, q, items); err != nil {
			return nil, nil, err
		}
		maps.Copy(skip, h.lost)
	}
	if len(skip) > 0 {
		arg = without(items, arg, skip)
	}
	rows, err := insertTasks(ctx, q, arg)
	if err != nil {
		return nil, nil, err
	}
	if len(rows) == 0 && len(arg.Ids) > 0 {
		if err := changedRules(ctx, q, arg.GuardRevision); err != nil {
			return nil, nil, err
		}
	}
	created := make(map[protocol.ID]*dbsqlc.InsertTasksRow, len(rows))
	for _, r := range rows {
		created[protocol.ID(r.ID)] = r
	}
	if len(rows) == len(items) {
		return created, h, nil
	}
	return created, h, s.readExisting(ctx, q, items, created, h)
}

// errEnded: a task that has ended has the id of one that was to be stored. Nothing
// was; the next try is to look for such tasks first.
var errEnded = errors.New("another task with the same id has ended")

// insertTasks stores tasks. errEnded where the log has a task's first event.
func insertTasks(ctx context.Context, q *dbsqlc.Queries, arg dbsqlc.InsertTasksParams) ([]*dbsqlc.InsertTasksRow, error) {
	rows, err := q.InsertTasks(ctx, arg)
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.Code == "23505" && strings.HasPrefix(e.TableName, "event_log") {
		return nil, errEnded
	}
	if err != nil {
		return nil, fmt.Errorf("store %d tasks: %w", len(arg.Ids), err)
	}
	return rows, nil
}

// ended are the items whose ids their callers chose, and that belong to tasks that
// have ended.
func ended(ctx context.Context, q *dbsqlc.Queries, items []*item) (map[*item]bool, error) {
	out := map[*item]bool{}
	var ids []pgid.ID
	for _, it := range items {
		if it.chosen {
			ids = append(ids, pgid.ID(it.id))
		}
	}
	if len(ids) == 0 {
		return out, nil
	}
	rows, err := q.EndedAmong(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("look up %d task ids: %w", len(ids), err)
	}
	for _, it := range items {
		if slices.ContainsFunc(rows, func(r *dbsqlc.EndedAmongRow) bool { return r.ID == pgid.ID(it.id) }) {
			out[it] = true
		}
	}
	return out, nil
}

func (s *Stage) takeKeys(ctx context.Context, q *dbsqlc.Queries, items []*item, h *hits) error {
	if err := s.tenants.note(ctx, q, items); err != nil {
		return err
	}
	if err := h.findForeign(ctx, q, items); err != nil {
		return err
	}
	var p dbsqlc.InsertKeysParams
	for _, it := range items {
		if it.key != "" && !h.lost[it] {
			p.Scopes, p.Keys, p.TaskIds = append(p.Scopes, it.scope), append(p.Keys, it.key), append(p.TaskIds, pgid.ID(it.id))
		}
	}
	if len(p.Keys) == 0 {
		return nil
	}
	won, err := q.InsertKeys(ctx, p)
	if err != nil {
		return fmt.Errorf("take %d idempotency keys: %w", len(p.Keys), err)
	}
	type taken struct {
		scopedKey
		id protocol.ID
	}
	got := make(map[taken]bool, len(won))
	for _, r := range won {
		got[taken{scopedKey{r.Scope, r.Key}, protocol.ID(r.TaskID)}] = true
	}
	for _, it := range items {
		if it.key == "" || h.lost[it] {
			continue
		}
		mine := taken{scopedKey{it.scope, it.key}, it.id}
		if !got[mine] {
			h.lost[it] = true
		}
		delete(got, mine) // a repeat of the item has lost
	}
	return nil
}

// findForeign finds items whose scope is another tenant's: its name, or one in
// which tasks of that tenant have keys. A tenant's own name is always its scope. Items without a key
// are no exception: their handlers are told the scope.
func (h *hits) findForeign(ctx context.Context, q *dbsqlc.Queries, items []*item) error {
	seen := map[string]bool{}
	var scopes []string
	for _, it := range items {
		if it.scope != it.tenant && !seen[it.scope] {
			seen[it.scope] = true
			scopes = append(scopes, it.scope)
		}
	}
	if len(scopes) == 0 {
		return nil
	}
	owner, err := scopeOwners(ctx, q, scopes)
	if err != nil {
		return err
	}
	var begun []string
	for _, scope := range scopes {
		if owner[scope] == "" {
			begun = append(begun, scope)
		}
	}
	if len(begun) > 0 { // of two tenants that begin one at the same moment, the second must see the first's
		if err := q.LockScopes(ctx, begun); err != nil {
			return fmt.Errorf("begin %d idempotency scopes: %w", len(begun), err)
		}
		if owner, err = scopeOwners(ctx, q, scopes); err != nil {
			return err
		}
	}
	for _, it := range items {
		o, ok := owner[it.scope]
		switch {
		case it.scope == it.tenant:
		case ok && o != it.tenant:
			h.foreign[it], h.lost[it] = true, true
		case it.key != "": // of this call, too, only one tenant begins it
			owner[it.scope] = it.tenant
		}
	}
	return nil
}

// scopeOwners returns the tenants of scopes that have one.
func scopeOwners(ctx context.Context, q *dbsqlc.Queries, scopes []string) (map[string]string, error) {
	rows, err := q.ScopeOwners(ctx, scopes)
	if err != nil {
		return nil, fmt.Errorf("read whose %d idempotency scopes are: %w", len(scopes), err)
	}
	owner := make(map[string]string, len(rows))
	for _, r := range rows {
		owner[r.Scope] = r.Tenant
	}
	return owner, nil
}

// findStale looks for tasks under old UUIDv7s, which would be names today.
func (h *hits) findStale(ctx context.Context, q *dbsqlc.Queries, items []*item) error {
	var ids []pgid.ID
	for _, it := range items {
		if !it.stale.IsZero() {
			ids = append(ids, pgid.ID(it.stale))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := q.TasksByID(ctx, ids)
	if err != nil {
		return fmt.Errorf("look up %d old task ids: %w", len(ids), err)
	}
	for _, t := range rows {
		h.byID[protocol.ID(t.ID)] = t
	}
	for _, it := range items {
		if h.stale(it) {
			h.lost[it] = true
		}
	}
	return nil
}

// readExisting reads the tasks that the items not created ran into, and gives
// back keys that were taken for them.
func (s *Stage) readExisting(ctx context.Context, q *dbsqlc.Queries, items []*item, created map[protocol.ID]*dbsqlc.InsertTasksRow, h *hits) error {
	var ids []pgid.ID
	var scopes, keys, dropScopes, dropKeys []string
	for _, it := range items {
		switch {
		case h.stale(it):
		case h.lost[it]:
			scopes, keys = append(scopes, it.scope), append(keys, it.key)
		default:
			ids = append(ids, pgid.ID(it.id))
		}
	}
	if len(ids) > 0 {
		rows, err := q.TasksByID(ctx, ids)
		if err != nil {
			return fmt.Errorf("read %d existing tasks: %w", len(ids), err)
		}
		for _, t := range rows {
			h.byID[protocol.ID(t.ID)] = t
		}
	}
	for _, it := range items {
		// Also where the task has that key: then it has expired, and does not hold
		// again because somebody asked.
		if it.key != "" && !h.lost[it] && created[it.id] == nil {
			dropScopes, dropKeys = append(dropScopes, it.scope), append(dropKeys, it.key)
		}
	}
	if len(keys) > 0 {
		rows, err := q.TasksByKey(ctx, scopes, keys)
		if err != nil {
			return fmt.Errorf("read the tasks of %d idempotency keys: %w", len(keys), err)
		}
		for _, r := range rows {
			h.byKey[scopedKey{r.KeyScope, r.KeyKey}] = &r.Task
		}
	}
	if len(dropKeys) > 0 {
		if err := q.DropKeys(ctx, dropScopes, dropKeys); err != nil {
			return fmt.Errorf("give back %d idempotency keys: %w", len(dropKeys), err)
		}
	}
	return nil
}

// without leaves the items that lost their key out of the parameters.
func without(items []*item, p dbsqlc.InsertTasksParams, lost map[*item]bool) dbsqlc.InsertTasksParams {
	out := dbsqlc.InsertTasksParams{
		StreamQueues: p.StreamQueues, AfterIds: p.AfterIds, Rooms: p.Rooms, Owner: p.Owner, DoneOutbox: p.DoneOutbox, GuardRevision: p.GuardRevision,
	}
	for i, it := range items {
		if lost[it] {
			continue
		}
		out.Ids = append(out.Ids, p.Ids[i])
		out.Names = append(out.Names, p.Names[i])
		out.Tenants = append(out.Tenants, p.Tenants[i])
		out.Queues = append(out.Queues, p.Queues[i])
		out.Types = append(out.Types, p.Types[i])
		out.Payloads = append(out.Payloads, p.Payloads[i])
		out.ScheduleTypes = append(out.ScheduleTypes, p.ScheduleTypes[i])
		out.ScheduledAts = append(out.ScheduledAts, p.ScheduledAts[i])
		out.DelayMss = append(out.DelayMss, p.DelayMss[i])
		out.TimeoutMss = append(out.TimeoutMss, p.TimeoutMss[i])
		out.MaxRetriess = append(out.MaxRetriess, p.MaxRetriess[i])
		out.RetryPolicies = append(out.RetryPolicies, p.RetryPolicies[i])
		out.Scopes = append(out.Scopes, p.Scopes[i])
		out.Keys = append(out.Keys, p.Keys[i])
		out.Givens = append(out.Givens, p.Givens[i])
		out.TraceIds = append(out.TraceIds, p.TraceIds[i])
		out.ExpiresAts = append(out.ExpiresAts, p.ExpiresAts[i])
		out.StartWithinMss = append(out.StartWithinMss, p.StartWithinMss[i])
		out.HeartbeatTimeoutMss = append(out.HeartbeatTimeoutMss, p.HeartbeatTimeoutMss[i])
		out.RequestedBys = append(out.RequestedBys, p.RequestedBys[i])
		out.Guardeds = append(out.Guardeds, p.Guardeds[i])
		out.Dependencies = append(out.Dependencies, p.Dependencies[i])
		out.OnDependencyFailures = append(out.OnDependencyFailures, p.OnDependencyFailures[i])
		out.DependenciesDigests = append(out.DependenciesDigests, p.DependenciesDigests[i])
		out.GraphIds = append(out.GraphIds, p.GraphIds[i])
		out.ScheduleIds = append(out.ScheduleIds, p.ScheduleIds[i])
	}
	return out
}
