package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/schollz/progressbar/v3"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// Sizes of the latency part: tasks one after the other, at a calm pace.
const (
	pacedTasks = 200
	pace       = 5 * time.Millisecond
)

// tour is the demo proper.
func (r *run) tour(ctx context.Context) error {
	reqs, err := r.requests()
	if err != nil {
		return err
	}
	began := time.Now()
	ids, err := r.enqueue(ctx, reqs)
	if err != nil {
		return err
	}
	accepted := time.Since(began)
	r.printf("Enqueued %d tasks of 3 types through the RPC in %s (%.0f/s, each committed).\n", len(ids), accepted.Round(time.Millisecond), float64(len(ids))/accepted.Seconds())
	if err := r.await(ctx, len(ids)); err != nil {
		return err
	}
	took := time.Since(began)
	latency, err := r.latencies(ctx)
	if err != nil {
		return err
	}
	var problems []error
	problems = append(problems, r.states(ctx, len(ids)+pacedTasks, took, len(ids)))
	p50, p99 := latency[len(latency)/2], latency[len(latency)*99/100]
	r.printf("Start latency of %d tasks enqueued every %s: p50 %s, p99 %s (enqueue committed → handler started).\n", len(latency), pace, p50, p99)
	problems = append(problems, r.timeline(ctx, ids[0]), r.results(ctx, reqs, ids), r.queue(ctx))
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("the demo found something wrong: %w", err)
	}
	if err := r.survive(ctx); err != nil {
		return fmt.Errorf("the survival tour found something wrong: %w", err)
	}
	if err := r.failures(ctx); err != nil {
		return fmt.Errorf("the failure tour found something wrong: %w", err)
	}
	if err := r.decide(ctx); err != nil {
		return fmt.Errorf("the tour of the guard found something wrong: %w", err)
	}
	if err := r.graph(ctx); err != nil {
		return fmt.Errorf("the tour of a graph found something wrong: %w", err)
	}
	r.printf("\nThe whole record, checked:\n")
	if err := r.command(ctx, 0, "", "orchestrator", "verify"); err != nil {
		return err
	}
	r.printf("\nEverything is as it must be.\n")
	return nil
}

func (r *run) requests() ([]*task.Request, error) {
	var out []*task.Request
	for i := range r.o.Tasks {
		a, err1 := hashFile.Request(fileRef{Path: r.paths[i%len(r.paths)]})
		b, err2 := post.Request(greeting{N: i})
		c, err3 := echo.Request(greeting{N: i})
		if err := errors.Join(err1, err2, err3); err != nil {
			return nil, err
		}
		out = append(out, a, b, c)
	}
	return out, nil
}

func (r *run) enqueue(ctx context.Context, reqs []*task.Request) ([]string, error) {
	res, err := r.client.EnqueueMany(ctx, reqs)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(res))
	for i, x := range res {
		if x.Err != nil {
			return nil, fmt.Errorf("enqueue task %d: %w", i, x.Err)
		}
		ids[i] = x.Value.TaskID
	}
	return ids, nil
}

// count returns how many tasks are in each state.
func (r *run) count(ctx context.Context) (map[string]int, error) {
	res, err := r.client.RPC().CountTasks(ctx, connect.NewRequest(&penstockv1.CountTasksRequest{}))
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, c := range res.Msg.Counts {
		out[c.State] = int(c.Count)
	}
	return out, nil
}

// lineInterval is how often progress is printed where there is no terminal.
const lineInterval = 5 * time.Second

