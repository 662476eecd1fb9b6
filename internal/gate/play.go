package gate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// one follows a replay to its end and judges it. What could not be found out
// fails it.
func (g *gate) one(ctx context.Context, r replay, id string) Result {
	e, err := g.collect(ctx, r, id)
	if e.task == nil {
		e.task = &client.Task{TaskId: id, TraceId: traceID(g.name, r)}
	}
	if err == nil {
		return r.judge(e, g.seed)
	}
	res := r.judge(e, g.seed)
	res.Passed = false
	res.Wrong = []string{fmt.Sprintf("the task is %q: %v", e.task.State, err)}
	return res
}

// collect waits for the task's end and gathers the evidence. With an error it
// returns what it has.
func (g *gate) collect(ctx context.Context, r replay, id string) (e evidence, err error) {
	if e.task, err = g.o.Client.Wait(ctx, Tenant, id); err != nil {
		return g.unfinished(ctx, id, err)
	}
	if r.again && e.task.State == string(protocol.StateSucceeded) {
		e.before = e.task
		if err := g.endAgain(ctx, e.before); err != nil {
			return e, err
		}
		if e.task, err = g.o.Client.Get(ctx, Tenant, id); err != nil {
			return e, err
		}
	}
	if e.task.DlqId != "" {
		if e.dead, err = g.deadLetter(ctx, e.task.DlqId); err != nil {
			return e, err
		}
	}
	e.events, err = g.events(ctx, id)
	return e, err
}

// unfinished describes a task whose end did not come in time.
func (g *gate) unfinished(ctx context.Context, id string, cause error) (e evidence, err error) {
	if errors.Is(cause, context.DeadlineExceeded) || connect.CodeOf(cause) == connect.CodeDeadlineExceeded { // the server may be the first to say so
		cause = fmt.Errorf("not finished within %s", g.o.Timeout)
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTime)
	defer cancel()
	if t, err := g.o.Client.Get(last, Tenant, id); err == nil {
		e.task = t
		e.events, _ = g.events(last, id) // what there is helps; cause is the error
	}
	return e, cause
}

// endAgain reports a failure of a task that has succeeded, as a worker that is
// wrong would, and waits until the orchestrator has refused it.
func (g *gate) endAgain(ctx context.Context, t *client.Task) error {
	id, err := protocol.ParseID(t.TaskId)
	if err != nil {
		return err
	}
	o := &protocol.Outcome{
		ID: id, Delivery: t.Delivery, Kind: protocol.OutcomeFailed, WorkerID: g.name, Code: protocol.CodeExecutionFailed,
		Error: "the second end of a task", Delay: -1,
	}
	if a := g.redis.Append(ctx, protocol.StreamResult, [][]any{o.Values()})[0]; a.Err != nil {
		return a.Err
	}
	for {
		events, err := g.events(ctx, t.TaskId)
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.PreviousStatus == t.State { // refused, or obeyed
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the second end was neither refused nor obeyed: %w", ctx.Err())
		case <-time.After(look):
		}
	}
}

// deadLetter returns nil if there is no such dead letter.
func (g *gate) deadLetter(ctx context.Context, dlqID string) (*penstockv1.DeadLetter, error) {
	res, err := g.o.Client.DeadLetters().GetDeadLetter(ctx, connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: dlqID}))
	if connect.CodeOf(err) == connect.CodeNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return res.Msg.DeadLetter, nil
}

// events reads a task's whole event log.
func (g *gate) events(ctx context.Context, id string) (out []*penstockv1.Event, err error) {
	for after := int32(0); ; {
		res, err := g.o.Client.RPC().ListEvents(ctx, connect.NewRequest(&penstockv1.ListEventsRequest{
			TaskId: id, Tenant: Tenant, AfterSeq: after, PageSize: 1000,
		}))
		if err != nil {
			return out, err
		}
		out = append(out, res.Msg.Events...)
		if after = res.Msg.NextAfterSeq; after == 0 {
			return out, nil
		}
	}
}

// settle gives tasks that are not finished a moment more with their worker; if
// the gate was interrupted, the rest of the time that they had until end.
func (g *gate) settle(ctx context.Context, end time.Time) {
	wait := settleTime
	if ctx.Err() != nil { // interrupted, and nothing is known to be wrong
		wait = max(wait, min(interruptedTime, time.Until(end)))
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	for _, id := range g.ids {
		if _, err := g.o.Client.Wait(limit, Tenant, id); err != nil {
			return
		}
	}
}

// clean removes the queue's stream, if nothing is left to do in it, and says
// what is left otherwise.
func (g *gate) clean() (left string) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	stream := protocol.TaskStream(g.name)
	if len(g.ids) == 0 {
		return ""
	}
	for _, id := range g.ids {
		t, err := g.o.Client.Get(ctx, Tenant, id)
		if err != nil {
			return fmt.Sprintf("%s: %v", stream, err)
		}
		if !protocol.State(t.State).Terminal() {
			return fmt.Sprintf("task %s of queue %s is %s, and no worker is there to finish it", id, g.name, t.State)
		}
	}
	for {
		removed, err := g.redis.RemoveIdle(ctx, stream, protocol.GroupWorkers)
		if removed {
			return ""
		}
		select {
		case <-ctx.Done():
			return fmt.Sprintf("%s was not idle (%v)", stream, err)
		case <-time.After(look):
		}
	}
}
