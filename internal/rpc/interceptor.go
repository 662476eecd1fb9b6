package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// outageLogEvery is the least time between two log records about the service
// being unavailable, which every call during an outage would repeat.
const outageLogEvery = time.Second

// interceptor stands between Connect and the service on every call: it refuses
// requests that could not be decoded, applies the Idempotency-Key header, maps
// errors, and turns panics into errors.
type interceptor struct {
	log *slog.Logger
	// nextOutage is when the next outage may be logged, in Unix nanoseconds.
	nextOutage atomic.Int64
	// silenced counts outages that were not logged.
	silenced atomic.Int64
}

// WrapUnary implements connect.Interceptor.
func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
		procedure := req.Spec().Procedure
		defer func() {
			if r := recover(); r != nil {
				resp, err = nil, i.panicked(ctx, procedure, r)
			}
		}()
		if err := i.admit(req); err != nil {
			return nil, ToConnect(err)
		}
		resp, err = next(ctx, req)
		if err != nil {
			return nil, i.fail(ctx, procedure, err)
		}
		return resp, nil
	}
}

// gate maps the errors of a gate, and its panics.
func (i *interceptor) gate(next connect.RequestGateFunc) connect.RequestGateFunc {
	return func(ctx context.Context, spec connect.Spec, peer connect.Peer, header http.Header) (out context.Context, err error) {
		defer func() {
			if r := recover(); r != nil {
				out, err = nil, i.panicked(ctx, spec.Procedure, r)
			}
		}()
		if out, err = next(ctx, spec, peer, header); err != nil {
			return nil, i.fail(ctx, spec.Procedure, err)
		}
		return out, nil
	}
}

// admit refuses a request that the service must not see, and completes it
// from its headers.
func (i *interceptor) admit(req connect.AnyRequest) error {
	if err := markedInvalid(req.Any()); err != nil {
		return err
	}
	if enqueue, ok := req.Any().(*penstockv1.EnqueueRequest); ok {
		return applyIdempotencyKey(req.Header(), enqueue)
	}
	return nil
}

// WrapStreamingClient implements connect.Interceptor; it changes nothing.
func (i *interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) (err error) {
		procedure := conn.Spec().Procedure
		defer func() {
			if r := recover(); r != nil {
				err = i.panicked(ctx, procedure, r)
			}
		}()
		if err := next(ctx, checkedConn{conn}); err != nil {
			return i.fail(ctx, procedure, err)
		}
		return nil
	}
}

// mapper stands outside the interceptors of Options and maps their errors. What
// comes from further inside is mapped already and stays as it is.
type mapper struct{ *interceptor }

// WrapUnary implements connect.Interceptor.
func (m mapper) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		resp, err := next(ctx, req)
		if err != nil {
			return nil, m.fail(ctx, req.Spec().Procedure, err)
		}
		return resp, nil
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (m mapper) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := next(ctx, conn); err != nil {
			return m.fail(ctx, conn.Spec().Procedure, err)
		}
		return nil
	}
}

// checkedConn refuses messages that could not be decoded.
type checkedConn struct {
	connect.StreamingHandlerConn
}

// Receive implements connect.StreamingHandlerConn.
func (c checkedConn) Receive(m any) error {
	if err := c.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	if err := markedInvalid(m); err != nil {
		return ToConnect(err)
	}
	return nil
}

// fail maps an error of the service and logs it if nobody else learns of it.
func (i *interceptor) fail(ctx context.Context, procedure string, err error) error {
	mapped := ToConnect(err)
	_, wrapped := errors.AsType[*statusError](err)
	if _, own := errors.AsType[*connect.Error](err); own && !wrapped {
		return mapped // the service wrote it for the caller
	}
	switch mapped.Code() {
	case connect.CodeInternal, connect.CodeUnknown:
		i.log.LogAttrs(ctx, slog.LevelError, "rpc: call failed",
			slog.String("procedure", procedure), slog.Any("error", err))
	case connect.CodeUnavailable:
		i.logOutage(ctx, procedure, err)
	}
	return mapped
}

// logOutage logs an outage unless one was logged just now.
func (i *interceptor) logOutage(ctx context.Context, procedure string, err error) {
	now := time.Now().UnixNano()
	next := i.nextOutage.Load()
	if now < next || !i.nextOutage.CompareAndSwap(next, now+int64(outageLogEvery)) {
		i.silenced.Add(1)
		return
	}
	i.log.LogAttrs(ctx, slog.LevelWarn, "rpc: unavailable", slog.String("procedure", procedure),
		slog.Any("error", err), slog.Int64("more_since_last", i.silenced.Swap(0)))
}

// panicked logs a panic with its stack and returns what the caller gets. A
// panic that asks net/http to abort the response goes on.
func (i *interceptor) panicked(ctx context.Context, procedure string, r any) error {
	if r == http.ErrAbortHandler { //nolint:errorlint // net/http compares it like this, too
		panic(r)
	}
	err := fmt.Errorf("panic: %v", r)
	i.log.LogAttrs(ctx, slog.LevelError, "rpc: call panicked", slog.String("procedure", procedure),
		slog.Any("error", err), slog.String("stack", string(debug.Stack())))
	return ToConnect(err)
}
