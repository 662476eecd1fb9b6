package rpc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// rawEdit is a JSON value that only survives if nobody decodes it.
const rawEdit = `{ "to":1e400,"a":"\u00e9", "b":[1, 2] }`

// fakeDeadLetters notes what it is asked, and answers with one dead letter or
// fails. The methods that look alike here are generic below.
type fakeDeadLetters struct {
	penstockv1connect.UnimplementedDeadLetterServiceHandler

	asked func(proto.Message)
	fail  func() error
}

func answer[Req any, Res any](s *fakeDeadLetters, r *connect.Request[Req], res *Res) (*connect.Response[Res], error) {
	if s.asked != nil {
		s.asked(any(r.Msg).(proto.Message))
	}
	if s.fail != nil {
		return nil, s.fail()
	}
	return connect.NewResponse(res), nil
}

func someDeadLetter() *penstockv1.DeadLetter {
	return &penstockv1.DeadLetter{
		DlqId: "d", Payload: []byte(rawEdit), EditedPayload: []byte(menPayload), Raw: []byte(`{"k": "v"}`),
		Errors: []*penstockv1.AttemptError{{Attempt: 1, BackoffDelayMs: wrapperspb.Int64(7)}, {Attempt: 2}},
		Edits:  []*penstockv1.Edit{{Payload: []byte(menPayload), Diff: []byte(`[{"op":"add", "path":"/a"}]`)}},
	}
}

func (s *fakeDeadLetters) ListDeadLetters(_ context.Context, r *connect.Request[penstockv1.ListDeadLettersRequest]) (*connect.Response[penstockv1.ListDeadLettersResponse], error) {
	return answer(s, r, &penstockv1.ListDeadLettersResponse{DeadLetters: []*penstockv1.DeadLetter{someDeadLetter()}})
}

func (s *fakeDeadLetters) GroupDeadLetters(_ context.Context, r *connect.Request[penstockv1.GroupDeadLettersRequest]) (*connect.Response[penstockv1.GroupDeadLettersResponse], error) {
	return answer(s, r, &penstockv1.GroupDeadLettersResponse{Groups: []*penstockv1.DeadLetterGroup{{Key: "k", Count: 1 << 40, Sample: someDeadLetter()}}})
}

func (s *fakeDeadLetters) GetDeadLetter(_ context.Context, r *connect.Request[penstockv1.GetDeadLetterRequest]) (*connect.Response[penstockv1.GetDeadLetterResponse], error) {
	return answer(s, r, &penstockv1.GetDeadLetterResponse{DeadLetter: someDeadLetter()})
}

func (s *fakeDeadLetters) RequeueDeadLetters(_ context.Context, r *connect.Request[penstockv1.RequeueDeadLettersRequest]) (*connect.Response[penstockv1.RequeueDeadLettersResponse], error) {
	return answer(s, r, &penstockv1.RequeueDeadLettersResponse{Results: []*penstockv1.RequeueResult{{DlqId: "d", TaskId: "t"}}})
}

func (s *fakeDeadLetters) EditDeadLetter(_ context.Context, r *connect.Request[penstockv1.EditDeadLetterRequest]) (*connect.Response[penstockv1.EditDeadLetterResponse], error) {
	return answer(s, r, &penstockv1.EditDeadLetterResponse{Diff: r.Msg.GetPayload(), DeadLetter: someDeadLetter()})
}

func (s *fakeDeadLetters) CreateDeadLetterBatch(_ context.Context, r *connect.Request[penstockv1.CreateDeadLetterBatchRequest]) (*connect.Response[penstockv1.CreateDeadLetterBatchResponse], error) {
	return answer(s, r, &penstockv1.CreateDeadLetterBatchResponse{Batch: &penstockv1.DeadLetterBatch{BatchId: "b", Total: int32(len(r.Msg.GetDlqIds()))}})
}

func (s *fakeDeadLetters) ProposeDiscard(_ context.Context, r *connect.Request[penstockv1.ProposeDiscardRequest]) (*connect.Response[penstockv1.ProposeDiscardResponse], error) {
	return answer(s, r, &penstockv1.ProposeDiscardResponse{Batch: &penstockv1.DeadLetterBatch{BatchId: "b"}})
}