// await waits until all tasks are terminal and shows how far they are.
func (r *run) await(ctx context.Context, total int) error {
	var bar *progressbar.ProgressBar
	if r.o.Terminal {
		bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(r.o.Progress), progressbar.OptionSetDescription("running"),
			progressbar.OptionShowCount(), progressbar.OptionClearOnFinish())
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	printed := time.Now()
	for {
		states, err := r.count(ctx)
		if err != nil {
			return err
		}
		n := 0
		for s, c := range states {
			if protocol.State(s).Terminal() {
				n += c
			}
		}
		switch {
		case bar != nil:
			_ = bar.Set(n)
		case time.Since(printed) > lineInterval:
			printed = time.Now()
			_, _ = fmt.Fprintf(r.o.Progress, "%d of %d tasks done\n", n, total)
		}
		if n >= total {
			if bar != nil {
				_ = bar.Finish()
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d tasks were done in time; states: %v", n, total, states)
		case <-tick.C:
		}
	}
}

// latencies runs echo tasks at a calm pace and returns, sorted, how long each
// waited from its commit to the start of its handler.
func (r *run) latencies(ctx context.Context) ([]time.Duration, error) {
	ids := make([]string, 0, pacedTasks)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for i := range pacedTasks {
		e, err := echo.Enqueue(ctx, r.client, greeting{N: i})
		if err != nil {
			return nil, err
		}
		ids = append(ids, e.TaskID)
		<-tick.C
	}
	var out []time.Duration
	for _, id := range ids {
		if _, err := r.client.Wait(ctx, "", id); err != nil {
			return nil, err
		}
		events, err := r.events(ctx, id)
		if err != nil {
			return nil, err
		}
		for _, e := range events {
			var d protocol.Times
			if e.Type == string(protocol.EventClaimed) && json.Unmarshal(e.Data, &d) == nil {
				wait := d.StartedAt.Sub(events[0].OccurredAt.AsTime())
				out = append(out, max(wait, 0).Round(100*time.Microsecond))
			}
		}
	}
	if len(out) != pacedTasks {
		return nil, fmt.Errorf("%d of %d paced tasks have a claim in their log", len(out), pacedTasks)
	}
	slices.Sort(out)
	return out, nil
}

func (r *run) states(ctx context.Context, want int, took time.Duration, burst int) error {
	states, err := r.count(ctx)
	if err != nil {
		return err
	}
	r.printf("\nTasks by state:\n")
	tw := tabwriter.NewWriter(r.o.Out, 2, 0, 2, ' ', 0)
	for _, s := range protocol.States() {
		if n := states[string(s)]; n > 0 || s == protocol.StateSucceeded || s == protocol.StateFailed {
			_, _ = fmt.Fprintf(tw, "  %s\t%d\n", s, n)
		}
	}
	_ = tw.Flush()
	r.printf("\nThroughput: %d tasks from the first call to the last result in %s = %.0f tasks/s.\n", burst, took.Round(time.Millisecond), float64(burst)/took.Seconds())
	if n := states[string(protocol.StateSucceeded)]; n != want || len(states) != 1 {
		return fmt.Errorf("want %d tasks, all succeeded; got %v", want, states)
	}
	return nil
}

func (r *run) events(ctx context.Context, id string) ([]*penstockv1.Event, error) {
	res, err := r.client.RPC().ListEvents(ctx, connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: id}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Events, nil
}

// timeline prints one task's events.
func (r *run) timeline(ctx context.Context, id string) error {
	events, err := r.events(ctx, id)
	if err != nil {
		return err
	}
	r.printf("\nThe event log of task %s:\n", id)
	tw := tabwriter.NewWriter(r.o.Out, 2, 0, 2, ' ', 0)
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
		_, _ = fmt.Fprintf(tw, "  %d\t%s\t%s\t%s\tby %s %s\n", e.Seq, e.OccurredAt.AsTime().Format("15:04:05.000"), e.Type, e.Status, e.Actor, e.WorkerId)
	}
	_ = tw.Flush()
	if want := []string{"task.created", "task.claimed", "task.succeeded"}; !slices.Equal(types, want) {
		return fmt.Errorf("task %s has events %v, want %v", id, types, want)
	}
	return nil
}

// results checks what the handlers did.
func (r *run) results(ctx context.Context, reqs []*task.Request, ids []string) error {
	var problems []error
	checked := 0
	for i, q := range reqs {
		if q.Type != hashFile.Name() {
			continue
		}
		t, err := r.client.Get(ctx, "", ids[i])
		if err != nil {
			return err
		}
		var in fileRef
		var out struct {
			SHA256 string `json:"sha256"`
		}
		if err := errors.Join(json.Unmarshal(q.Payload, &in), json.Unmarshal(t.Result, &out)); err != nil {
			return err
		}
		if checked++; out.SHA256 != r.files[in.Path] {
			problems = append(problems, fmt.Errorf("task %s: SHA-256 of %s is %s, want %s", ids[i], in.Path, out.SHA256, r.files[in.Path]))
		}
	}
	keys, requests := r.receiver.counts()
	r.printf("\n%d file hashes are right; the HTTP receiver got %d requests with %d different idempotency keys.\n", checked, requests, keys)
	if keys != r.o.Tasks || requests != r.o.Tasks {
		problems = append(problems, fmt.Errorf("the HTTP receiver got %d requests with %d keys, want %d each", requests, keys, r.o.Tasks))
	}
	return errors.Join(problems...)
}

// queue waits a moment for the last acknowledgements and prints what is left.
func (r *run) queue(ctx context.Context) error {
	for {
		res, err := r.client.RPC().GetQueue(ctx, connect.NewRequest(&penstockv1.GetQueueRequest{Queue: protocol.DefaultQueue}))
		if err != nil {
			return err
		}
		q := res.Msg
		idle := q.Pending == 0 && q.Undelivered == 0 && q.Backlog == 0
		if idle || ctx.Err() != nil {
			r.printf("%s, group %s: pending = %d, undelivered = %d.\n", q.Stream, protocol.GroupWorkers, q.Pending, q.Undelivered)
			if !idle {
				return fmt.Errorf("pending = %d, undelivered = %d, backlog = %d, want 0", q.Pending, q.Undelivered, q.Backlog)
			}
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}
