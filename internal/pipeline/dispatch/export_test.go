package dispatch

import "context"

// LookForForgotten is one look, and the rows that are taken for forgotten after it.
func (d *Dispatcher) LookForForgotten(ctx context.Context) (ids []int64, err error) {
	err = d.findForgotten(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.unresolved {
		ids = append(ids, id)
	}
	return ids, err
}
