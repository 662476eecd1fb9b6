package auth_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/rpc"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

const aliceToken = "alice-0123456789abcdef"

// tasks and deadLetters answer with who asked.
type tasks struct {
	penstockv1connect.UnimplementedTaskServiceHandler
}

func (tasks) GetTask(ctx context.Context, _ *connect.Request[penstockv1.GetTaskRequest]) (*connect.Response[penstockv1.GetTaskResponse], error) {
	return connect.NewResponse(&penstockv1.GetTaskResponse{Task: &penstockv1.Task{TaskId: "by " + auth.Principal(ctx)}}), nil
}

func (tasks) WatchEvents(ctx context.Context, _ *connect.Request[penstockv1.WatchEventsRequest], stream *connect.ServerStream[penstockv1.WatchEventsResponse]) error {
	return stream.Send(&penstockv1.WatchEventsResponse{Position: "by " + auth.Principal(ctx)})
}

type deadLetters struct {
	penstockv1connect.UnimplementedDeadLetterServiceHandler
}

func (deadLetters) ConfirmDiscard(ctx context.Context, _ *connect.Request[penstockv1.ConfirmDiscardRequest]) (*connect.Response[penstockv1.ConfirmDiscardResponse], error) {
	return connect.NewResponse(&penstockv1.ConfirmDiscardResponse{Batch: &penstockv1.DeadLetterBatch{DecidedBy: "by " + auth.Principal(ctx)}}), nil
}

// logBuffer collects log records.
type logBuffer struct {
	mu sync.Mutex
	strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Builder.String()
}

// server is one with a token of alice's, or without a tokens file.
type server struct {
	url  string
	h2c  *http.Client
	logs *logBuffer
}

func serve(t *testing.T, withFile bool) *server {
	t.Helper()
	path := ""
	if withFile {
		path = filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte("alice "+aliceToken+" roles=admin"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, _ := serveTasks(t, path, tasks{})
	return s
}

// serveTasks serves a service with the tokens of a file, which run reads again
// when it changes.
func serveTasks(t *testing.T, path string, service penstockv1connect.TaskServiceHandler) (s *server, run func(context.Context) error) {
	t.Helper()
	s = &server{logs: &logBuffer{}}
	log := slog.New(slog.NewTextHandler(s.logs, nil))
	file, err := auth.Open(path, log, auth.AllRoles()...)
	if err != nil {
		t.Fatal(err)
	}
	own := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "by "+auth.Principal(r.Context()))
	})
	h, err := rpc.NewHandler(rpc.Services{
		Tasks: service, DeadLetters: deadLetters{}, Workers: penstockv1connect.UnimplementedWorkerServiceHandler{},
		Approvals: penstockv1connect.UnimplementedApprovalServiceHandler{}, Schedules: penstockv1connect.UnimplementedScheduleServiceHandler{},
		Effects: penstockv1connect.UnimplementedEffectServiceHandler{},
	}, rpc.Options{
		Logger: log, Gate: auth.Gate(file), Interceptors: []connect.Interceptor{auth.Interceptor(file)},
		Handlers: map[string]http.Handler{"/api/v1/internal/": auth.Middleware(file, rpc.WriteProblem, own, auth.RoleAdmin)},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.Config = rpc.NewServer(h, log)
	srv.Start()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		srv.Close()
	})
	s.url, s.h2c = srv.URL, &http.Client{Transport: transport}
	return s, file.Run
}

// ask makes one call each way and returns who it was taken for, or the error.
func (s *server) ask(t *testing.T, headers []string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for name, opts := range map[string][]connect.ClientOption{"grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}, "connect": nil} {
		tc := penstockv1connect.NewTaskServiceClient(s.h2c, s.url, opts...)
		get := connect.NewRequest(&penstockv1.GetTaskRequest{})
		addHeaders(get.Header(), headers)
		if res, err := tc.GetTask(t.Context(), get); err != nil {
			got[name] = describe(err)
		} else {
			got[name] = res.Msg.GetTask().GetTaskId()
		}
		watch := connect.NewRequest(&penstockv1.WatchEventsRequest{})
		addHeaders(watch.Header(), headers)
		stream, err := tc.WatchEvents(t.Context(), watch)
		if err != nil {
			t.Fatal(err)
		}
		if stream.Receive() {
			got[name+" stream"] = stream.Msg().GetPosition()
		} else {
			got[name+" stream"] = describe(stream.Err())
		}
		_ = stream.Close()
		dc := penstockv1connect.NewDeadLetterServiceClient(s.h2c, s.url, opts...)
		confirm := connect.NewRequest(&penstockv1.ConfirmDiscardRequest{})
		addHeaders(confirm.Header(), headers)
		if res, err := dc.ConfirmDiscard(t.Context(), confirm); err != nil {
			got[name+" dead letters"] = describe(err)
		} else {
			got[name+" dead letters"] = res.Msg.GetBatch().GetDecidedBy()
		}
	}
	got["rest get"] = s.rest(t, "GET", "/api/v1/tasks/x", headers)
	got["rest post"] = s.rest(t, "POST", "/api/v1/dead-letter-batches/b/confirm", headers)
	got["sse"] = s.rest(t, "GET", "/api/v1/events/watch", headers)
	got["own handler"] = s.rest(t, "POST", "/api/v1/internal/jobs", headers)
	return got
}

