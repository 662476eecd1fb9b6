package tasktest

import (
	"context"
	"slices"

	"github.com/penstock-dev/penstock/task"
)

// Dependencies says how the tasks ended that the task depends on; default: it
// depends on none. A result that is not set is null.
func Dependencies(ds ...task.Dependency) Option {
	ds = slices.Clone(ds)
	for i := range ds {
		if ds[i].Result == nil {
			ds[i].Result = []byte("null")
		}
	}
	return func(s *settings) {
		s.ctx = task.WithDependencies(s.ctx, func(context.Context) ([]task.Dependency, error) { return slices.Clone(ds), nil })
	}
}