func (s *fakeDeadLetters) ConfirmDiscard(_ context.Context, r *connect.Request[penstockv1.ConfirmDiscardRequest]) (*connect.Response[penstockv1.ConfirmDiscardResponse], error) {
	return answer(s, r, &penstockv1.ConfirmDiscardResponse{})
}

func (s *fakeDeadLetters) RejectDiscard(_ context.Context, r *connect.Request[penstockv1.RejectDiscardRequest]) (*connect.Response[penstockv1.RejectDiscardResponse], error) {
	return answer(s, r, &penstockv1.RejectDiscardResponse{})
}

func (s *fakeDeadLetters) GetDeadLetterBatch(_ context.Context, r *connect.Request[penstockv1.GetDeadLetterBatchRequest]) (*connect.Response[penstockv1.GetDeadLetterBatchResponse], error) {
	return answer(s, r, &penstockv1.GetDeadLetterBatchResponse{Batch: &penstockv1.DeadLetterBatch{Details: &penstockv1.DeadLetterBatchDetails{NewMatches: 5}}})
}

func (s *fakeDeadLetters) ListDeadLetterBatches(_ context.Context, r *connect.Request[penstockv1.ListDeadLetterBatchesRequest]) (*connect.Response[penstockv1.ListDeadLetterBatchesResponse], error) {
	return answer(s, r, &penstockv1.ListDeadLetterBatchesResponse{NextPageToken: "n"})
}

func (s *fakeDeadLetters) ListDeadLetterBatchItems(_ context.Context, r *connect.Request[penstockv1.ListDeadLetterBatchItemsRequest]) (*connect.Response[penstockv1.ListDeadLetterBatchItemsResponse], error) {
	return answer(s, r, &penstockv1.ListDeadLetterBatchItemsResponse{NextPageToken: "n"})
}

func (s *fakeDeadLetters) ControlDeadLetterBatch(_ context.Context, r *connect.Request[penstockv1.ControlDeadLetterBatchRequest]) (*connect.Response[penstockv1.ControlDeadLetterBatchResponse], error) {
	return answer(s, r, &penstockv1.ControlDeadLetterBatchResponse{})
}

// deadLetterClients returns a client for each protocol.
func (s *testServer) deadLetterClients() map[string]penstockv1connect.DeadLetterServiceClient {
	client := func(c *http.Client, opts ...connect.ClientOption) penstockv1connect.DeadLetterServiceClient {
		return penstockv1connect.NewDeadLetterServiceClient(c, s.url, opts...)
	}
	return map[string]penstockv1connect.DeadLetterServiceClient{
		"grpc":         client(s.h2c, connect.WithGRPC()),
		"grpc json":    client(s.h2c, connect.WithGRPC(), connect.WithCodec(jsonCodec{name: codecJSON})),
		"grpc-web":     client(s.http, connect.WithGRPCWeb()),
		"connect":      client(s.http),
		"connect json": client(s.http, connect.WithCodec(jsonCodec{name: codecJSON})),
	}
}

func TestDeadLetterProtocols(t *testing.T) {
	t.Parallel()
	svc := &fakeDeadLetters{}
	s := serveBoth(t, &fakeService{}, svc, Options{})
	for name, client := range s.deadLetterClients() {
		svc.fail = nil
		res, err := client.EditDeadLetter(t.Context(), connect.NewRequest(&penstockv1.EditDeadLetterRequest{DlqId: "d", Payload: []byte(rawEdit)}))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		d := res.Msg.GetDeadLetter()
		if string(res.Msg.GetDiff()) != rawEdit || string(d.GetPayload()) != rawEdit || string(d.GetEditedPayload()) != menPayload ||
			string(d.GetEdits()[0].GetDiff()) != `[{"op":"add", "path":"/a"}]` || d.GetErrors()[0].GetBackoffDelayMs().GetValue() != 7 || d.GetErrors()[1].GetBackoffDelayMs() != nil {
			t.Errorf("%s: %v", name, res.Msg)
		}
		svc.fail = func() error { return protocol.Errorf(protocol.CodeNotFound, "dlq_id", "no dead letter") }
		_, err = client.GetDeadLetter(t.Context(), connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: "d"}))
		if info := InfoOf(err); connect.CodeOf(err) != connect.CodeNotFound || info.GetField() != "dlq_id" {
			t.Errorf("%s: %v %v", name, err, info)
		}
	}
}