func addHeaders(h http.Header, values []string) {
	for _, v := range values {
		h.Add("Authorization", v)
	}
}

// describe checks that an error has the details that every error has.
func describe(err error) string {
	info := rpc.InfoOf(err)
	if connect.CodeOf(err) != connect.CodeUnauthenticated || info == nil || info.GetCode() != "" {
		return "wrong error: " + err.Error()
	}
	return "401 " + info.GetMessage()
}

// rest makes a REST call.
func (s *server) rest(t *testing.T, method, path string, headers []string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.url+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	addHeaders(req.Header, headers)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == 401 && resp.Header.Get("WWW-Authenticate") == "Bearer" && resp.Header.Get("Content-Type") == "application/problem+json" {
		return "401 " + string(body)
	}
	return string(body)
}

func TestPrincipals(t *testing.T) {
	t.Parallel()
	s := serve(t, true)
	const malformed, unknown = "401 Bearer TOKEN", "401 not known"
	for _, tc := range []struct {
		headers []string
		want    string // parts of each answer
	}{
		{nil, "by "},
		{[]string{"Bearer " + aliceToken}, "by alice"},
		{[]string{"bearer  " + aliceToken}, "by alice"},
		{[]string{"Bearer " + aliceToken + "x"}, unknown},
		{[]string{"Bearer " + aliceToken[:20]}, unknown},
		{[]string{"Bearer alice"}, unknown},
		{[]string{""}, malformed},
		{[]string{"Bearer"}, malformed},
		{[]string{"Bearer a b"}, malformed},
		{[]string{aliceToken}, malformed},
		{[]string{"Bearer " + strings.Repeat("x", 10_000)}, unknown},
		{[]string{"Bearer\t" + aliceToken}, malformed},
		{[]string{"BEARER " + aliceToken}, "by alice"},
		{[]string{"Bearer " + aliceToken + ", Bearer " + aliceToken}, malformed},
		{[]string{"Basic YWxpY2U6eA=="}, malformed},
		{[]string{"Bearer " + aliceToken, "Bearer " + aliceToken}, malformed},
	} {
		for how, got := range s.ask(t, tc.headers) {
			for part := range strings.FieldsSeq(tc.want) {
				if !strings.Contains(got, part) {
					t.Errorf("%s with %q: %s, want %q", how, tc.headers, got, tc.want)
				}
			}
			if tc.headers == nil && strings.Contains(got, "alice") {
				t.Errorf("%s without a header: %s", how, got)
			}
		}
	}
	if logs := s.logs.String(); logs != "" {
		t.Errorf("refusals are no errors of the server: %s", logs)
	}
}

func TestNoTokensFile(t *testing.T) {
	t.Parallel()
	s := serve(t, false)
	for how, got := range s.ask(t, nil) {
		if !strings.Contains(got, "by ") {
			t.Errorf("%s anonymously: %s", how, got)
		}
	}
	for _, value := range []string{"Bearer " + aliceToken, "nonsense"} {
		for how, got := range s.ask(t, []string{value}) {
			if !strings.HasPrefix(got, "401 ") || !strings.Contains(got, "this orchestrator has no auth.tokens_file") {
				t.Errorf("%s with a token: %s", how, got)
			}
		}
	}
}

// TestOutsideACall checks the context of no call, and that probes ask nobody.
func TestOutsideACall(t *testing.T) {
	t.Parallel()
	if got := auth.Principal(t.Context()); got != "" {
		t.Errorf("principal %q", got)
	}
	if got := auth.Principal(auth.WithPrincipal(t.Context(), "bob")); got != "bob" {
		t.Errorf("principal %q", got)
	}
	s := serve(t, true)
	if got := s.rest(t, "GET", "/readyz", []string{"Bearer nonsense"}); !strings.Contains(got, "ready") || strings.HasPrefix(got, "401") {
		t.Errorf("readyz: %s", got)
	}
}
