package acceptance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// node is a step of a graph.
type node struct {
	name   string
	script script
	after  []string // what it depends on
	state  protocol.State
	code   protocol.Code // if it was cancelled or failed
	// despite: it runs even if those fail.
	despite bool
}

// diamond and broken are two graphs: one whose steps wait for each other, and one
// with a step that fails.
var (
	diamond = []node{
		{name: "fetch", script: script{Fail: 1}, state: protocol.StateSucceeded},
		{name: "left", script: script{Fail: 1, Needs: []string{"fetch"}}, after: []string{"fetch"}, state: protocol.StateSucceeded},
		{name: "right", script: script{Needs: []string{"fetch"}}, after: []string{"fetch"}, state: protocol.StateSucceeded},
		{name: "join", script: script{Needs: []string{"left", "right"}}, after: []string{"left", "right"}, state: protocol.StateSucceeded},
	}
	broken = []node{
		{name: "bad", script: script{Permanent: true}, state: protocol.StateFailed, code: protocol.CodeExecutionFailed},
		{name: "next", after: []string{"bad"}, state: protocol.StateCancelled, code: protocol.CodeDependencyFailed},
		{name: "last", after: []string{"next"}, state: protocol.StateCancelled, code: protocol.CodeDependencyFailed},
		{name: "report", after: []string{"bad"}, despite: true, state: protocol.StateSucceeded},
	}
)

func asterDependencies(ctx context.Context, r *run, f *finding) error {
	for _, g := range []struct {
		nodes  []node
		status string
	}{{diamond, "succeeded"}, {broken, "failed"}} {
		stories, err := r.graph(ctx, g.nodes)
		if err != nil {
			return err
		}
		judgeGraph(f, g.nodes, stories)
		first := stories[g.nodes[0].name].task.TaskId
		w, err := r.o.Client.RPC().GetWorkflow(ctx, connect.NewRequest(&penstockv1.GetWorkflowRequest{WorkflowId: first, Tenant: Tenant}))
		if err != nil {
			return err
		}
		if w.Msg.Status != g.status || w.Msg.Tasks != int64(len(g.nodes)) || w.Msg.OpenTasks != 0 {
			f.wrongf("workflow %s is %s with %d tasks, %d of them open; want %s, %d, 0", w.Msg.WorkflowId, w.Msg.Status, w.Msg.Tasks, w.Msg.OpenTasks, g.status, len(g.nodes))
		}
	}
	return nil
}

// graph enqueues steps in one call and follows each to its end.
func (r *run) graph(ctx context.Context, nodes []node) (map[string]*story, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var g client.Graph
	for _, n := range nodes {
		g.Add(n.name, r.request(n.script, func(t *task.Request) { t.DespiteFailures = n.despite }), n.after...)
	}
	// As in enqueue: not interrupted half-way.
	once, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
	defer cancel()
	made, err := r.o.Client.EnqueueGraph(once, &g)
	if err != nil {
		return nil, fmt.Errorf("enqueue a graph: %w", err)
	}
	for _, e := range made {
		r.keep(e.TaskID)
	}
	out := map[string]*story{}
	for _, n := range nodes {
		if out[n.name], err = r.follow(ctx, made[n.name].TaskID); err != nil {
			return nil, fmt.Errorf("step %s: %w", n.name, err)
		}
	}
	return out, nil
}

func judgeGraph(f *finding, nodes []node, stories map[string]*story) {
	for _, n := range nodes {
		s := stories[n.name]
		s.whole(f)
		attempt := 1
		if n.state == protocol.StateSucceeded {
			attempt += n.script.Fail
		}
		s.ended(f, n.state, attempt, n.code)
		if len(n.after) > 0 && (len(s.events) == 0 || s.events[0].Status != string(protocol.StatePending)) {
			f.wrongf("step %s was not made pending, to wait for %s: %s", n.name, strings.Join(n.after, " and "), s.path(protocol.VocabularyTQP))
		}
		if n.state == protocol.StateCancelled {
			if len(s.seen) > 0 {
				f.wrongf("step %s ran %d times, though %s did not succeed", n.name, len(s.seen), n.after[0])
			}
			if why := s.task.LastErrorReason.GetValue(); !strings.Contains(why, stories[n.after[0]].task.TaskId) {
				f.wrongf("step %s was cancelled because of %q, which does not name %s", n.name, why, n.after[0])
			}
			continue
		}
		began := start(s)
		for _, d := range n.after {
			if last := end(stories[d]); began.IsZero() || began.Before(last) {
				f.wrongf("step %s began at %s, step %s at %s for the last time: it did not wait", n.name, began.Format(time.StampMicro), d, last.Format(time.StampMicro))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(stories)) {
		f.notef("%s %s", name, stories[name].task.State)
	}
}

// start is when a task's first execution began, end when its last one did, by the
// workers' clock: there is one, as all workers are in this process.
func start(s *story) (at time.Time) {
	if len(s.seen) > 0 {
		at = s.seen[0].At
	}
	return at
}

func end(s *story) (at time.Time) {
	if len(s.seen) > 0 {
		at = s.seen[len(s.seen)-1].At
	}
	return at
}
