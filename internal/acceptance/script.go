package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// The types of the tasks.
const (
	typeStep   = "acceptance.step"
	typeEffect = "acceptance.effect"
	// typeGuarded is a step that a rule stops.
	typeGuarded = "acceptance.guarded"
)

// script is the payload of a step: what its handler does.
type script struct {
	Channel   string `json:"channel,omitempty"`    // of the contracts' example
	RequestID string `json:"request_id,omitempty"` // the same
	// Fail is how many attempts end in a transient error, Timeout how many run
	// out of their time. Timeouts come first.
	Fail    int `json:"fail,omitempty"`
	Timeout int `json:"timeout,omitempty"`
	// Permanent: the attempt after these ends in an error that is not retried.
	Permanent bool `json:"permanent,omitempty"`
	// Restart: the deliveries that end as if the process had.
	Restart []int64 `json:"restart,omitempty"`
	// Snooze: the deliveries that are put off.
	Snooze []int64 `json:"snooze,omitempty"`
	// RetryAfterMS is the delay that transient errors ask for.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
	// Ask: the handler asks for approval under this name before anything else.
	Ask string `json:"ask,omitempty"`
	// Needs: the dependencies, by local name, whose results the handler must have.
	Needs []string `json:"needs,omitempty"`
	// Block: the handler waits until its context ends.
	Block bool `json:"block,omitempty"`
}

// stepResult is a step's result.
type stepResult struct {
	Attempt int `json:"attempt"`
}

// always is more failures than there are attempts.
const always = 1000

func (s script) json() json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil { // it has numbers and strings only
		panic(err)
	}
	return b
}

var errStep = errors.New("no route to host")

// step is the handler of typeStep. It is wrapped in the failure injection that
// is the documents' own (package inject).
func (r *run) step(ctx context.Context, t *task.Raw) (json.RawMessage, error) {
	var s script
	if err := json.Unmarshal(t.Payload, &s); err != nil {
		return nil, task.InvalidInput(err)
	}
	if s.Ask != "" {
		if _, err := worker.RequireApproval(ctx, s.Ask, task.ApprovalPrompt("An acceptance asks, and decides by itself.")); err != nil {
			return nil, err
		}
	}
	for _, name := range s.Needs {
		got, err := task.DependencyResult[stepResult](ctx, name)
		if err == nil && got.Attempt == 0 {
			err = fmt.Errorf("the result of %s has no attempt", name)
		}
		if err != nil {
			return nil, task.Permanent(err)
		}
	}
	h := func(ctx context.Context, t *task.Raw) (json.RawMessage, error) {
		switch {
		case s.Block:
			<-ctx.Done()
			return nil, context.Cause(ctx)
		case slices.Contains(s.Snooze, t.Delivery):
			return nil, task.Snooze(30 * time.Millisecond)
		case s.Permanent && t.Attempt > s.Timeout+s.Fail:
			return nil, task.Permanent(errors.New("no such account"))
		}
		return json.Marshal(stepResult{t.Attempt})
	}
	if s.RetryAfterMS > 0 && t.Attempt <= s.Fail {
		return nil, task.RetryAfter(time.Duration(s.RetryAfterMS)*time.Millisecond, errStep)
	}
	if n := attempts(s.Timeout+1, s.Timeout+s.Fail); len(n) > 0 {
		h = inject.Wrap(inject.Plan{Mode: inject.TransientError, Attempts: n, Text: errStep.Error()}, h)
	}
	if n := attempts(1, s.Timeout); len(n) > 0 {
		h = inject.Wrap(inject.Plan{Mode: inject.Timeout, Attempts: n}, h)
	}
	if slices.Contains(s.Restart, t.Delivery) {
		// The claim is told a moment after the beginning. A process that dies before
		// leaves a run that never was running, which is not what is to be shown.
		if err := r.reach(ctx, t.TaskID, protocol.StateRunning); err != nil {
			return nil, err
		}
		h = inject.Wrap(inject.Plan{Mode: inject.ProcessRestartInterrupt, Always: true, Restart: func() {}}, h)
	}
	return h(ctx, t)
}

func attempts(from, to int) (out []int) {
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

// effect is the handler of typeEffect: its effect is done at first, and then its
// execution fails, is lost, and at last succeeds.
func (r *run) effect(ctx context.Context, t *task.Raw) (json.RawMessage, error) {
	receipt, err := worker.Once(ctx, "receipt", func(context.Context) (string, error) { return r.effects.call(t.IdempotencyKey), nil })
	if err != nil {
		return nil, err
	}
	r.effects.got(t.IdempotencyKey, receipt)
	var s script
	if err := json.Unmarshal(t.Payload, &s); err != nil {
		return nil, task.InvalidInput(err)
	}
	h := func(context.Context, *task.Raw) (json.RawMessage, error) { return json.Marshal(receipt) }
	if t.Attempt <= s.Fail {
		return nil, errStep
	}
	if slices.Contains(s.Restart, t.Delivery) {
		h = inject.Wrap(inject.Plan{Mode: inject.ProcessRestartInterrupt, Always: true, Restart: func() {}}, h)
	}
	return h(ctx, t)
}

// receiver stands for the system outside that an effect reaches. It counts.
type receiver struct {
	mu       sync.Mutex
	calls    map[string]int
	receipts map[string][]string
}

func newReceiver() *receiver {
	return &receiver{calls: map[string]int{}, receipts: map[string][]string{}}
}

func (r *receiver) call(key string) (receipt string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[key]++
	return fmt.Sprintf("receipt %d of %s", r.calls[key], key)
}

func (r *receiver) got(key, receipt string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.receipts[key] = append(r.receipts[key], receipt)
}

func (r *receiver) record(key string) (calls int, receipts []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[key], slices.Clone(r.receipts[key])
}

// sighting is one execution as its worker saw it.
type sighting struct {
	Attempt  int
	Delivery int64
	Key      string // execution key
	At       time.Time
}

// sightings are all executions, by task.
type sightings struct {
	mu sync.Mutex
	m  map[string][]sighting
}

func newSightings() *sightings { return &sightings{m: map[string][]sighting{}} }

func (s *sightings) of(taskID string) []sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.m[taskID])
}

// watch wraps a handler: every execution is noted.
func (s *sightings) watch(h task.Handler) task.Handler {
	return func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
		s.mu.Lock()
		s.m[r.TaskID] = append(s.m[r.TaskID], sighting{r.Attempt, r.Delivery, r.ExecutionKey(), time.Now()})
		s.mu.Unlock()
		return h(ctx, r)
	}
}

func (r *run) handlers() map[string]task.Handler {
	return map[string]task.Handler{typeStep: r.seen.watch(r.step), typeEffect: r.seen.watch(r.effect), typeGuarded: r.seen.watch(r.step)}
}
