package acceptance

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// scenario is one life whose replay must be consistent.
type scenario struct {
	name    string
	policy  task.Retry
	script  script
	retries int // max_retries
}

// scenarios are six lives under four policies.
func scenarios() (out []scenario) {
	for _, p := range []task.Retry{
		{Strategy: "exponential", Base: ms(10), MaxBackoff: ms(35), JitterMax: ms(4)}, // ASTER's jitter: [0, base/2)
		{Strategy: "linear", Base: ms(10), MaxBackoff: ms(100), JitterMax: ms(4)},
		{Strategy: "fixed", Base: ms(12), NoJitter: true},
		{Strategy: "schedule", Schedule: []dur{ms(5), ms(15), ms(25)}, JitterMax: ms(9)},
	} {
		for _, l := range []scenario{
			{name: "no retry", retries: 3},
			{name: "one retry succeeds", script: script{Fail: 1}, retries: 3},
			{name: "three retries succeed", script: script{Fail: 3}, retries: 3},
			{name: "the limit is reached", script: script{Fail: always}, retries: 2},
			{name: "mixed: retry, then no more", script: script{Fail: 1, Permanent: true}, retries: 3},
			{name: "mixed: snooze, retry_after, success", script: script{Snooze: []int64{1}, Fail: 1, RetryAfterMS: 17}, retries: 3},
		} {
			l.name, l.policy = p.Strategy+": "+l.name, p
			out = append(out, l)
		}
	}
	return out
}

func asterReplay(ctx context.Context, r *run, f *finding) error {
	all := scenarios()
	found := make([]finding, len(all))
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, sc := range all {
		wg.Go(func() { errs[i] = sc.run(ctx, r, &found[i]) })
	}
	wg.Wait()
	retries := 0
	for i, sc := range all {
		if errs[i] != nil {
			return fmt.Errorf("%s: %w", sc.name, errs[i])
		}
		for _, w := range found[i].wrong {
			f.wrongf("%s: %s", sc.name, w)
		}
		retries += len(found[i].notes)
	}
	f.notef("%d scenarios, %d delays", len(all), retries)
	return nil
}

func (sc scenario) run(ctx context.Context, r *run, f *finding) error {
	s, err := r.live(ctx, sc.script, func(t *task.Request) { t.Retry, t.MaxRetries = &sc.policy, ptr(sc.retries) })
	if err != nil {
		return err
	}
	again, err := r.events(ctx, &penstockv1.ListEventsRequest{TaskId: s.task.TaskId, Tenant: Tenant})
	if err != nil {
		return err
	}
	s.whole(f)
	rc := judgeHistory(f, s, again, r.seed)
	return sc.queries(ctx, r, f, s, rc)
}

// judgeHistory replays a log, and the log as it was read again, and compares both
// with each other and with what the workers saw. Each delay gives a note.
func judgeHistory(f *finding, s *story, again []*penstockv1.Event, seed []byte) protocol.RetryContext {
	id := uuidOf(s.task.TaskId)
	replay := func(events []*protocol.Event) *protocol.Replay {
		rep := &protocol.Replay{Seed: seed}
		for _, e := range events {
			if err := rep.Add(e); err != nil {
				f.wrongf("event %d can't be replayed: %v", e.Seq, err)
				break
			}
		}
		return rep
	}
	first, second := replay(eventsOf(id, s.events)), replay(eventsOf(id, again))
	if !reflect.DeepEqual(delaysOf(first), delaysOf(second)) || first.RetryContext() != second.RetryContext() || first.State != second.State {
		f.wrongf("two replays differ: %v and %v", delaysOf(first), delaysOf(second))
	}
	for _, d := range first.Differences {
		f.wrongf("event %d: %s is %s, recomputed %s", d.Seq, d.Field, d.Recorded, d.Recomputed)
	}
	var attempts []int
	for _, x := range first.Executions {
		attempts = append(attempts, x.Attempt)
	}
	if !reflect.DeepEqual(attempts, s.attempts()) {
		f.wrongf("the replay has attempts %v, the worker saw %v", attempts, s.attempts())
	}
	if string(first.State) != s.task.State || first.Attempt != int(s.task.Attempt) {
		f.wrongf("the replay ends %s in attempt %d, the task is %s in attempt %d", first.State, first.Attempt, s.task.State, s.task.Attempt)
	}
	for _, d := range delaysOf(first) {
		f.notef("%s", d)
	}
	return first.RetryContext()
}

func delaysOf(r *protocol.Replay) (out []string) {
	for _, x := range r.Executions {
		if x.Retry != nil {
			out = append(out, x.Retry.Delay.String())
		}
	}
	return out
}

// queries asks ASTER's two: a workflow's events of an attempt, and its retry
// context; of the RPC and of the views.
func (sc scenario) queries(ctx context.Context, r *run, f *finding, s *story, want protocol.RetryContext) error {
	res, err := r.o.Client.RPC().SearchEvents(ctx, connect.NewRequest(&penstockv1.SearchEventsRequest{WorkflowId: s.task.TaskId, Tenant: Tenant, Attempt: 2, PageSize: 1000}))
	if err != nil {
		return err
	}
	w, err := r.o.Client.RPC().GetWorkflow(ctx, connect.NewRequest(&penstockv1.GetWorkflowRequest{WorkflowId: s.task.TaskId, Tenant: Tenant}))
	if err != nil {
		return err
	}
	id := uuidOf(s.task.TaskId).String()
	var view protocol.RetryContext
	if err := r.query(ctx, "SELECT retry_context FROM workflow_state WHERE workflow_id = $1", id).scan(&view); err != nil {
		return err
	}
	var inView string
	err = r.query(ctx, "SELECT COALESCE(string_agg(event_type, ' ' ORDER BY sequence), '') FROM workflow_events WHERE workflow_id = $1 AND attempt_number = 2", id).scan(&inView)
	if err != nil {
		return err
	}
	var inLog, found []string
	for _, e := range s.events {
		if e.Attempt == 2 {
			inLog = append(inLog, protocol.AsterType(protocol.EventType(e.Type)))
		}
	}
	for _, e := range res.Msg.Events {
		found = append(found, protocol.AsterType(protocol.EventType(e.Type)))
	}
	if strings.Join(found, " ") != strings.Join(inLog, " ") || inView != strings.Join(inLog, " ") {
		f.wrongf("events of attempt 2: %v by search, %s in the view, %v in the log", found, inView, inLog)
	}
	rpc := protocol.RetryContext{CurrentAttempt: int(w.Msg.RetryContext.CurrentAttempt), LastBackoff: w.Msg.RetryContext.LastBackoff}
	if rpc != want || view != want {
		f.wrongf("retry context: %+v by RPC, %+v in the view, %+v by replay", rpc, view, want)
	}
	return nil
}
