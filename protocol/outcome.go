package protocol

import (
	"time"
)

// OutcomeKind says what an entry of stream:result reports.
type OutcomeKind string

// The outcome kinds of the contract, section 5.
const (
	// OutcomeClaimed: the execution started. Sent on its own only for
	// executions that still run after a while; else it travels inside the
	// outcome as started_at.
	OutcomeClaimed OutcomeKind = "claimed"
	// OutcomeSucceeded: the handler returned; result is its JSON value.
	OutcomeSucceeded OutcomeKind = "succeeded"
	// OutcomeFailed: error_code, error and retryable say why.
	OutcomeFailed OutcomeKind = "failed"
	// OutcomeSnoozed: run again after delay_ms without spending a retry.
	OutcomeSnoozed OutcomeKind = "snoozed"
	// OutcomeReleased: handed back unfinished (shutdown, unknown type).
	OutcomeReleased OutcomeKind = "released"
	// OutcomeApprovalNeeded: the handler asks for approval before it goes on.
	OutcomeApprovalNeeded OutcomeKind = "approval_needed"
	// OutcomeSkipped: the entry's task was cancelled before it started.
	OutcomeSkipped OutcomeKind = "skipped"
)

// OutcomeKinds lists every kind.
func OutcomeKinds() []OutcomeKind {
	return []OutcomeKind{
		OutcomeClaimed, OutcomeSucceeded, OutcomeFailed, OutcomeSnoozed,
		OutcomeReleased, OutcomeApprovalNeeded, OutcomeSkipped,
	}
}

// Outcome is one entry of stream:result.
type Outcome struct {
	ID       ID
	Delivery int64
	Kind     OutcomeKind
	WorkerID string
	// MessageID is the task stream entry that the execution came from.
	MessageID string
	// StartedAt and FinishedAt are the worker's clock in whole milliseconds, their
	// difference by its monotonic clock; StartedAt is zero if the execution never
	// started. What becomes of them: Times.
	StartedAt, FinishedAt time.Time
	Result                []byte // JSON, for succeeded
	Code                  Code   // for failed and released
	Error                 string // for failed, released, approval_needed
	Retryable             bool   // for failed
	// Delay is what the handler asked for (failed: RetryAfter; snoozed), or the
	// worker (released: at most a minute counts); negative if it asked for none.
	Delay time.Duration
	// Approval is what a handler asks for, a JSON object; for approval_needed.
	Approval []byte
}

// Values returns the outcome as field-value pairs for XADD.
func (o *Outcome) Values() []any {
	v := []any{
		FieldVersion, WireVersion,
		FieldID, o.ID.String(),
		FieldDelivery, o.Delivery,
		FieldKind, string(o.Kind),
		FieldWorkerID, o.WorkerID,
		FieldMessageID, o.MessageID,
		FieldStartedAt, millis(o.StartedAt),
		FieldFinishedAt, millis(o.FinishedAt),
	}
	if len(o.Result) > 0 {
		v = append(v, FieldResult, o.Result)
	}
	if o.Code != "" {
		v = append(v, FieldErrorCode, string(o.Code))
	}
	if o.Error != "" {
		v = append(v, FieldError, o.Error)
	}
	if o.Retryable {
		v = append(v, FieldRetryable, "1")
	}
	if o.Delay >= 0 {
		v = append(v, FieldDelayMS, o.Delay.Milliseconds())
	}
	if len(o.Approval) > 0 {
		v = append(v, FieldApproval, o.Approval)
	}
	return v
}

// DecodeOutcome reads an entry of stream:result. Unknown fields are ignored.
// The error is an *Error with code TASK_INPUT_INVALID that names the field.
func DecodeOutcome(values map[string]any) (*Outcome, error) {
	d := decoder{values: values}
	d.version()
	o := &Outcome{
		ID:         d.id(FieldID),
		Delivery:   d.integer(FieldDelivery, 1, 1<<62),
		Kind:       OutcomeKind(d.required(FieldKind, maxName)),
		WorkerID:   d.optional(FieldWorkerID, maxName),
		MessageID:  d.optional(FieldMessageID, maxName),
		StartedAt:  d.optionalTime(FieldStartedAt),
		FinishedAt: d.optionalTime(FieldFinishedAt),
		Result:     []byte(d.optional(FieldResult, maxContent)),
		Code:       Code(d.optional(FieldErrorCode, maxName)),
		Error:      Text(d.optional(FieldError, maxContent)),
		Retryable:  d.optional(FieldRetryable, maxName) == "1",
		Delay:      -1,
		Approval:   d.bytes(FieldApproval),
	}
	if s := d.optional(FieldDelayMS, maxName); s != "" {
		o.Delay = time.Duration(d.integer(FieldDelayMS, 0, maxDelayMS)) * time.Millisecond
	}
	if d.err == nil && !validKind(o.Kind) {
		d.fail(FieldKind, "unknown outcome kind %q", Clip(string(o.Kind), 64))
	}
	if d.err != nil {
		return nil, d.err
	}
	return o, nil
}

func validKind(k OutcomeKind) bool {
	switch k {
	case OutcomeClaimed, OutcomeSucceeded, OutcomeFailed, OutcomeSnoozed,
		OutcomeReleased, OutcomeApprovalNeeded, OutcomeSkipped:
		return true
	}
	return false
}