func TestDeadLetterREST(t *testing.T) {
	t.Parallel()
	var asked string
	svc := &fakeDeadLetters{asked: func(m proto.Message) {
		text, err := MarshalJSON(nil, m)
		if err != nil {
			t.Error(err)
		}
		asked = string(m.ProtoReflect().Descriptor().Name()) + " " + string(text)
	}}
	s := serveBoth(t, &fakeService{}, svc, Options{})
	for _, tc := range []struct{ method, path, body, call, request, response string }{
		{"GET", "/api/v1/dead-letters?fingerprint=f&failed_before=2026-01-01T00:00:00Z", "", "ListDeadLettersRequest", `"fingerprint":"f"`, `"raw":{"k": "v"}`},
		{"GET", "/api/v1/dead-letter-groups?group_by=type", "", "GroupDeadLettersRequest", `"group_by":"type"`, `"count":1099511627776`},
		{"GET", "/api/v1/dead-letters/d1", "", "GetDeadLetterRequest", `"dlq_id":"d1"`, `"payload":` + rawEdit},
		{"GET", "/api/v1/dead-letters/requeue", "", "GetDeadLetterRequest", `"dlq_id":"requeue"`, `"backoff_delay_ms":null`},
		{"GET", "/api/v1/dead-letters/a%2Fb", "", "GetDeadLetterRequest", `"dlq_id":"a/b"`, `"edited_payload":` + menPayload},
		{"POST", "/api/v1/dead-letters/requeue", `{"dlq_ids":["d"],"again":true}`, "RequeueDeadLettersRequest", `"again":true`, `"task_id":"t"`},
		{"POST", "/api/v1/dead-letters/d1/edit", `{"revision":3,"payload": ` + rawEdit + ` }`, "EditDeadLetterRequest", `"dlq_id":"d1","payload":` + rawEdit + `,"revision":3`, `"diff":` + rawEdit},
		{"POST", "/api/v1/dead-letters/requeue/edit", `{"payload":null}`, "EditDeadLetterRequest", `"dlq_id":"requeue","payload":null`, `"diff":null`},
		{"POST", "/api/v1/dead-letter-batches", `{"filter":{"type":"x","failed_after":"2026-01-01T00:00:00Z"}}`, "CreateDeadLetterBatchRequest", `"type":"x"`, `"batch_id":"b"`},
		{"POST", "/api/v1/dead-letter-batches/discard", `{"reason":"r"}`, "ProposeDiscardRequest", `"reason":"r"`, `"batch_id":"b"`},
		{"GET", "/api/v1/dead-letter-batches/discard?details=true", "", "GetDeadLetterBatchRequest", `"batch_id":"discard","details":true`, `"new_matches":5`},
		{"POST", "/api/v1/dead-letter-batches/b1/confirm", `{"digest":"x"}`, "ConfirmDiscardRequest", `"batch_id":"b1","digest":"x"`, `"batch":null`},
		{"POST", "/api/v1/dead-letter-batches/b1/reject", `{}`, "RejectDiscardRequest", `"batch_id":"b1"`, `"batch":null`},
		{"POST", "/api/v1/dead-letter-batches/b1/reject", ``, "RejectDiscardRequest", `"batch_id":"b1"`, `"batch":null`},
		{"POST", "/api/v1/dead-letter-batches/discard/control", `{"action":"pause"}`, "ControlDeadLetterBatchRequest", `"batch_id":"discard","action":"pause"`, `"batch":null`},
		{"GET", "/api/v1/dead-letter-batches", "", "ListDeadLetterBatchesRequest", `"kind":""`, `"next_page_token":"n"`},
		{"GET", "/api/v1/dead-letter-batches/b1/items?status=done", "", "ListDeadLetterBatchItemsRequest", `"status":"done"`, `"next_page_token":"n"`},
	} {
		asked = ""
		r := s.do(tc.method, tc.path, tc.body)
		if r.status != http.StatusOK || !strings.Contains(compact(r.body), compact(tc.response)) {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, r.status, r.body)
		}
		if !strings.HasPrefix(asked, tc.call+" ") || !strings.Contains(compact(asked), compact(tc.request)) {
			t.Errorf("%s %s: asked %s", tc.method, tc.path, asked)
		}
	}
	if r := s.do("GET", "/api/v1/dead-letters/d1", ""); !strings.Contains(r.body, `"payload":`+rawEdit) {
		t.Errorf("the payload is not verbatim: %s", r.body)
	}
}

