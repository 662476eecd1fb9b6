package rpc

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Texts for errors whose own text stays inside.
const (
	textInternal    = "internal error"
	textUnavailable = "the service is unavailable for the moment; try again"
	textOverloaded  = "too many calls are waiting; try again later"
	textCanceled    = "the call was cancelled"
	textDeadline    = "the deadline passed before the call was done"
)

// statusError is an error that a caller may retry.
type statusError struct {
	code connect.Code
	text string
	err  error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return e.text
	}
	return e.text + ": " + e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// Unavailable wraps an error of something that the service depends on, e.g. a
// database that cannot be reached. Callers get code Unavailable (503) with
// retryable = true and a fixed text; err is logged. err may be nil.
func Unavailable(err error) error {
	return &statusError{code: connect.CodeUnavailable, text: textUnavailable, err: err}
}

// Overloaded says that the service has no room for the call. Callers get code
// ResourceExhausted (429) with retryable = true and a fixed text. err may be
// nil; it is not logged, as an overloaded process should do less.
func Overloaded(err error) error {
	return &statusError{code: connect.CodeResourceExhausted, text: textOverloaded, err: err}
}

// codes maps the contract's codes to those of Connect. Those that report how
// an execution ended are about the state of a task, like an invalid transition.
var codes = map[protocol.Code]connect.Code{
	protocol.CodeInputInvalid:      connect.CodeInvalidArgument,
	protocol.CodeUnknownType:       connect.CodeInvalidArgument,
	protocol.CodeDuplicate:         connect.CodeAlreadyExists,
	protocol.CodeNotFound:          connect.CodeNotFound,
	protocol.CodeInvalidTransition: connect.CodeFailedPrecondition,
	protocol.CodeTimeout:           connect.CodeFailedPrecondition,
	protocol.CodeExecutionFailed:   connect.CodeFailedPrecondition,
	protocol.CodeRetryExhausted:    connect.CodeFailedPrecondition,
	protocol.CodeWorkerLost:        connect.CodeFailedPrecondition,
	protocol.CodeCancelled:         connect.CodeFailedPrecondition,
	protocol.CodeExpired:           connect.CodeFailedPrecondition,
	protocol.CodeApprovalRejected:  connect.CodeFailedPrecondition,
	protocol.CodeDependencyFailed:  connect.CodeFailedPrecondition,
}

// ToConnect maps an error of the service to what a caller gets. The result
// carries one ErrorInfo detail. The first of these that err is or wraps counts:
//
//   - Unavailable and Overloaded: Unavailable and ResourceExhausted, retryable;
//   - *connect.Error: itself, with an ErrorInfo added if it has none. For
//     authentication these are Unauthenticated (401) and PermissionDenied (403);
//     their ErrorInfo has no code;
//   - *protocol.Error: the Connect code of its code, with code and field;
//   - context.Canceled and context.DeadlineExceeded: Canceled and
//     DeadlineExceeded (the latter retryable);
//   - anything else: Internal, with a fixed text.
//
// It returns nil for nil.
func ToConnect(err error) *connect.Error {
	if err == nil {
		return nil
	}
	if status, ok := errors.AsType[*statusError](err); ok {
		return newError(status.code, status.text, &penstockv1.ErrorInfo{Message: status.text, Retryable: true})
	}
	if own, ok := errors.AsType[*connect.Error](err); ok {
		return withInfo(own)
	}
	if refusal, ok := errors.AsType[*protocol.Error](err); ok {
		code, ok := codes[refusal.Code]
		if !ok {
			code = connect.CodeUnknown
		}
		return newError(code, refusal.Error(), infoOf(refusal))
	}
	switch {
	case errors.Is(err, context.Canceled):
		return newError(connect.CodeCanceled, textCanceled, &penstockv1.ErrorInfo{Message: textCanceled})
	case errors.Is(err, context.DeadlineExceeded):
		return newError(connect.CodeDeadlineExceeded, textDeadline,
			&penstockv1.ErrorInfo{Message: textDeadline, Retryable: true})
	default:
		return newError(connect.CodeInternal, textInternal, &penstockv1.ErrorInfo{Message: textInternal})
	}
}

// InfoOf returns the ErrorInfo detail of an error of the service, on the side
// of the caller, too. It returns nil if there is none: the error comes from the
// transport, e.g. because a message is larger than the server accepts.
func InfoOf(err error) *penstockv1.ErrorInfo {
	own, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return nil
	}
	for _, detail := range own.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*penstockv1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

// newError makes an error with one detail.
func newError(code connect.Code, text string, info *penstockv1.ErrorInfo) *connect.Error {
	err := connect.NewError(code, errors.New(text))
	if detail, detailErr := connect.NewErrorDetail(info); detailErr == nil {
		err.AddDetail(detail)
	}
	return err
}

// withInfo returns own, or a copy with an ErrorInfo if it has none. It leaves
// own alone, as the service may return the same error from many calls.
func withInfo(own *connect.Error) *connect.Error {
	if connect.IsNotModifiedError(own) || InfoOf(own) != nil {
		return own
	}
	info := &penstockv1.ErrorInfo{Message: own.Message(), Retryable: retryable(own.Code())}
	if refusal, ok := errors.AsType[*protocol.Error](own); ok {
		info = infoOf(refusal)
	}
	cause := own.Unwrap()
	if cause == nil {
		cause = errors.New("")
	}
	err := connect.NewError(own.Code(), cause)
	for _, detail := range own.Details() {
		err.AddDetail(detail)
	}
	if !connect.IsWireError(own) {
		for key, values := range own.Meta() {
			err.Meta()[key] = values
		}
	}
	if detail, detailErr := connect.NewErrorDetail(info); detailErr == nil {
		err.AddDetail(detail)
	}
	return err
}

// infoOf returns the detail for a refusal.
func infoOf(refusal *protocol.Error) *penstockv1.ErrorInfo {
	return &penstockv1.ErrorInfo{Code: string(refusal.Code), Field: refusal.Field, Message: refusal.Message}
}

// decodeMark returns the error whose ErrorInfo is data.
func decodeMark(data []byte) error {
	var info penstockv1.ErrorInfo
	if err := proto.Unmarshal(data, &info); err != nil {
		return protocol.Errorf(protocol.CodeInputInvalid, "", "the message cannot be decoded")
	}
	return &protocol.Error{Code: protocol.Code(info.GetCode()), Field: info.GetField(), Message: info.GetMessage()}
}

// retryable reports whether the same call may succeed later, going by the code
// alone.
func retryable(code connect.Code) bool {
	switch code {
	case connect.CodeUnavailable, connect.CodeResourceExhausted, connect.CodeAborted, connect.CodeDeadlineExceeded:
		return true
	default:
		return false
	}
}
