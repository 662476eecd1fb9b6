package enqueue_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// later keeps a task pending for the whole test.
const later = int64(3_600_000)

// env is a deployment with one or more orchestrators.
type env struct {
	testkit.Stores
	db   *pgx.Conn
	orch []penstockv1connect.TaskServiceClient
}

func newEnv(t *testing.T, orchestrators int, change ...func(c *config.Orchestrator)) *env {
	t.Helper()
	e := &env{Stores: testkit.NewStores(t)}
	for range orchestrators {
		cfg := e.Config()
		for _, f := range change {
			f(&cfg)
		}
		o := testkit.StartOrchestrator(t, cfg)
		tr := &http.Transport{MaxIdleConnsPerHost: 256, MaxConnsPerHost: 256}
		t.Cleanup(tr.CloseIdleConnections)
		e.orch = append(e.orch, penstockv1connect.NewTaskServiceClient(&http.Client{Transport: tr}, o.URL))
		testkit.Eventually(t, "ready", func() (bool, string) {
			_, err := e.orch[len(e.orch)-1].CountTasks(t.Context(), connect.NewRequest(&penstockv1.CountTasksRequest{}))
			return err == nil, ""
		})
	}
	db, err := pgx.Connect(t.Context(), e.PostgresURL)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() { _ = db.Close(context.Background()) })
	e.db = db
	return e
}

func (e *env) count(t *testing.T, what string, args ...any) int {
	t.Helper()
	var n int
	if err := e.db.QueryRow(t.Context(), "SELECT count(*) FROM "+what, args...).Scan(&n); err != nil {
		t.Fatalf("count %s: %v", what, err)
	}
	return n
}

// wantCounts checks how many tasks, created events and keys there are.
func (e *env) wantCounts(t *testing.T, tasks, keys int) {
	t.Helper()
	if a, b, c := e.count(t, "tasks"), e.count(t, "event_log WHERE type = 'task.created' AND seq = 1"), e.count(t, "idempotency_keys"); a != tasks || b != tasks || c != keys {
		t.Errorf("%d tasks, %d created events, %d keys; want %d, %d, %d", a, b, c, tasks, tasks, keys)
	}
	if n := e.count(t, "idempotency_keys k WHERE NOT EXISTS (SELECT FROM tasks t WHERE t.id = k.task_id AND t.idempotency_key = k.key AND t.idempotency_scope = k.scope)"); n != 0 {
		t.Errorf("%d keys belong to a task that does not have them", n)
	}
	if n := e.count(t, "tasks t WHERE idempotency_key IS NOT NULL AND NOT EXISTS (SELECT FROM idempotency_keys k WHERE t.id = k.task_id AND t.idempotency_key = k.key AND t.idempotency_scope = k.scope)"); n != 0 {
		t.Errorf("%d tasks have a key that is not taken", n)
	}
}

// req is a request for a task that stays pending.
func req(change ...func(*penstockv1.EnqueueRequest)) *penstockv1.EnqueueRequest {
	r := &penstockv1.EnqueueRequest{Type: "x", Payload: []byte(`{"n":1}`), ScheduleType: "delay", DelayMs: later}
	for _, f := range change {
		f(r)
	}
	return r
}

func (e *env) enqueue(t *testing.T, r *penstockv1.EnqueueRequest) (*penstockv1.EnqueueResponse, error) {
	t.Helper()
	res, err := e.orch[0].Enqueue(t.Context(), connect.NewRequest(r))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// must enqueues a task and checks whether it was a hit.
func (e *env) must(t *testing.T, r *penstockv1.EnqueueRequest, hit bool) *penstockv1.Task {
	t.Helper()
	res, err := e.enqueue(t, r)
	if err != nil {
		t.Fatalf("%v: %v", r, err)
	}
	if res.IdempotentHit != hit {
		t.Errorf("%v: idempotent_hit = %v", r, res.IdempotentHit)
	}
	return res.Task
}

// duplicate enqueues a request that must be refused as TASK_DUPLICATE.
func (e *env) duplicate(t *testing.T, r *penstockv1.EnqueueRequest, field string) {
	t.Helper()
	_, err := e.enqueue(t, r)
	info := rpc.InfoOf(err)
	if connect.CodeOf(err) != connect.CodeAlreadyExists || info.GetCode() != string(protocol.CodeDuplicate) || info.Field != field || info.Retryable {
		t.Errorf("%v: %v, %v; want TASK_DUPLICATE of %s", r, err, info, field)
	}
	if len(r.Payload) > 4 && strings.Contains(info.GetMessage(), string(r.Payload)) {
		t.Errorf("the error tells the payload: %s", info.GetMessage())
	}
}

func (e *env) batch(t *testing.T, rs ...*penstockv1.EnqueueRequest) []*penstockv1.EnqueueResult {
	t.Helper()
	res, err := e.orch[0].EnqueueBatch(t.Context(), connect.NewRequest(&penstockv1.EnqueueBatchRequest{Tasks: rs}))
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Msg.Results) != len(rs) {
		t.Fatalf("%d results for %d items", len(res.Msg.Results), len(rs))
	}
	return res.Msg.Results
}

// short describes a result: new, hit, or the code and field of its error.
func short(r *penstockv1.EnqueueResult) string {
	switch {
	case r.Error != nil:
		return r.Error.Code + " " + r.Error.Field
	case r.IdempotentHit:
		return "hit"
	}
	return "new"
}
