package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// errNoDependencies tells what to set.
var errNoDependencies = errors.New("worker.Dependencies: the task depends on more than its entry can tell, and this worker knows no orchestrator to ask: set Options.OrchestratorURL (PENSTOCK_ORCHESTRATOR_URL, orchestrator.url)")

// Dependencies is task.Dependencies: how the tasks ended that the handler's task
// depends on.
func Dependencies(ctx context.Context) ([]task.Dependency, error) { return task.Dependencies(ctx) }

// allDependencies asks an orchestrator for all that the task of an execution
// depends on.
func (w *Worker) allDependencies(x *execution) func(ctx context.Context) ([]task.Dependency, error) {
	return func(ctx context.Context) (out []task.Dependency, err error) {
		if w.rpc == nil {
			return nil, errNoDependencies
		}
		ctx, cancel := context.WithTimeout(ctx, reserveFor)
		defer cancel()
		m := &penstockv1.ListDependenciesRequest{TaskId: x.task.ID.String(), Tenant: x.task.Tenant, PageSize: 1000}
		for {
			res, err := persist(ctx, w.rpc, m, func(ctx context.Context, o orchestrator, req *connect.Request[penstockv1.ListDependenciesRequest]) (*connect.Response[penstockv1.ListDependenciesResponse], error) {
				return o.tasks.ListDependencies(ctx, req)
			})
			if err != nil {
				return nil, fmt.Errorf("ask for dependencies of task %s: %w", x.task.TaskID, err)
			}
			for _, d := range res.Dependencies {
				result := json.RawMessage(d.Result)
				if len(result) == 0 {
					result = json.RawMessage("null")
				}
				out = append(out, task.Dependency{
					TaskID: d.TaskId, Name: d.Name, Type: d.Type, State: d.State, Result: result, ErrorCode: d.ErrorCode, Error: d.Error,
				})
			}
			if m.PageToken = res.NextPageToken; m.PageToken == "" {
				return out, nil
			}
		}
	}
}
