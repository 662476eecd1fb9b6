package protocol

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Difference is a value in an event that does not agree with what follows from
// the rest of the log: a delay or jitter that its policy does not give, a
// next_retry_at that is not the event's time plus the delay, details that are
// missing or can't be read.
type Difference struct {
	TaskID ID  `json:"task_id"`
	Seq    int `json:"seq"`
	// Field is a column of event_log (backoff_delay_ms, next_retry_at, data)
	// or a member of its data (delay_source, jitter_ms, policy, step, dlq_id).
	Field string `json:"field"`
	// Recorded is what the log has, Recomputed what it should have.
	Recorded   string `json:"recorded"`
	Recomputed string `json:"recomputed"`
}

// String returns the difference in one line.
func (d Difference) String() string {
	return fmt.Sprintf("task %s, event %d: %s is %s, recomputed %s", d.TaskID, d.Seq, d.Field, d.Recorded, d.Recomputed)
}

const none = "none"

func (r *Replay) differ(e *Event, field, recorded, recomputed string) {
	r.Differences = append(r.Differences, Difference{e.TaskID, e.Seq, field, recorded, recomputed})
}

// verify reports in what the event contradicts itself or, if the log is sound
// so far, the events before it. It returns the delay that the event scheduled.
func (r *Replay) verify(e *Event) *Retry {
	known := len(r.Differences)
	retry := r.verifyDetails(e)
	r.verifyTimes(e, known)
	return retry
}

func (r *Replay) verifyDetails(e *Event) *Retry {
	if e.Type == EventRetryScheduled {
		return r.verifyRetry(e)
	}
	if e.BackoffDelay >= 0 {
		r.differ(e, "backoff_delay_ms", inMillis(e.BackoffDelay), none)
	}
	if r.err == nil && e.To == StateRetrying && !sameTime(e.NextRetryAt, r.task.NextRetryAt) {
		r.differ(e, "next_retry_at", moment(e.NextRetryAt), moment(r.task.NextRetryAt))
	}
	switch e.Type {
	case EventDLQ:
		r.verifyDLQ(e)
	case EventReclaimed:
		r.read(e, &ReclaimData{})
	case EventTransitionRejected:
		r.read(e, &RejectedData{})
	}
	return nil
}

// read decodes the event's data into v, or reports that it can't.
func (r *Replay) read(e *Event, v any) bool {
	if len(e.Data) == 0 {
		r.differ(e, "data", none, "a JSON object")
		return false
	}
	if err := json.Unmarshal(e.Data, v); err != nil {
		r.differ(e, "data", strconv.Quote(Clip(string(e.Data), 200)), fmt.Sprintf("a JSON object (%s)", err))
		return false
	}
	return true
}

func (r *Replay) verifyRetry(e *Event) *Retry {
	retry := &Retry{Delay: e.BackoffDelay, At: e.NextRetryAt}
	var d RetryData
	readable := r.read(e, &d)
	if readable {
		retry.RetryData = d
		r.verifySource(e, d)
	}
	if e.BackoffDelay < 0 {
		r.differ(e, "backoff_delay_ms", none, "the delay")
	} else if at := e.OccurredAt.Add(e.BackoffDelay); !sameTime(e.NextRetryAt, at) {
		r.differ(e, "next_retry_at", moment(e.NextRetryAt), moment(at))
	}
	if !readable || d.DelaySource != DelayFromPolicy {
		return retry
	}
	if d.Policy == nil {
		r.differ(e, "policy", none, "the policy in force")
	} else if err := d.Policy.Validate(); err != nil {
		r.differ(e, "policy", string(data(d.Policy)), fmt.Sprintf("a valid policy (%s)", err))
	} else if r.Seed != nil {
		r.recompute(e, d)
	}
	return retry
}

// verifySource checks that the delay's source fits the event: a snooze is no
// failure, and only a policy's delay has a policy and jitter.
func (r *Replay) verifySource(e *Event, d RetryData) {
	fits, want := d.DelaySource == DelayFromSnooze, DelayFromSnooze
	if e.Code != "" {
		fits, want = d.DelaySource == DelayFromPolicy || d.DelaySource == DelayFromRetryAfter, "policy or retry_after"
	}
	if !fits {
		r.differ(e, "delay_source", strconv.Quote(Clip(d.DelaySource, 32)), want)
	}
	if d.DelaySource == DelayFromPolicy {
		return
	}
	if d.Policy != nil {
		r.differ(e, "policy", string(data(d.Policy)), none)
	}
	if d.JitterMS != 0 {
		r.differ(e, "jitter_ms", strconv.FormatInt(d.JitterMS, 10), "0")
	}
}

// recompute takes the policy in the event, not the one in force now.
func (r *Replay) recompute(e *Event, d RetryData) {
	jitter := d.Policy.Jitter(r.Seed, e.TaskID, e.RetryCount())
	if d.JitterMS != jitter.Milliseconds() {
		r.differ(e, "jitter_ms", strconv.FormatInt(d.JitterMS, 10), inMillis(jitter))
	}
	if want := d.Policy.Backoff(e.RetryCount()) + jitter; e.BackoffDelay >= 0 && e.BackoffDelay != want {
		r.differ(e, "backoff_delay_ms", inMillis(e.BackoffDelay), inMillis(want))
	}
}

func (r *Replay) verifyDLQ(e *Event) {
	var d DLQData
	if !r.read(e, &d) {
		return
	}
	if d.Step != e.To {
		r.differ(e, "step", strconv.Quote(Clip(string(d.Step), 32)), strconv.Quote(string(e.To)))
	}
	if want := DLQID(e.TaskID).String(); d.DLQID != want {
		r.differ(e, "dlq_id", strconv.Quote(Clip(d.DLQID, 64)), want)
	}
}

// sameTime compares times as Postgres keeps them, in whole microseconds.
func sameTime(a, b time.Time) bool {
	return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
}

func moment(t time.Time) string {
	if t.IsZero() {
		return none
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func inMillis(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', -1, 64)
}
