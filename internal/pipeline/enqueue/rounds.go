package enqueue

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/protocol"
)

// known are task ids and keys that were found in Postgres, or stored, while a
// batch was worked on.
type known struct {
	ids  map[protocol.ID]bool
	keys map[scopedKey]bool
}

// flush stores a batch. Items that repeat the id or key of an earlier one, or depend
// on it, wait for a further round, so that they see what became of it as if they had
// come later. Once an id or key is known to exist, its repeats share a round.
func (s *Stage) flush(ctx context.Context, items []*item) []batch.Result[Result] {
	k := &known{ids: map[protocol.ID]bool{}, keys: map[scopedKey]bool{}}
	out := make([]batch.Result[Result], len(items))
	rest := make([]int, len(items))
	for i := range items {
		rest[i] = i
	}
	for len(rest) > 0 {
		now, later := k.split(items, rest)
		part := make([]*item, len(now))
		for i, at := range now {
			part[i] = items[at]
		}
		for i, r := range s.flushDistinct(ctx, part, k) {
			out[now[i]] = r
		}
		rest = later
	}
	return out
}

// split takes the items that can be stored together; at least the first.
func (k *known) split(items []*item, rest []int) (now, later []int) {
	ids := make(map[protocol.ID]bool, len(rest))
	keys := map[scopedKey]bool{}
	now = make([]int, 0, len(rest))
	for _, i := range rest {
		it := items[i]
		key := scopedKey{it.scope, it.key}
		wait := ids[it.id] && !k.ids[it.id] || it.key != "" && keys[key] && !k.keys[key]
		for _, d := range it.deps {
			wait = wait || ids[d.id] && !k.ids[d.id] && d.id != it.id || ids[d.byName] && !k.ids[d.byName] && d.byName != it.id
		}
		if wait {
			later = append(later, i)
		} else {
			now = append(now, i)
		}
		// A deferred item holds back later ones like it, too.
		ids[it.id] = true
		if it.key != "" {
			keys[key] = true
		}
	}
	return now, later
}

// note records what a transaction found and stored.
func (k *known) note(t *intake) {
	for _, it := range t.items {
		key := scopedKey{it.scope, it.key}
		switch {
		case t.stored(it):
			k.ids[it.id] = true
			if it.key != "" {
				k.keys[key] = true
			}
		case t.h.lost[it] && !t.h.stale(it):
			k.keys[key] = true
		case t.existing(it) != nil:
			k.ids[it.id] = true
		}
	}
}

// flushDistinct stores items of which none needs another, and that share no id and
// no key, except known ones. If Postgres refuses the data itself, each item is stored
// alone, so that one never sinks the others.
func (s *Stage) flushDistinct(ctx context.Context, items []*item, k *known) []batch.Result[Result] {
	t, err := s.store(ctx, items, nil)
	if err == nil {
		k.note(t)
		return t.out
	}
	out := make([]batch.Result[Result], len(items))
	if refusedData(err) && len(items) > 1 {
		for i, it := range items {
			out[i] = s.flushDistinct(ctx, []*item{it}, k)[0]
		}
		return out
	}
	err = refusal(err)
	s.countFailed(items)
	if protocol.CodeOf(err) == "" {
		s.o.Log.Warn("a batch was not stored; its callers are told", "tasks", len(items), "error", err)
	}
	for i := range out {
		out[i].Err = err
	}
	return out
}

// refusedData reports whether Postgres will never take the data.
func refusedData(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && strings.HasPrefix(e.Code, "22")
}

// refusal is what the caller is told of data that Postgres will never take.
func refusal(err error) error {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && refusedData(err) {
		return bad("", "Postgres refused it: %s", e.Message)
	}
	return err
}
