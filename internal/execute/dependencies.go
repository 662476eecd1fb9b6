package execute

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// WithDependencies lets the handler ask how what its task depends on ended: from
// the entry, or by all where the entry does not tell of all.
func WithDependencies(ctx context.Context, entry []byte, all func(ctx context.Context) ([]task.Dependency, error)) context.Context {
	if len(entry) == 0 {
		return ctx
	}
	return task.WithDependencies(ctx, func(ctx context.Context) ([]task.Dependency, error) {
		var d protocol.Dependencies
		if err := json.Unmarshal(entry, &d); err != nil {
			return nil, task.InvalidInput(fmt.Errorf("the task's entry does not tell what it depends on: %w", err))
		}
		if !d.Complete {
			return all(ctx)
		}
		out := make([]task.Dependency, len(d.Tasks))
		for i, r := range d.Tasks {
			out[i] = task.Dependency{
				TaskID: r.TaskID, Name: r.Name, Type: r.Type, State: string(r.State), Result: r.Result, ErrorCode: string(r.ErrorCode), Error: r.Error,
			}
		}
		return out, nil
	})
}
