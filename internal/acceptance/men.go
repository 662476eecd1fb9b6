package acceptance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// menLegal is the document's table; a task is created pending or ready.
var menLegal = []string{
	"pending->ready", "ready->running", "running->succeeded", "running->failed", "running->ready",
	"pending->cancelled", "ready->cancelled", "running->cancelled",
}

// menTransitions has each of them happen.
func menTransitions(ctx context.Context, r *run, f *finding) error {
	var stories []*story
	for s, change := range map[*script]func(*task.Request){
		{}: func(t *task.Request) { t.Delay = ms(50) }, {Fail: 1}: nil, {Permanent: true}: nil,
	} {
		x, err := r.live(ctx, *s, change)
		if err != nil {
			return err
		}
		stories = append(stories, x)
	}
	for _, c := range []struct {
		in     protocol.State
		script script
		change func(*task.Request)
	}{
		{protocol.StatePending, script{}, func(t *task.Request) { t.Delay = longest }},
		{protocol.StateQueued, script{}, func(t *task.Request) { t.Queue = r.queue(queueIdle) }},
		{protocol.StateRunning, script{Block: true}, nil},
	} {
		x, err := r.cancelled(ctx, c.script, c.in, c.change)
		if err != nil {
			return err
		}
		stories = append(stories, x)
	}
	judgeMoves(f, stories)
	for _, s := range stories {
		if s.task.State != string(protocol.StateCancelled) {
			f.wrong = append(f.wrong, r.refused(ctx, s)...)
		}
	}
	return nil
}

// cancelled enqueues a task and cancels it once it is in a state.
func (r *run) cancelled(ctx context.Context, s script, in protocol.State, change func(*task.Request)) (*story, error) {
	e, err := r.enqueue(ctx, r.request(s, change))
	if err == nil {
		err = r.reach(ctx, e.TaskID, in)
	}
	if err != nil {
		return nil, err
	}
	if _, err := r.o.Client.RPC().CancelTask(ctx, connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: e.TaskID, Tenant: Tenant})); err != nil {
		return nil, fmt.Errorf("cancel a task that is %s: %w", in, err)
	}
	return r.gather(ctx, e.TaskID)
}

// reach waits until a task is in a state.
func (r *run) reach(ctx context.Context, taskID string, state protocol.State) error {
	return r.until(ctx, func() (bool, error) {
		t, err := r.o.Client.Get(ctx, Tenant, taskID)
		if err != nil {
			return false, err
		}
		if t.State != string(state) {
			return false, fmt.Errorf("task %s is %s, not %s", taskID, t.State, state)
		}
		return true, nil
	})
}

func judgeMoves(f *finding, stories []*story) {
	seen := map[string]int{}
	for _, s := range stories {
		at := ""
		for _, e := range s.states {
			p := e.Payload
			move := p.FromState + "->" + p.ToState
			switch {
			case p.FromState != at:
				f.wrongf("task %s: %s follows %q", s.task.TaskId, move, at)
			case at == "" && p.ToState != "pending" && p.ToState != "ready":
				f.wrongf("task %s begins as %s", s.task.TaskId, p.ToState)
			case at != "" && !slices.Contains(menLegal, move):
				f.wrongf("task %s: %s is no legal transition", s.task.TaskId, move)
			}
			if at != "" {
				seen[move]++
			}
			at = p.ToState
		}
		if want := protocol.VocabularyMEN.Project(protocol.State(s.task.State), ""); at != want {
			f.wrongf("task %s ends as %q, but is %s", s.task.TaskId, at, want)
		}
	}
	for _, move := range menLegal {
		if seen[move] == 0 {
			f.wrongf("%s never happened", move)
		}
	}
	f.notef("%d of %d transitions seen, in %d tasks", len(seen), len(menLegal), len(stories))
}

// refused cancels a task that has ended, and says what is wrong if that is not
// refused as it must be, or changes anything.
func (r *run) refused(ctx context.Context, s *story) (wrong []string) {
	_, err := r.o.Client.RPC().CancelTask(ctx, connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: s.task.TaskId, Tenant: Tenant}))
	if err == nil {
		return []string{fmt.Sprintf("task %s is %s and was cancelled all the same", s.task.TaskId, s.task.State)}
	}
	if code := codeOf(err); code != protocol.CodeInvalidTransition {
		return []string{fmt.Sprintf("cancelling a task that is %s: %q, want %s", s.task.State, code, protocol.CodeInvalidTransition)}
	}
	after, err := r.o.Client.Get(ctx, Tenant, s.task.TaskId)
	if err != nil {
		return []string{err.Error()}
	}
	if after.State != s.task.State || after.Delivery != s.task.Delivery {
		return []string{fmt.Sprintf("the refused transition moved task %s from %s to %s", s.task.TaskId, s.task.State, after.State)}
	}
	return nil
}

func codeOf(err error) protocol.Code {
	if info := rpc.InfoOf(err); info != nil {
		return protocol.Code(info.Code)
	}
	return protocol.CodeOf(err)
}

// menAttempts lives through the table.
func menAttempts(ctx context.Context, r *run, f *finding) error {
	for _, c := range []attemptCase{
		{retries: 0, script: script{Fail: always}, attempts: 1, code: protocol.CodeRetryExhausted, cause: protocol.CodeExecutionFailed},
		{retries: 2, script: script{Fail: always}, attempts: 3, code: protocol.CodeRetryExhausted, cause: protocol.CodeExecutionFailed},
		{retries: 1, script: script{Timeout: always}, attempts: 2, code: protocol.CodeRetryExhausted, cause: protocol.CodeTimeout},
		{retries: 2, script: script{Permanent: true}, attempts: 1, code: protocol.CodeExecutionFailed},
		{retries: 2, script: script{Fail: 2}, attempts: 3},
	} {
		s, err := r.live(ctx, c.script, func(t *task.Request) {
			t.MaxRetries = ptr(c.retries)
			if c.script.Timeout > 0 {
				t.Timeout = ms(200)
			}
		})
		if err != nil {
			return err
		}
		c.judge(f, s)
	}
	return nil
}

// attemptCase is a row of the attempt table.
type attemptCase struct {
	retries  int
	script   script
	attempts int
	code     protocol.Code // of the failed task; empty: it succeeds
	cause    protocol.Code // of the last error, if the task's code is another one
}

func (c attemptCase) judge(f *finding, s *story) {
	s.whole(f)
	state := protocol.StateSucceeded
	if c.code != "" {
		state = protocol.StateFailed
	}
	s.ended(f, state, c.attempts, c.code)
	var want []int
	for n := range c.attempts {
		want = append(want, n+1)
	}
	if !slices.Equal(s.attempts(), want) {
		f.wrongf("with max_retries %d the handler saw attempts %v, want %v", c.retries, s.attempts(), want)
	}
	if reason := s.task.LastErrorReason.GetValue(); c.cause != "" && !strings.Contains(reason, string(c.cause)) {
		f.wrongf("with max_retries %d last_error_reason is %q, which does not name %s", c.retries, reason, c.cause)
	}
	f.notef("max_retries %d: %d attempts, %s %s", c.retries, c.attempts, state, c.code)
}
