package task

import (
	"context"
	"encoding/json"
	"fmt"
)

// recorderKey is that of the function behind RecordProgress in a context.
type recorderKey struct{}

// WithRecorder returns a context in which RecordProgress calls record with its
// detail as JSON, and Heartbeat calls it with nil. record may be called by
// several goroutines at once and must not block. Workers and package tasktest
// do this; a program that calls handlers by itself may.
func WithRecorder(ctx context.Context, record func(detail json.RawMessage) error) context.Context {
	return context.WithValue(ctx, recorderKey{}, record)
}

// RecordProgress reports how far the handler whose context ctx is has come.
// detail is anything with a JSON form of at most 4 KiB, such as a number or a
// small struct. The latest report is sent with the worker's next heartbeat and
// shown with the task, if the worker knows an orchestrator; earlier ones that
// were not sent are dropped. Each report starts the task's heartbeat timeout
// anew, if it has one, whether or not there is an orchestrator. A call is cheap.
//
// If ctx has ended, the error is its cause, so that a loop that returns the
// error of its reports stops when it is cancelled. If detail can't be kept, the
// error is one for which IsInvalidInput holds. Outside of a worker RecordProgress
// does nothing and returns nil.
func RecordProgress(ctx context.Context, detail any) error {
	record, ok := ctx.Value(recorderKey{}).(func(json.RawMessage) error)
	if !ok {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	b, err := json.Marshal(detail)
	if err != nil {
		return InvalidInput(fmt.Errorf("task: progress has no JSON form: %w", err))
	}
	return record(b)
}

// Heartbeat reports that the handler whose context ctx is gets on, without a
// detail; see RecordProgress.
func Heartbeat(ctx context.Context) error {
	record, ok := ctx.Value(recorderKey{}).(func(json.RawMessage) error)
	switch {
	case !ok:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return record(nil)
}
