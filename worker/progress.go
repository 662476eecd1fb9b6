package worker

import (
	"encoding/json"
	"fmt"
	"time"
)

// progress is what a handler reported. Its fields are under the execution's
// mutex.
type progress struct {
	at     time.Time       // of the last report; zero: none
	detail json.RawMessage // of the last report that had one; nil: none
	unsent bool            // no orchestrator has been told of the detail
}

// report takes what the handler reports; nil: a heartbeat without a detail.
func (x *execution) report(detail json.RawMessage) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.progress.at = time.Now()
	if detail != nil {
		x.progress.detail, x.progress.unsent = detail, true
	}
}

// sent notes that an orchestrator knows the detail.
func (x *execution) sent(detail json.RawMessage) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if string(x.progress.detail) == string(detail) {
		x.progress.unsent = false
	}
}

// ignores tells which timeout, or the cancellation of its task, the handler of a
// started execution has ignored for longer than grace; empty: none.
func (x *execution) ignores(now time.Time, grace time.Duration) string {
	x.mu.Lock()
	cancelled := x.cancelledAt
	x.mu.Unlock()
	if !cancelled.IsZero() && now.Sub(cancelled) > grace {
		return fmt.Sprintf("cancelled: the handler did not return within %s of the cancellation of its task", grace)
	}
	if now.Sub(x.started) > x.task.Timeout+grace {
		return fmt.Sprintf("start-to-close timeout: the handler did not return within %s of its cancellation after %s", grace, x.task.Timeout)
	}
	d := x.task.HeartbeatTimeout
	if d == 0 {
		return ""
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	last := x.progress.at
	if last.IsZero() {
		last = x.started
	}
	if now.Sub(last) <= d+grace {
		return ""
	}
	return fmt.Sprintf("heartbeat timeout: the handler did not return within %s of its cancellation for no progress for %s", grace, d)
}
