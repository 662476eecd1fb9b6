package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// env is one orchestrator with its stores, and ways to talk to it.
type env struct {
	stores testkit.Stores
	orch   *testkit.Orchestrator
	rpc    services // Connect, protobuf
	grpc   services
}

// services are the clients of all services.
type services struct {
	penstockv1connect.TaskServiceClient
	penstockv1connect.DeadLetterServiceClient
	penstockv1connect.WorkerServiceClient
}

func newEnv(t *testing.T, change ...func(*config.Orchestrator)) *env {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	for _, f := range change {
		f(&cfg)
	}
	e := &env{stores: s, orch: testkit.StartOrchestrator(t, cfg)}
	e.rpc = dial(t, e.orch.URL)
	e.grpc = dial(t, e.orch.URL, connect.WithGRPC())
	ready(t, e.orch.URL)
	return e
}

// ready waits until the orchestrator serves.
func ready(t *testing.T, url string) {
	t.Helper()
	testkit.Eventually(t, "ready", func() (bool, string) {
		res, err := http.Get(url + "/readyz") //nolint:noctx // the server is in this process
		if err != nil {
			return false, err.Error()
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK, res.Status
	})
}

// dial makes a client over HTTP/2, which gRPC needs.
func dial(t *testing.T, url string, o ...connect.ClientOption) services {
	t.Helper()
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	c := &http.Client{Transport: tr}
	return services{
		penstockv1connect.NewTaskServiceClient(c, url, o...), penstockv1connect.NewDeadLetterServiceClient(c, url, o...), penstockv1connect.NewWorkerServiceClient(c, url, o...),
	}
}

// conn is a connection to the database that bypasses the application.
func (e *env) conn(t *testing.T) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), e.stores.PostgresURL)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// stored describes everything that an enqueue may leave behind.
func (e *env) stored(t *testing.T) string {
	t.Helper()
	c := e.conn(t)
	var out strings.Builder
	for _, table := range []string{"tasks", "event_log", "idempotency_keys", "dispatch_outbox", "effects", "approvals"} {
		fmt.Fprintf(&out, "%s=%d ", table, scan[int](t, c, "SELECT count(*) FROM "+table))
	}
	o, err := redis.ParseURL(e.stores.RedisURL)
	if err != nil {
		t.Fatalf("redis url: %v", err)
	}
	r := redis.NewClient(o)
	defer func() { _ = r.Close() }()
	for _, stream := range []string{protocol.StreamTask, protocol.StreamResult, protocol.StreamDLQ} {
		n, err := r.XLen(t.Context(), stream).Result()
		if err != nil {
			t.Fatalf("xlen %s: %v", stream, err)
		}
		fmt.Fprintf(&out, "%s=%d ", stream, n)
	}
	return out.String()
}

func scan[T any](t *testing.T, c *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := c.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// reply is a response over plain HTTP.
type reply struct {
	status int
	header http.Header
	body   string
}

func (e *env) do(t *testing.T, method, path, contentType, body string, headers ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, e.orch.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		req.Body = http.NoBody
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: read: %v", method, path, err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}

func (e *env) post(t *testing.T, path, body string) reply {
	t.Helper()
	return e.do(t, http.MethodPost, path, "application/json", body)
}

func (e *env) get(t *testing.T, path string) reply {
	t.Helper()
	return e.do(t, http.MethodGet, path, "", "")
}

// problem is a problem+json body.
type problem struct {
	Type, Title, Detail, Code, Field string
	Status                           int
	Retryable                        bool
}

func (r reply) problem(t *testing.T) problem {
	t.Helper()
	if ct := r.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Fatalf("status %d, content type %q, want problem+json; body: %.300s", r.status, ct, r.body)
	}
	var p problem
	if err := json.Unmarshal([]byte(r.body), &p); err != nil {
		t.Fatalf("%v: %.300s", err, r.body)
	}
	if p.Status != r.status {
		t.Errorf("problem says %d, response %d", p.Status, r.status)
	}
	return p
}

// refused checks a problem+json answer.
func (r reply) refused(t *testing.T, status int, code protocol.Code, field string) problem {
	t.Helper()
	p := r.problem(t)
	if p.Status != status || p.Code != string(code) || p.Field != field || p.Detail == "" || p.Retryable {
		t.Errorf("got %+v, want status %d, code %s, field %q", p, status, code, field)
	}
	return p
}

// refusedRPC checks an error of the Connect or gRPC protocol.
func refusedRPC(t *testing.T, err error, code connect.Code, contract protocol.Code, field string) string {
	t.Helper()
	info := rpc.InfoOf(err)
	if info == nil {
		t.Errorf("error without ErrorInfo: %v", err)
		return ""
	}
	if connect.CodeOf(err) != code || info.Code != string(contract) || info.Field != field || info.Message == "" || info.Retryable {
		t.Errorf("got %s, %v; want %s, %s, field %q", connect.CodeOf(err), info, code, contract, field)
	}
	return err.Error() + info.Message
}

// object decodes a JSON object with numbers as they are written.
func object(t *testing.T, text string) map[string]any {
	t.Helper()
	var m map[string]any
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatalf("%v: %.300s", err, text)
	}
	return m
}

// enqueue stores a task that must be accepted.
func (e *env) enqueue(t *testing.T, r *penstockv1.EnqueueRequest) *penstockv1.Task {
	t.Helper()
	if r.Type == "" {
		r.Type = "x"
	}
	res, err := e.rpc.Enqueue(t.Context(), connect.NewRequest(r))
	if err != nil {
		t.Fatalf("enqueue: %v", err)
	}
	return res.Msg.Task
}

// later is a schedule that keeps a task pending for the whole test.
const later = int64(time.Hour / time.Millisecond)
