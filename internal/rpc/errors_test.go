package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func TestToConnect(t *testing.T) {
	if ToConnect(nil) != nil {
		t.Error("nil is an error")
	}
	detailed := newError(connect.CodeAborted, "x", &penstockv1.ErrorInfo{Code: "C"})
	for _, tc := range []struct {
		err       error
		code      connect.Code
		message   string
		infoCode  string
		retryable bool
	}{
		{protocol.Errorf(protocol.CodeInputInvalid, "type", "bad"), connect.CodeInvalidArgument, "TASK_INPUT_INVALID: type: bad", "TASK_INPUT_INVALID", false},
		{fmt.Errorf("x: %w", protocol.Errorf(protocol.CodeDuplicate, "", "d")), connect.CodeAlreadyExists, "TASK_DUPLICATE: d", "TASK_DUPLICATE", false},
		{protocol.Errorf(protocol.CodeNotFound, "", "n"), connect.CodeNotFound, "TASK_NOT_FOUND: n", "TASK_NOT_FOUND", false},
		{protocol.Errorf(protocol.CodeInvalidTransition, "", "i"), connect.CodeFailedPrecondition, "TASK_INVALID_TRANSITION: i", "TASK_INVALID_TRANSITION", false},
		{protocol.Errorf("TASK_NEW", "", "i"), connect.CodeUnknown, "TASK_NEW: i", "TASK_NEW", false},
		{Unavailable(context.DeadlineExceeded), connect.CodeUnavailable, textUnavailable, "", true},
		{fmt.Errorf("x: %w", Overloaded(nil)), connect.CodeResourceExhausted, textOverloaded, "", true},
		{fmt.Errorf("x: %w", context.Canceled), connect.CodeCanceled, textCanceled, "", false},
		{context.DeadlineExceeded, connect.CodeDeadlineExceeded, textDeadline, "", true},
		{errors.New("secret"), connect.CodeInternal, textInternal, "", false},
		{connect.NewError(connect.CodeUnavailable, errors.New("own")), connect.CodeUnavailable, "own", "", true},
		{connect.NewError(connect.CodeInternal, nil), connect.CodeInternal, "", "", false},
		{connect.NewError(connect.CodeDataLoss, protocol.Errorf(protocol.CodeNotFound, "", "n")), connect.CodeDataLoss, "TASK_NOT_FOUND: n", "TASK_NOT_FOUND", false},
		{detailed, connect.CodeAborted, "x", "C", false},
	} {
		got := ToConnect(tc.err)
		info := InfoOf(got)
		if got.Code() != tc.code || got.Message() != tc.message || info.GetCode() != tc.infoCode || info.GetRetryable() != tc.retryable || len(got.Details()) != 1 {
			t.Errorf("%v: %v %v", tc.err, got, info)
		}
	}
	if len(detailed.Details()) != 1 {
		t.Error("the service's error was changed")
	}
	if InfoOf(errors.New("x")) != nil {
		t.Error("info of a plain error")
	}
}

func TestIdempotencyKeyFromHeader(t *testing.T) {
	for value, want := range map[string]string{
		`abc`: "abc", ` abc `: "abc", `"a b"`: "a b", `"a\"\\"`: `a"\`, `8e03978e-40d5-43dd-bc93-6894a57f9324`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
	} {
		got, err := IdempotencyKeyFromHeader(http.Header{IdempotencyKeyHeader: {value}})
		if err != nil || got != want {
			t.Errorf("%q: %q, %v", value, got, err)
		}
	}
	for _, values := range [][]string{
		{""}, {`""`}, {`"`}, {`"a`}, {`"a"b`}, {`"a";x=1`}, {`"a\n"`}, {`a b`}, {`a,b`}, {`a;b`}, {`a"b`}, {"é"}, {"\"\x7f\""}, {"a", "a"},
	} {
		got, err := IdempotencyKeyFromHeader(http.Header{IdempotencyKeyHeader: values})
		if protocol.CodeOf(err) != protocol.CodeInputInvalid || got != "" {
			t.Errorf("%q: %q, %v", values, got, err)
		}
	}
	if got, err := IdempotencyKeyFromHeader(http.Header{}); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}
