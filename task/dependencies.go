package task

import (
	"context"
	"encoding/json"
	"fmt"
)

// Dependency is how a task ended that another one depends on.
type Dependency struct {
	// TaskID is its id, Name the local name that it had in the call that made both
	// tasks; empty if it had none.
	TaskID, Name string
	Type         string
	// State is "succeeded", "failed" or "cancelled"; empty if retention removed it.
	State string
	// Result is what its handler returned, JSON; null unless it succeeded.
	Result json.RawMessage
	// ErrorCode and Error say why it did not succeed.
	ErrorCode, Error string
}

// Succeeded reports whether the task did.
func (d *Dependency) Succeeded() bool { return d.State == "succeeded" }

// Decode decodes the result into v. It fails if the task did not succeed.
func (d *Dependency) Decode(v any) error {
	if !d.Succeeded() {
		return fmt.Errorf("task: dependency %s has no result: it is %s: %s", d.called(), d.State, d.Error)
	}
	if err := json.Unmarshal(d.Result, v); err != nil {
		return InvalidInput(fmt.Errorf("task: result of dependency %s: %w", d.called(), err))
	}
	return nil
}

func (d *Dependency) called() string {
	if d.Name != "" {
		return d.Name
	}
	return d.TaskID
}

// dependenciesKey is that of the function behind Dependencies in a context.
type dependenciesKey struct{}

// WithDependencies returns a context in which Dependencies calls load. Workers and
// package tasktest do this; a program that calls handlers by itself may.
func WithDependencies(ctx context.Context, load func(ctx context.Context) ([]Dependency, error)) context.Context {
	return context.WithValue(ctx, dependenciesKey{}, load)
}

// Dependencies returns how the tasks ended that the task of the handler with the
// context ctx depends on, in the order in which it names them; none if it depends
// on none. Up to about 64 KiB of them come with the task. Of more, all are asked
// for at an orchestrator, which can fail; the worker must know one.
func Dependencies(ctx context.Context) ([]Dependency, error) {
	load, ok := ctx.Value(dependenciesKey{}).(func(context.Context) ([]Dependency, error))
	if !ok {
		return nil, nil
	}
	return load(ctx)
}

// DependencyResult returns the result of the dependency with a local name or task
// id. The error says if there is none, if it did not succeed, or if its result is
// no T.
func DependencyResult[T any](ctx context.Context, name string) (result T, err error) {
	all, err := Dependencies(ctx)
	if err != nil {
		return result, err
	}
	for i := range all {
		if d := &all[i]; d.Name == name && name != "" || d.TaskID == name {
			return result, d.Decode(&result)
		}
	}
	return result, InvalidInput(fmt.Errorf("task: the task depends on none that is called %q", name))
}

// DependsOn has the task wait until the tasks with these ids have ended. If one
// does not succeed it is cancelled; see DespiteFailures. For tasks that are made in
// one call, see client.Graph.
func DependsOn(taskIDs ...string) Option {
	return func(r *Request) { r.DependsOn = append(r.DependsOn, taskIDs...) }
}

// DespiteFailures lets the task run even if tasks that it depends on do not
// succeed.
func DespiteFailures() Option { return func(r *Request) { r.DespiteFailures = true } }
