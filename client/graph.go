package client

import (
	"context"
	"fmt"
	"slices"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
)

// Graph is a set of tasks that depend on each other, to be stored in one call, all
// or none. The zero value is empty. It is for one goroutine.
//
//	var g client.Graph
//	g.Add("fetch", fetchRequest)
//	g.Add("left", leftRequest, "fetch")
//	g.Add("right", rightRequest, "fetch")
//	g.Add("join", joinRequest, "left", "right")
//	ids, err := c.EnqueueGraph(ctx, &g)
type Graph struct {
	names []string
	items []*penstockv1.EnqueueRequest
	err   error
}

// Add adds a task under a local name, by which later and earlier ones can depend on
// it, and the handlers of those know its result. A fault of the request is returned
// by EnqueueGraph. Enqueuing the same Graph twice does not make a second task.
func (g *Graph) Add(name string, r *task.Request, dependsOn ...string) {
	q, err := request(r)
	if err == nil {
		err = checkText(append([][2]string{{"name", name}}, pairs("depends_on", dependsOn)...)...)
	}
	switch {
	case err != nil && g.err == nil:
		g.err = fmt.Errorf("client: task %q of the graph: %w", name, err)
	case name == "" && g.err == nil:
		g.err = protocol.Errorf(protocol.CodeInputInvalid, "name", "is empty: each task of a graph needs a local name")
	}
	if err != nil {
		return
	}
	q.Name = name
	for _, d := range dependsOn {
		q.DependsOn = append(q.DependsOn, &penstockv1.Dependency{Name: d})
	}
	if r.DespiteFailures && len(q.DependsOn) > 0 {
		q.OnDependencyFailure = string(protocol.DependencyRun)
	}
	g.names, g.items = append(g.names, name), append(g.items, q)
}

func pairs(field string, values []string) [][2]string {
	out := make([][2]string, len(values))
	for i, v := range values {
		out[i] = [2]string{field, v}
	}
	return out
}

// Len is the number of tasks.
func (g *Graph) Len() int { return len(g.items) }

// EnqueueGraph stores a graph of at most 20,000 tasks, all or none, and returns
// what became of each by its local name. The call is repeated until an orchestrator
// answers, as EnqueueTask is. The error, a *protocol.Error if the graph was refused,
// names the field, such as tasks[3].depends_on[0].name; a cycle is named there.
func (c *Client) EnqueueGraph(ctx context.Context, g *Graph) (map[string]*task.Enqueued, error) {
	if g.err != nil {
		return nil, g.err
	}
	req := &penstockv1.EnqueueBatchRequest{Tasks: slices.Clone(g.items), IdsOnly: true}
	res, err := retry(ctx, c, func(ctx context.Context, s penstockv1connect.TaskServiceClient) (*connect.Response[penstockv1.EnqueueBatchResponse], error) {
		return s.EnqueueBatch(ctx, connect.NewRequest(req))
	})
	if err != nil {
		return nil, fromConnect(err)
	}
	if len(res.Msg.Results) != len(g.items) {
		return nil, fmt.Errorf("client: the server answered %d of %d tasks", len(res.Msg.Results), len(g.items))
	}
	out := make(map[string]*task.Enqueued, len(g.items))
	for i, r := range res.Msg.Results {
		if r.Error != nil {
			return nil, fromInfo(r.Error)
		}
		out[g.names[i]] = &task.Enqueued{TaskID: r.TaskId, IdempotentHit: r.IdempotentHit}
	}
	return out, nil
}