func TestDeadLetterRESTRefusals(t *testing.T) {
	t.Parallel()
	s := serveBoth(t, &fakeService{}, &fakeDeadLetters{asked: func(m proto.Message) { t.Errorf("the service was called: %v", m) }}, Options{})
	for _, tc := range []struct {
		method, path, body string
		status             int
		field              string
	}{
		{"POST", "/api/v1/dead-letters/d1/edit", `{"revision":"x"}`, 400, "revision"},
		{"POST", "/api/v1/dead-letters/d1/edit", `{"nope":1}`, 400, "nope"},
		{"POST", "/api/v1/dead-letters/d1/edit", `{"payload":{"a":}}`, 400, "payload"},
		{"POST", "/api/v1/dead-letters/d1/edit?revision=1", `{}`, 400, ""},
		{"POST", "/api/v1/dead-letter-batches", `{"filter":{"nope":1}}`, 400, "filter.nope"},
		{"DELETE", "/api/v1/dead-letters/requeue", "", 405, ""},
		{"POST", "/api/v1/dead-letters/d1", `{}`, 405, ""},
		{"GET", "/api/v1/dead-letters/d1/edit", ``, 405, ""},
		{"GET", "/api/v1/dead-letters/d1/nope", ``, 404, ""},
	} {
		r := s.do(tc.method, tc.path, tc.body)
		if p := r.problem(t); p.Status != tc.status || p.Field != tc.field || p.Detail == "" {
			t.Errorf("%s %s %s: %s", tc.method, tc.path, tc.body, r.body)
		}
	}
	if logs := s.logs.String(); logs != "" {
		t.Errorf("bad requests are no errors of the server: %s", logs)
	}
}

// TestDeadLetterManyIDs sends what the calls take at most, with the default
// limits.
func TestDeadLetterManyIDs(t *testing.T) {
	t.Parallel()
	s := serveBoth(t, &fakeService{}, &fakeDeadLetters{}, Options{})
	ids := make([]string, 10_000)
	for i := range ids {
		ids[i] = fmt.Sprintf("0194fdc2-fa2f-7cc0-81d3-%012x", i)
	}
	for name, client := range s.deadLetterClients() {
		res, err := client.CreateDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.CreateDeadLetterBatchRequest{DlqIds: ids}))
		if err != nil || int(res.Msg.GetBatch().GetTotal()) != len(ids) {
			t.Errorf("%s: %v", name, err)
		}
	}
	body := `{"dlq_ids":["` + strings.Join(ids, "\", \n\"") + `"]}`
	for _, path := range []string{"/api/v1/dead-letters/requeue", "/api/v1/dead-letter-batches", "/api/v1/dead-letter-batches/discard"} {
		if r := s.do("POST", path, body); r.status != 200 {
			t.Errorf("%s: %d %s", path, r.status, r.body)
		}
	}
}

// refuser is an interceptor that lets nobody in.
type refuser struct{ err error }

func (r refuser) WrapUnary(connect.UnaryFunc) connect.UnaryFunc {
	return func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) { return nil, r.err }
}

func (refuser) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (r refuser) WrapStreamingHandler(connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(context.Context, connect.StreamingHandlerConn) error { return r.err }
}

