package cancel

import (
	"context"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Bounds of one CancelAll.
const (
	DefaultTasks = 1000
	MaxTasks     = 10_000
)

// Filter admits tasks that meet every field that is set.
type Filter struct {
	// Tenant is required.
	Tenant      string
	Queue, Type string
	// States are of those that can be cancelled; none: all of these.
	States                      []protocol.State
	CreatedAfter, CreatedBefore time.Time
	// All admits every task of the tenant: without it, one of Queue, Type,
	// States and CreatedBefore must be set.
	All bool
}

// farPast and farFuture are before and after every task.
var (
	farPast   = time.Date(1900, 1, 1, 0, 0, 0, 0, time.UTC)
	farFuture = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
)

// params checks the filter.
func (f Filter) params() (p dbsqlc.CancellableParams, err error) {
	if !f.All && f.Queue == "" && f.Type == "" && len(f.States) == 0 && f.CreatedBefore.IsZero() {
		return p, bad("all_tasks", "is not set, and none of queue, type, states and created_before is: set it to cancel all tasks of the tenant")
	}
	p = dbsqlc.CancellableParams{Tenant: f.Tenant, Queue: f.Queue, Type: f.Type, CreatedAfter: farPast, CreatedBefore: farFuture}
	for _, st := range f.States {
		if !st.Cancellable() {
			return p, bad("states", "has %q, want any of %v", clip(string(st)), cancellable())
		}
		p.States = append(p.States, string(st))
	}
	if len(p.States) == 0 {
		for _, st := range cancellable() {
			p.States = append(p.States, string(st))
		}
	}
	if !f.CreatedAfter.IsZero() {
		p.CreatedAfter = f.CreatedAfter
	}
	if !f.CreatedBefore.IsZero() {
		p.CreatedBefore = f.CreatedBefore
	}
	return p, nil
}

func cancellable() (out []protocol.State) {
	for _, s := range protocol.States() {
		if s.Cancellable() {
			out = append(out, s)
		}
	}
	return out
}

func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// CancelAll ends the tasks that the filter admits when it is called, oldest
// first, at most limit of them (0: DefaultTasks), and returns how many it ended,
// and whether there may be more. Those that end otherwise meanwhile are left
// alone. With dry it only counts. If it fails after some were cancelled, n is
// their number.
func (s *Stage) CancelAll(ctx context.Context, f Filter, why Reason, limit int, dry bool) (n int, more bool, err error) {
	if limit == 0 {
		limit = DefaultTasks
	}
	if limit < 1 || limit > MaxTasks {
		return 0, false, bad("max_tasks", "is %d, want 1 to %d", limit, MaxTasks)
	}
	if err := why.check(); err != nil {
		return 0, false, err
	}
	p, err := f.params()
	if err != nil {
		return 0, false, err
	}
	p.MaxRows = int32(limit) + 1
	rows, err := s.o.Store.Cancellable(ctx, p)
	if err != nil {
		return 0, false, err
	}
	if more = len(rows) > limit; more {
		rows = rows[:limit]
	}
	if dry {
		return len(rows), more, nil
	}
	admits := make(map[protocol.State]bool, len(p.States))
	for _, st := range p.States {
		admits[protocol.State(st)] = true
	}
	for len(rows) > 0 {
		ids := idsOf(rows[:min(len(rows), chunk)])
		rows = rows[len(ids):]
		ended, err := s.decide(ctx, ids, protocol.CodeCancelled, func(env protocol.Env, t *store.Locked) ([]*protocol.Event, bool) {
			if !admits[t.State] {
				return nil, false
			}
			return t.Cancel(env, protocol.ActorUser(why.Principal), protocol.CodeCancelled, why.Text)
		})
		n += len(ended)
		if err != nil {
			return n, true, err
		}
	}
	return n, more, nil
}

func idsOf(rows []pgid.ID) []protocol.ID {
	out := make([]protocol.ID, len(rows))
	for i, id := range rows {
		out[i] = protocol.ID(id)
	}
	return out
}
