package enqueue

import (
	"context"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/protocol"
)

// known are task ids and keys that were found in Postgres, or stored, while a
// batch was worked on.
type known struct {
	ids  map[protocol.ID]bool
	keys map[scopedKey]bool
}

// flush stores a batch. Items that repeat the id or key of an earlier one wait
// for a further round, so that they see what became of it as if they had come
// later. Once an id or key is known to exist, its repeats share a round.
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
		if ids[it.id] && !k.ids[it.id] || it.key != "" && keys[key] && !k.keys[key] {
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

// note records what the lookups for an item found.
func (k *known) note(it *item, h *hits) {
	switch {
	case h.stale(it):
		k.ids[it.id] = true
	case h.lost[it]:
		k.keys[scopedKey{it.scope, it.key}] = true
	default:
		k.ids[it.id] = true
	}
}
