package enqueue

import (
	"context"
	"fmt"
	"sync"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
)

// tenants remembers which tenants Postgres has noted, so that each is noted
// once.
type tenants struct {
	mu    sync.Mutex
	known map[string]bool
}

// maxTenants bounds what is remembered; then it starts over.
const maxTenants = 10_000

// unknown returns the tenants of some items that are not known to be noted.
func (n *tenants) unknown(items []*item) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen := map[string]bool{}
	for _, it := range items {
		if !n.known[it.tenant] && !seen[it.tenant] {
			seen[it.tenant] = true
			names = append(names, it.tenant)
		}
	}
	return names
}

// note has Postgres note the tenants of some items: from then on their names are
// nobody else's idempotency scopes. Those that it notes just now are remembered
// only the next time, since this transaction may not commit.
func (n *tenants) note(ctx context.Context, q *dbsqlc.Queries, items []*item) error {
	names := n.unknown(items)
	if len(names) == 0 {
		return nil
	}
	added, err := q.NoteTenants(ctx, names)
	if err != nil {
		return fmt.Errorf("note %d tenants: %w", len(names), err)
	}
	fresh := make(map[string]bool, len(added))
	for _, name := range added {
		fresh[name] = true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known == nil || len(n.known) > maxTenants {
		n.known = map[string]bool{}
	}
	for _, name := range names {
		if !fresh[name] {
			n.known[name] = true
		}
	}
	return nil
}
