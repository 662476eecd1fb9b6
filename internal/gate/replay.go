package gate

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// replay is one case of the acceptance.
type replay struct {
	id string
	// failures is how many executions fail before one succeeds.
	failures int
	// again: the task's success is followed by another end.
	again bool
	// What must come of it.
	state   protocol.State
	retries int
	path    string
}

// forever is more failures than there are attempts.
const forever = math.MaxInt

const (
	begin = "queued -> running"
	retry = " -> retrying -> running"
)

// replays are those of the document, in its order. Its table leaves out what was
// before the replay's initial state; here a history is whole.
var replays = []replay{
	{id: "RP-001", state: protocol.StateSucceeded, path: begin + " -> succeeded"},
	{id: "RP-002", failures: 1, state: protocol.StateSucceeded, retries: 1, path: begin + retry + " -> succeeded"},
	{id: "RP-003", failures: 3, state: protocol.StateSucceeded, retries: 3, path: begin + retry + retry + retry + " -> succeeded"},
	{id: "RP-004", failures: forever, state: protocol.StateFailed, retries: 3, path: begin + retry + retry + retry + " -> dlq_pending -> dlq_recorded -> failed"},
	{id: "RP-005", again: true, state: protocol.StateSucceeded, path: begin + " -> succeeded"},
}

// maxRetries and policy are those of every task of a gate: the document's bound,
// with delays that nobody has to wait for.
var (
	maxRetries = 3
	policy     = protocol.RetryPolicy{Strategy: protocol.StrategyExponential, BaseMS: 10, MaxBackoffMS: 1000, JitterMaxMS: 5}
)

func (r replay) taskType() string {
	if r.failures == forever {
		return "gate-b2.fail-always"
	}
	return fmt.Sprintf("gate-b2.fail-%d", r.failures)
}

// evidence is what the system says about a replay's task once it is over.
type evidence struct {
	task   *client.Task
	events []*penstockv1.Event
	// dead is the task's dead letter; nil if there is none.
	dead *penstockv1.DeadLetter
	// before is the task before the illegal end of RP-005 was reported.
	before *client.Task
}

// judge compares the evidence with what must be, and says what is wrong.
func (r replay) judge(e evidence, seed []byte) Result {
	res := Result{
		ReplayID: r.id, TraceID: e.task.TraceId, JobID: e.task.TaskId, RetryCount: int(e.task.RetryCount), StatusTransition: path(e.events),
		ExpectedTransition: r.path, ExpectedRetryCount: r.retries,
	}
	wrong := func(format string, args ...any) { res.Wrong = append(res.Wrong, fmt.Sprintf(format, args...)) }
	if e.task.State != string(r.state) {
		wrong("state is %s, want %s", e.task.State, r.state)
	}
	if res.RetryCount != r.retries {
		wrong("retry_count is %d, want %d", res.RetryCount, r.retries)
	}
	if res.StatusTransition != r.path {
		wrong("the event log says: %s", res.StatusTransition)
	}
	for _, ev := range e.events {
		if ev.TraceId != e.task.TraceId {
			wrong("event %d has trace_id %s", ev.Seq, ev.TraceId)
		}
	}
	checkDelays(e, seed, wrong)
	if r.state == protocol.StateFailed {
		res.DLQID, res.ErrorCode = e.task.DlqId, e.task.LastErrorCode.GetValue()
		checkDead(e, wrong)
	}
	if r.again {
		res.ErrorCode = checkRefusal(e, wrong)
	}
	res.Passed = len(res.Wrong) == 0
	return res
}

// path is the history that the event log tells.
func path(events []*penstockv1.Event) string {
	states := make([]protocol.State, len(events))
	for i, e := range events {
		states[i] = protocol.State(e.Status)
	}
	return protocol.VocabularyB2.Path(states)
}

// checkDelays computes every delay again from the policy and the deployment's
// seed.
func checkDelays(e evidence, seed []byte, wrong func(string, ...any)) {
	id, err := protocol.ParseID(e.task.TaskId)
	if err != nil {
		wrong("job_id: %v", err)
		return
	}
	for _, ev := range e.events {
		if ev.Type != string(protocol.EventRetryScheduled) {
			continue
		}
		want := policy.Delay(seed, id, int(ev.RetryCount)).Milliseconds()
		if got := ev.BackoffDelayMs.GetValue(); got != want {
			wrong("the delay before retry %d is %d ms, want %d ms", ev.RetryCount, got, want)
		}
	}
}

func checkDead(e evidence, wrong func(string, ...any)) {
	if code := protocol.Code(e.task.LastErrorCode.GetValue()); code != protocol.CodeRetryExhausted {
		wrong("error_code is %q, want %s", code, protocol.CodeRetryExhausted)
	}
	switch {
	case e.task.DlqId == "":
		wrong("the task has no dlq_id")
	case e.dead == nil:
		wrong("there is no dead letter %s", e.task.DlqId)
	case e.dead.DlqId != e.task.DlqId || e.dead.TaskId != e.task.TaskId || e.dead.RetryCount != e.task.RetryCount:
		wrong("dead letter %s is about task %s with retry_count %d", e.dead.DlqId, e.dead.TaskId, e.dead.RetryCount)
	case e.dead.RecordedAt == nil:
		wrong("dead letter %s is not in %s", e.dead.DlqId, protocol.StreamDLQ)
	}
}

// checkRefusal checks that the second end changed nothing and was recorded, and
// returns the code it was refused with, in the document's words.
func checkRefusal(e evidence, wrong func(string, ...any)) string {
	a, b := e.before, e.task
	if a == nil {
		wrong("it never came to a second end")
		return ""
	}
	if a.State != b.State || a.Attempt != b.Attempt || a.Delivery != b.Delivery || a.FinishedAt.AsTime() != b.FinishedAt.AsTime() {
		wrong("the second end moved the task from %s, attempt %d, delivery %d to %s, attempt %d, delivery %d", a.State, a.Attempt, a.Delivery, b.State, b.Attempt, b.Delivery)
	}
	terminal := 0
	var refusal *penstockv1.Event
	for _, ev := range e.events {
		if ev.Type == string(protocol.EventTransitionRejected) {
			refusal = ev
		}
		if protocol.State(ev.Status).Terminal() && ev.Status != ev.PreviousStatus {
			terminal++
		}
	}
	if terminal != 1 {
		wrong("the event log has %d terminal events, want 1", terminal)
	}
	if refusal == nil {
		wrong("no refusal was recorded")
		return ""
	}
	var d protocol.RejectedData
	if err := json.Unmarshal(refusal.Data, &d); err != nil || d.Kind != protocol.OutcomeFailed || d.Delivery != a.Delivery {
		wrong("the refusal recorded is about another outcome: %s", strings.TrimSpace(string(refusal.Data)))
	}
	if refusal.ErrorCode != string(protocol.CodeInvalidTransition) {
		wrong("the refusal has code %s", refusal.ErrorCode)
	}
	return protocol.VocabularyB2.Code(protocol.Code(refusal.ErrorCode))
}
