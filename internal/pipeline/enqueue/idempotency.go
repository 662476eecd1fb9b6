package enqueue

import (
	"context"
	"fmt"

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
	return batch.Result[Result]{Value: Result{Hit: true, existing: t}}
}

// takeKeys takes the items' idempotency keys, and finds those that belong to other
// tasks.
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
