package rpc

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// problemType is the media type of REST errors (RFC 9457).
const problemType = "application/problem+json"

// problemURN begins the type of a problem that has a code of the contract.
const problemURN = "urn:penstock:error:"

// statusClientClosed is the customary status for a call that its caller
// cancelled; there is no registered one.
const statusClientClosed = 499

// problem is a REST error.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Code, Field and Retryable are those of ErrorInfo.
	Code      string `json:"code,omitempty"`
	Field     string `json:"field,omitempty"`
	Retryable bool   `json:"retryable"`
}

// titles are the short names of the contract's codes.
var titles = map[protocol.Code]string{
	protocol.CodeInputInvalid:      "Invalid input",
	protocol.CodeUnknownType:       "Unknown task type",
	protocol.CodeDuplicate:         "Duplicate task",
	protocol.CodeNotFound:          "Not found",
	protocol.CodeInvalidTransition: "Invalid transition",
}

// newProblem makes a problem; info may be nil or have no code.
func newProblem(status int, detail string, info *penstockv1.ErrorInfo) *problem {
	p := &problem{
		Type:      "about:blank",
		Title:     http.StatusText(status),
		Status:    status,
		Detail:    detail,
		Code:      info.GetCode(),
		Field:     info.GetField(),
		Retryable: info.GetRetryable(),
	}
	if p.Code != "" {
		p.Type = problemURN + p.Code
		if title, ok := titles[protocol.Code(p.Code)]; ok {
			p.Title = title
		}
	}
	if p.Title == "" {
		p.Title = "Client closed request" // the only status without a text
	}
	return p
}

// badRequest makes a problem about the request; field may be empty.
func badRequest(field, detail string) *problem {
	return newProblem(http.StatusBadRequest, detail, &penstockv1.ErrorInfo{
		Code: string(protocol.CodeInputInvalid), Field: field, Message: detail,
	})
}

// notFound is the problem of a path that does not exist.
func notFound() *problem {
	return newProblem(http.StatusNotFound, "there is nothing at this path", nil)
}

// problemOf makes the problem for an error of a call. info is nil if no
// interceptor saw it.
func problemOf(code connect.Code, text string, info *penstockv1.ErrorInfo) *problem {
	if info == nil {
		info = &penstockv1.ErrorInfo{Message: text, Retryable: retryable(code)}
	}
	detail := info.GetMessage()
	if detail == "" {
		detail = text
	}
	return newProblem(httpStatus(code), detail, info)
}

// httpStatus maps a code to an HTTP status. An unmet precondition is a
// conflict with the state of the task.
func httpStatus(code connect.Code) int {
	switch code {
	case connect.CodeCanceled:
		return statusClientClosed
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return http.StatusBadRequest
	case connect.CodeDeadlineExceeded:
		return http.StatusGatewayTimeout
	case connect.CodeNotFound:
		return http.StatusNotFound
	case connect.CodeAlreadyExists, connect.CodeAborted, connect.CodeFailedPrecondition:
		return http.StatusConflict
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	case connect.CodeResourceExhausted:
		return http.StatusTooManyRequests
	case connect.CodeUnimplemented:
		return http.StatusNotImplemented
	case connect.CodeUnavailable:
		return http.StatusServiceUnavailable
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	default:
		return http.StatusInternalServerError
	}
}

// text returns the JSON of p.
func (p *problem) text() []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p) // cannot fail: strings, a number and a bool
	return b.Bytes()
}

// WriteProblem sends an error of a handler outside the services, mapped by
// ToConnect, as the REST API would: problem+json with the status of its code.
func WriteProblem(w http.ResponseWriter, err error) {
	mapped := ToConnect(err)
	problemOf(mapped.Code(), mapped.Message(), InfoOf(mapped)).write(w)
}

// write sends p as the response. Statuses that ask to try again come with
// Retry-After, those that ask who is calling with the way to tell.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	h.Set("Content-Type", problemType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		h.Set("Retry-After", "1")
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer") // here only: trailers of gRPC must not have it
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(p.text())
}

// allowOnly serves next for the given methods and refuses others.
func allowOnly(next http.Handler, methods ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, method := range methods {
			if r.Method == method {
				next.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Set("Allow", strings.Join(methods, ", "))
		newProblem(http.StatusMethodNotAllowed, "the path does not take "+r.Method, nil).write(w)
	})
}

// wireProblem reads an error as Connect writes it into the end of a stream.
func wireProblem(data []byte) *problem {
	var wire struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Details []struct {
			Type  string `json:"type"`
			Value string `json:"value"`
		} `json:"details"`
	}
	code := connect.CodeUnknown
	if err := json.Unmarshal(data, &wire); err != nil || code.UnmarshalText([]byte(wire.Code)) != nil {
		return newProblem(http.StatusInternalServerError, textInternal, nil)
	}
	for _, detail := range wire.Details {
		if detail.Type != string((*penstockv1.ErrorInfo)(nil).ProtoReflect().Descriptor().FullName()) {
			continue
		}
		var info penstockv1.ErrorInfo
		value, err := connect.DecodeBinaryHeader(detail.Value)
		if err == nil && proto.Unmarshal(value, &info) == nil {
			return problemOf(code, wire.Message, &info)
		}
	}
	return problemOf(code, wire.Message, nil)
}
