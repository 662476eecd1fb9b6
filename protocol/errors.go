package protocol

import (
	"errors"
	"fmt"
)

// Code is an error code of the task contract. Codes are part of the API: they
// appear in events, dead letters, RPC error details and CLI output.
type Code string

// The codes of the contract, section 4.
const (
	// CodeInvalidTransition: an illegal state change was refused.
	CodeInvalidTransition Code = "TASK_INVALID_TRANSITION"
	// CodeTimeout: an execution exceeded its start-to-close timeout. Retryable.
	CodeTimeout Code = "TASK_TIMEOUT"
	// CodeExecutionFailed: the handler returned an error. Retryable unless the
	// handler said that it is permanent.
	CodeExecutionFailed Code = "TASK_EXECUTION_FAILED"
	// CodeRetryExhausted: a retryable error at attempt >= max_attempts.
	CodeRetryExhausted Code = "TASK_RETRY_EXHAUSTED"
	// CodeDuplicate: same idempotency key or task_id, different fields.
	CodeDuplicate Code = "TASK_DUPLICATE"
	// CodeInputInvalid: a request, payload or stream entry that can't be processed.
	CodeInputInvalid Code = "TASK_INPUT_INVALID"
	// CodeUnknownType: the worker has no handler for the type; handed back.
	CodeUnknownType Code = "TASK_UNKNOWN_TYPE"
	// CodeWorkerLost: interrupted more often than max_interruptions.
	CodeWorkerLost Code = "TASK_WORKER_LOST"
	// CodeCancelled: cancelled by a caller.
	CodeCancelled Code = "TASK_CANCELLED"
	// CodeExpired: not started before its expiry.
	CodeExpired Code = "TASK_EXPIRED"
	// CodeApprovalRejected: a person rejected it, or the approval timed out.
	CodeApprovalRejected Code = "TASK_APPROVAL_REJECTED"
	// CodeDependencyFailed: a task it depends on did not succeed.
	CodeDependencyFailed Code = "TASK_DEPENDENCY_FAILED"
	// CodeNotFound: there is no such task.
	CodeNotFound Code = "TASK_NOT_FOUND"
)

// Error is a refusal with a code. Every error that reaches a caller of the RPC
// or the SDK and is about a task is, or wraps, an *Error.
type Error struct {
	Code Code
	// Field is the path of the wrong field in the request; empty if the error
	// is not about one field.
	Field string
	// Message says what was wrong and what to do.
	Message string
}

// Error returns code, field and message in one line.
func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("%s: %s: %s", e.Code, e.Field, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Errorf makes an *Error about a field; field may be empty.
func Errorf(code Code, field, format string, args ...any) *Error {
	return &Error{Code: code, Field: field, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code of the first *Error in err's chain, or "".
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}
