package protocol

import (
	"fmt"
	"time"
)

// ActorTimeout ends an execution whose worker did not do so in time.
const ActorTimeout = "timeout"

// TimedOut ends the execution of a worker that did not answer: one whose claim was
// recorded longer than timeout and grace ago, by Postgres' clock, and of which no
// outcome came. It is a failure with TASK_TIMEOUT: the next attempt is
// scheduled as the policy says, or the task is given up with
// TASK_RETRY_EXHAUSTED. Applied* stay as they are, so an outcome that comes
// after all is refused as one of another delivery or state, and recorded. ok is
// false if the task is not running or its time is not over.
func (t *Task) TimedOut(env Env, timeout, grace time.Duration) (events []*Event, ok bool) {
	// ClaimedAt is missing where an orchestrator of an older version recorded the
	// claim: its StartedAt is that time, and later than a ClaimedAt from before.
	if t.State != StateRunning || env.Now.Before(later(t.ClaimedAt, t.StartedAt).Add(timeout).Add(grace)) {
		return nil, false
	}
	e := t.fail(&Outcome{
		Kind: OutcomeFailed, Code: CodeTimeout, Retryable: true, Delay: -1,
		Error: fmt.Sprintf("start-to-close timeout: the worker did not answer within %s after the timeout of %s", grace, timeout),
	}, env, ActorTimeout)
	e.WorkerID = t.WorkerID
	return []*Event{e}, true
}
