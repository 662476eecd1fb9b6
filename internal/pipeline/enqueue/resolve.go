package enqueue

import (
	"cmp"
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// resolve finds the tasks that the items depend on, and sets what follows from
// them: upstreams, digest and graph.
func (t *intake) resolve(ctx context.Context, q *dbsqlc.Queries) error {
	if err := t.readTargets(ctx, q); err != nil {
		return err
	}
	t.alone = map[protocol.ID]bool{}
	for i, it := range t.items {
		it.upstreams, it.upstreamNames, it.graph = nil, nil, protocol.ID{}
		if t.out[i].Err != nil {
			continue
		}
		if err := t.fault(i, t.resolveOne(it)); err != nil {
			return err
		}
		it.digest = dependenciesDigest(it.upstreams, it.onFailure)
	}
	if t.g == nil {
		for _, it := range t.items {
			if len(it.upstreams) > 0 {
				it.graph = t.graphOf(it.upstreams[0])
			}
		}
		return nil
	}
	first := t.items[t.g.first]
	id := first.id
	if e := t.existing(first); e != nil {
		if id = protocol.ID(e.ID); e.GraphID != nil {
			id = protocol.ID(*e.GraphID)
		} else {
			t.alone[id] = true
		}
	}
	for _, it := range t.items {
		it.graph = id
	}
	return nil
}

// readTargets reads the tasks outside of the call that items depend on.
func (t *intake) readTargets(ctx context.Context, q *dbsqlc.Queries) error {
	t.targets = map[protocol.ID]*dbsqlc.DependencyTargetsRow{}
	seen := map[protocol.ID]bool{}
	var ids []pgid.ID
	for _, it := range t.items {
		for _, d := range it.deps {
			if _, ok := t.inCall(d); ok || d.local {
				continue
			}
			for _, id := range [...]protocol.ID{d.id, d.byName} {
				if !seen[id] {
					seen[id] = true
					ids = append(ids, pgid.ID(id))
				}
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := q.DependencyTargets(ctx, ids)
	if err != nil {
		return fmt.Errorf("read %d tasks that others are to depend on: %w", len(ids), err)
	}
	for _, r := range rows {
		t.targets[protocol.ID(r.ID)] = r
	}
	return nil
}

// inCall returns the item of a graph that a dependency refers to.
func (t *intake) inCall(d dep) (*item, bool) {
	if t.g == nil {
		return nil, false
	}
	i, ok := t.g.find(d)
	if !ok {
		return nil, false
	}
	return t.items[i], true
}

func (t *intake) resolveOne(it *item) error {
	seen := make(map[protocol.ID]bool, len(it.deps))
	for n, d := range it.deps {
		id, name, err := t.upstream(it, n, d)
		if err != nil {
			return err
		}
		if id == it.id {
			return bad(d.field(n), "is the task itself: it would wait for ever")
		}
		if seen[id] { // two of the call turned out to be one task
			continue
		}
		seen[id] = true
		it.upstreams, it.upstreamNames = append(it.upstreams, id), append(it.upstreamNames, name)
	}
	return nil
}

// upstream is the task that a dependency refers to, and what the handler knows it
// by.
func (t *intake) upstream(it *item, n int, d dep) (id protocol.ID, name string, err error) {
	if up, ok := t.inCall(d); ok {
		if !t.h.lost[up] {
			return up.id, up.local, nil
		}
		e := t.existing(up)
		if e == nil {
			return id, "", ErrGone
		}
		return protocol.ID(e.ID), up.local, nil
	}
	if d.local {
		return id, "", bad(d.field(n), "is %q, but local names are only for the tasks of one EnqueueBatch", clip(d.given))
	}
	for _, id := range [...]protocol.ID{d.id, d.byName} {
		if row := t.targets[id]; row != nil && row.Tenant == it.tenant {
			return id, "", nil
		}
	}
	if t.existing(it) != nil { // a repeat; what it depends on may have been removed since
		return d.id, "", nil
	}
	return id, "", protocol.Errorf(protocol.CodeNotFound, d.field(n), "no task %q of tenant %s", clip(d.given), it.tenant)
}

// graphOf is the graph that an existing task belongs to, or begins.
func (t *intake) graphOf(id protocol.ID) protocol.ID {
	if row := t.targets[id]; row != nil && row.GraphID != nil {
		return cmp.Or(protocol.ID(*row.GraphID), id)
	}
	t.alone[id] = true
	return id
}