func TestAuthenticationErrors(t *testing.T) {
	t.Parallel()
	unknown := connect.NewError(connect.CodeUnauthenticated, errors.New("the token is not known"))
	forbidden := connect.NewError(connect.CodePermissionDenied, errors.New("not you"))
	s := serveBoth(t, &fakeService{}, &fakeDeadLetters{fail: func() error { return forbidden }}, Options{})
	refusing := serve(t, &fakeService{}, Options{Interceptors: []connect.Interceptor{refuser{unknown}}})
	for name, client := range s.deadLetterClients() {
		_, err := client.ConfirmDiscard(t.Context(), connect.NewRequest(&penstockv1.ConfirmDiscardRequest{}))
		if info := InfoOf(err); connect.CodeOf(err) != connect.CodePermissionDenied || info == nil || info.GetCode() != "" || info.GetMessage() != "not you" {
			t.Errorf("%s: %v %v", name, err, info)
		}
	}
	for name, client := range refusing.clients() {
		_, err := client.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{}))
		if info := InfoOf(err); connect.CodeOf(err) != connect.CodeUnauthenticated || info == nil || info.GetCode() != "" || info.GetMessage() != "the token is not known" {
			t.Errorf("%s: %v %v", name, err, info)
		}
		stream, err := client.WatchEvents(t.Context(), connect.NewRequest(&penstockv1.WatchEventsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodeUnauthenticated || InfoOf(stream.Err()) == nil {
			t.Errorf("%s: %v", name, stream.Err())
		}
		_ = stream.Close()
	}
	for _, r := range []reply{
		refusing.do("GET", "/api/v1/tasks/x", ""), refusing.do("POST", "/api/v1/tasks", "{}"), refusing.do("GET", watchPath, ""),
		refusing.do("POST", "/api/v1/tasks", `{"nope":1}`),
	} {
		if p := r.problem(t); p.Status != 401 || p.Type != "about:blank" || p.Code != "" || p.Retryable || p.Detail != "the token is not known" {
			t.Errorf("%s", r.body)
		}
		if got := r.header.Values("WWW-Authenticate"); len(got) != 1 || got[0] != "Bearer" {
			t.Errorf("WWW-Authenticate: %q", got)
		}
	}
	r := s.do("POST", "/api/v1/dead-letter-batches/b/confirm", "{}")
	if p := r.problem(t); p.Status != 403 || p.Detail != "not you" || r.header.Get("WWW-Authenticate") != "" {
		t.Errorf("%s %v", r.body, r.header)
	}
	if len(unknown.Details()) != 0 || len(unknown.Meta()) != 0 {
		t.Error("the interceptor's error was changed")
	}
}

// TestInterceptorErrors checks that what an interceptor returns is mapped.
func TestInterceptorErrors(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeService{}, Options{Interceptors: []connect.Interceptor{refuser{errors.New("secret")}}})
	if p := s.do("GET", "/api/v1/tasks/x", "").problem(t); p.Status != 500 || strings.Contains(p.Detail, "secret") {
		t.Errorf("%v", p)
	}
	if logs := s.logs.String(); strings.Count(logs, "secret") != 1 {
		t.Errorf("logs: %s", logs)
	}
}

func TestOwnHandlers(t *testing.T) {
	t.Parallel()
	s := serve(t, &fakeService{}, Options{Handlers: map[string]http.Handler{
		"/api/v1/internal/": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/api/v1/internal/jobs/j/run" {
				WriteProblem(w, protocol.Errorf(protocol.CodeNotFound, "job_id", "no such job"))
				return
			}
			_, _ = w.Write([]byte("ran"))
		}),
	}})
	if r := s.do("POST", "/api/v1/internal/jobs/j/run?force_fail=true", ""); r.body != "ran" {
		t.Errorf("%d %s", r.status, r.body)
	}
	if p := s.do("GET", "/api/v1/internal/", "").problem(t); p.Status != 404 || p.Code != "TASK_NOT_FOUND" || p.Field != "job_id" {
		t.Errorf("%v", p)
	}
	if p := s.do("GET", "/api/v1/internals", "").problem(t); p.Status != 404 || p.Code != "" {
		t.Errorf("%v", p)
	}
}
