package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// refund is the type that a rule guards.
var refund = task.Define[money]("demo.refund")

type money struct {
	Amount int `json:"amount"`
}

// forbidden is the exit code of a command that its caller may not give.
const forbidden = 5

// decide shows the guard and the inbox: a task stops until somebody approves who
// did not ask for it.
func (r *run) decide(ctx context.Context) error {
	r.printf("\n== When a person must decide ==\n")
	err := r.command(ctx, 0, "", "orchestrator", "guard", "save", "large-refunds", `task.type == "demo.refund" && task.payload.amount > 1000`, "--description", "more than a clerk may pay out")
	if err != nil {
		return err
	}
	c, err := r.as(alice)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	small, err1 := refund.Enqueue(ctx, c, money{Amount: 40})
	large, err2 := refund.Enqueue(ctx, c, money{Amount: 5000})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if _, err := r.client.Wait(ctx, "", small.TaskID); err != nil {
		return err
	}
	r.printf("\nalice asks for a refund of 40, which ran at once, and for one of 5000:\n")
	if err := r.command(ctx, 0, bob, "orchestrator", "approval", "list"); err != nil {
		return err
	}
	inbox, err := r.client.Approvals().ListApprovals(ctx, connect.NewRequest(&penstockv1.ListApprovalsRequest{}))
	if err != nil {
		return err
	}
	if len(inbox.Msg.Approvals) != 1 || inbox.Msg.Approvals[0].TaskId != large.TaskID {
		return fmt.Errorf("the inbox holds %v, want one request about task %s", inbox.Msg.Approvals, large.TaskID)
	}
	id := inbox.Msg.Approvals[0].ApprovalId
	r.printf("\nShe may not approve it herself; bob may.\n")
	if err := r.command(ctx, forbidden, alice, "orchestrator", "approval", "approve", id); err != nil {
		return err
	}
	if err := r.command(ctx, 0, bob, "orchestrator", "approval", "approve", id, "--reason", "the goods came back"); err != nil {
		return err
	}
	t, err := r.client.Wait(ctx, "", large.TaskID)
	if err != nil {
		return err
	}
	if err := r.command(ctx, 0, "", "orchestrator", "task", "events", large.TaskID); err != nil {
		return err
	}
	return r.history(ctx, t, "task.created", "approval.requested", "approval.approved", "task.claimed", "task.succeeded")
}

// as is a client of a person's.
func (r *run) as(person string) (*client.Client, error) {
	token, err := os.ReadFile(r.system.TokenFiles[person])
	if err != nil {
		return nil, fmt.Errorf("read the token of %s: %w", person, err)
	}
	return client.NewWith(r.system.Server, client.Options{Token: strings.TrimSpace(string(token))})
}

// history checks that a task succeeded after exactly these events.
func (r *run) history(ctx context.Context, t *client.Task, want ...string) error {
	events, err := r.events(ctx, t.TaskId)
	if err != nil {
		return err
	}
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
	}
	if t.State != string(protocol.StateSucceeded) || !slices.Equal(types, want) {
		return fmt.Errorf("task %s is %s after %v, want it succeeded after %v", t.TaskId, t.State, types, want)
	}
	return nil
}

// parts is how many tasks of the graph run side by side.
const parts = 3

// graph shows tasks that wait for each other.
func (r *run) graph(ctx context.Context) error {
	r.printf("\n== When tasks wait for each other ==\n")
	var g client.Graph
	add := func(name string, n int, dependsOn ...string) error {
		req, err := echo.Request(greeting{N: n})
		if err == nil {
			g.Add(name, req, dependsOn...)
		}
		return err
	}
	err := add("extract", 0)
	var names []string
	for i := range parts {
		names = append(names, fmt.Sprintf("transform-%d", i+1))
		err = errors.Join(err, add(names[i], i+1, "extract"))
	}
	if err = errors.Join(err, add("load", parts+1, names...)); err != nil {
		return err
	}
	made, err := r.client.EnqueueGraph(ctx, &g)
	if err != nil {
		return err
	}
	last, err := r.client.Wait(ctx, "", made["load"].TaskID)
	if err != nil {
		return err
	}
	r.printf("\n%d tasks, enqueued in one call, all or none; each ran when those before it had ended:\n", len(made))
	if err := r.command(ctx, 0, "", "orchestrator", "task", "graph", last.TaskId); err != nil {
		return err
	}
	for _, name := range names {
		t, err := r.client.Get(ctx, "", made[name].TaskID)
		if err != nil {
			return err
		}
		if t.State != string(protocol.StateSucceeded) || t.FinishedAt.AsTime().After(last.StartedAt.AsTime()) {
			return fmt.Errorf("task %s (%s) ended at %s, but load began at %s", t.TaskId, t.State, t.FinishedAt.AsTime(), last.StartedAt.AsTime())
		}
	}
	return r.history(ctx, last, "task.created", "task.queued", "task.claimed", "task.succeeded")
}
