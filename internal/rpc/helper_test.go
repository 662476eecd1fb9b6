package rpc

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// fakeService answers with what its functions return; those that are nil are
// unimplemented.
type fakeService struct {
	penstockv1connect.UnimplementedTaskServiceHandler

	enqueue func(context.Context, *penstockv1.EnqueueRequest) (*penstockv1.EnqueueResponse, error)
	batch   func(context.Context, *penstockv1.EnqueueBatchRequest) (*penstockv1.EnqueueBatchResponse, error)
	get     func(context.Context, *penstockv1.GetTaskRequest) (*penstockv1.GetTaskResponse, error)
	list    func(context.Context, *penstockv1.ListTasksRequest) (*penstockv1.ListTasksResponse, error)
	count   func(context.Context, *penstockv1.CountTasksRequest) (*penstockv1.CountTasksResponse, error)
	queue   func(context.Context, *penstockv1.GetQueueRequest) (*penstockv1.GetQueueResponse, error)
	wait    func(context.Context, *penstockv1.WaitTaskRequest) (*penstockv1.WaitTaskResponse, error)
	events  func(context.Context, *penstockv1.ListEventsRequest) (*penstockv1.ListEventsResponse, error)
	watch   func(context.Context, *penstockv1.WatchEventsRequest, func(*penstockv1.WatchEventsResponse) error) error
}

// call runs one function of the fake.
func call[Req, Res any](ctx context.Context, f func(context.Context, *Req) (*Res, error), req *connect.Request[Req]) (*connect.Response[Res], error) {
	if f == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, nil)
	}
	res, err := f(ctx, req.Msg)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
}

func (s *fakeService) Enqueue(ctx context.Context, r *connect.Request[penstockv1.EnqueueRequest]) (*connect.Response[penstockv1.EnqueueResponse], error) {
	return call(ctx, s.enqueue, r)
}

func (s *fakeService) EnqueueBatch(ctx context.Context, r *connect.Request[penstockv1.EnqueueBatchRequest]) (*connect.Response[penstockv1.EnqueueBatchResponse], error) {
	return call(ctx, s.batch, r)
}

func (s *fakeService) GetTask(ctx context.Context, r *connect.Request[penstockv1.GetTaskRequest]) (*connect.Response[penstockv1.GetTaskResponse], error) {
	return call(ctx, s.get, r)
}

func (s *fakeService) ListTasks(ctx context.Context, r *connect.Request[penstockv1.ListTasksRequest]) (*connect.Response[penstockv1.ListTasksResponse], error) {
	return call(ctx, s.list, r)
}

func (s *fakeService) CountTasks(ctx context.Context, r *connect.Request[penstockv1.CountTasksRequest]) (*connect.Response[penstockv1.CountTasksResponse], error) {
	return call(ctx, s.count, r)
}

func (s *fakeService) GetQueue(ctx context.Context, r *connect.Request[penstockv1.GetQueueRequest]) (*connect.Response[penstockv1.GetQueueResponse], error) {
	return call(ctx, s.queue, r)
}

func (s *fakeService) WaitTask(ctx context.Context, r *connect.Request[penstockv1.WaitTaskRequest]) (*connect.Response[penstockv1.WaitTaskResponse], error) {
	return call(ctx, s.wait, r)
}

func (s *fakeService) ListEvents(ctx context.Context, r *connect.Request[penstockv1.ListEventsRequest]) (*connect.Response[penstockv1.ListEventsResponse], error) {
	return call(ctx, s.events, r)
}

func (s *fakeService) WatchEvents(ctx context.Context, r *connect.Request[penstockv1.WatchEventsRequest], stream *connect.ServerStream[penstockv1.WatchEventsResponse]) error {
	if s.watch == nil {
		return connect.NewError(connect.CodeUnimplemented, nil)
	}
	return s.watch(ctx, r.Msg, stream.Send)
}

// logBuffer collects log records.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// testServer is a server on a loopback port.
type testServer struct {
	t    *testing.T
	url  string
	logs *logBuffer
	// http speaks HTTP/1.1, h2c HTTP/2 with prior knowledge.
	http, h2c *http.Client
}

// serve starts a server for svc.
func serve(t *testing.T, svc *fakeService, o Options) *testServer {
	t.Helper()
	return serveAll(t, fakeServices(svc), o)
}

// fakeServices are all services, of which only that of tasks does anything.
func fakeServices(tasks penstockv1connect.TaskServiceHandler) Services {
	return Services{
		Tasks: tasks, DeadLetters: penstockv1connect.UnimplementedDeadLetterServiceHandler{}, Workers: penstockv1connect.UnimplementedWorkerServiceHandler{}, Schedules: penstockv1connect.UnimplementedScheduleServiceHandler{},
		Approvals: penstockv1connect.UnimplementedApprovalServiceHandler{}, Effects: penstockv1connect.UnimplementedEffectServiceHandler{},
	}
}

// serveBoth starts a server for two services.
func serveBoth(t *testing.T, tasks penstockv1connect.TaskServiceHandler, deadLetters penstockv1connect.DeadLetterServiceHandler, o Options) *testServer {
	t.Helper()
	all := fakeServices(tasks)
	all.DeadLetters = deadLetters
	return serveAll(t, all, o)
}

// serveAll starts a server for the services.
func serveAll(t *testing.T, services Services, o Options) *testServer {
	t.Helper()
	logs := &logBuffer{}
	o.Logger = slog.New(slog.NewTextHandler(logs, nil))
	h, err := NewHandler(services, o)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(h, o.Logger)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	h1 := &http.Transport{}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	h2 := &http.Transport{Protocols: protocols}
	t.Cleanup(func() {
		h1.CloseIdleConnections()
		h2.CloseIdleConnections()
		_ = server.Close()
		<-done
	})
	return &testServer{
		t: t, url: "http://" + listener.Addr().String(), logs: logs,
		http: &http.Client{Transport: h1, Timeout: time.Minute},
		h2c:  &http.Client{Transport: h2, Timeout: time.Minute},
	}
}

// reply is a response that was read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

// problem decodes an error.
func (r reply) problem(t *testing.T) problem {
	t.Helper()
	if got := r.header.Get("Content-Type"); got != problemType {
		t.Fatalf("status %d, content type %q, body %s", r.status, got, r.body)
	}
	var p problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	if p.Status != r.status {
		t.Errorf("problem says status %d, response %d", p.Status, r.status)
	}
	return p
}

// do sends a request; headers are "Name: value".
func (s *testServer) do(method, path, body string, headers ...string) reply {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body == "" {
		req.Body = http.NoBody
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: string(text)}
}

// object decodes a JSON object with its numbers as they are written.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return m
}
