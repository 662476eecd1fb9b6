package erasure_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/pipeline/erasure"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// secret is in all that the tasks of the tests carry.
const secret = "ada-lovelace-1815"

// whereIs lists the tables and streams in which the secret is.
func whereIs(t *testing.T, s testkit.Stores) (found []string) {
	t.Helper()
	db := s.SQL(t)
	rows, err := db.Query(t.Context(), `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p') AND n.nspname = current_schema() AND NOT c.relispartition`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		var n int
		if err := db.QueryRow(t.Context(), fmt.Sprintf("SELECT count(*) FROM %s x WHERE x::text LIKE '%%%s%%'", pgx.Identifier{table}.Sanitize(), secret)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			found = append(found, table)
		}
	}
	r := s.Redis(t)
	entries, err := r.XRange(t.Context(), protocol.StreamDLQ, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(fmt.Sprint(entries), secret) {
		found = append(found, protocol.StreamDLQ)
	}
	return found
}

type system struct {
	testkit.Stores
	url   string
	tasks penstockv1connect.TaskServiceClient
	dead  penstockv1connect.DeadLetterServiceClient
}

func start(t *testing.T) system {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Retention.TrimInterval = time.Hour
	o := testkit.StartOrchestrator(t, cfg)
	c := testkit.Client(t, o.URL)
	s.StartWorker(t, worker.Options{OrchestratorURL: o.URL, HeartbeatInterval: 50 * time.Millisecond}, func(w *worker.Worker) {
		w.HandleRaw("fails", func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
			if err := task.RecordProgress(ctx, map[string]string{"name": secret}); err != nil {
				return nil, err
			}
			for { // until a heartbeat has carried it
				res, err := c.RPC().GetTask(ctx, connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: r.TaskID}))
				if err != nil || len(res.Msg.Task.Progress) > 0 {
					break
				}
			}
			if r.Info.Attempt == 1 {
				return nil, errors.New("mail to " + secret + " failed")
			}
			return nil, task.Permanent(errors.New("no such person: " + secret))
		})
		w.HandleRaw("works", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			return worker.Once(ctx, "charge", func(context.Context) (json.RawMessage, error) {
				return json.RawMessage(`{"charged": "` + secret + `"}`), nil
			})
		})
		w.HandleRaw("waits", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	return system{s, o.URL, c.RPC(), c.DeadLetters()}
}

func (s system) enqueue(t *testing.T, r *penstockv1.EnqueueRequest) string {
	t.Helper()
	r.Payload = []byte(`{"name": "` + secret + `"}`)
	res, err := s.tasks.Enqueue(t.Context(), connect.NewRequest(r))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg.Task.TaskId
}

func (s system) wait(t *testing.T, id string) *penstockv1.Task {
	t.Helper()
	res, err := s.tasks.WaitTask(t.Context(), connect.NewRequest(&penstockv1.WaitTaskRequest{TaskId: id, TimeoutMs: 60_000}))
	if err != nil || !res.Msg.Done {
		t.Fatalf("%v, %v", res, err)
	}
	return res.Msg.Task
}

func (s system) erase(t *testing.T, id string) (*penstockv1.EraseTaskResponse, error) {
	t.Helper()
	res, err := s.tasks.EraseTask(t.Context(), connect.NewRequest(&penstockv1.EraseTaskRequest{TaskId: id, Reason: "ticket 4711"}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func code(err error) protocol.Code { return protocol.Code(rpc.InfoOf(err).GetCode()) }

// A task that failed, was edited and requeued, and one that worked, with an effect:
// after their erasure nothing that they carried is anywhere.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	s := start(t)
	zero := int64(1)
	failed := s.enqueue(t, &penstockv1.EnqueueRequest{Type: "fails", IdempotencyKey: "k1", RetryPolicy: &penstockv1.RetryPolicy{Strategy: "fixed", BaseMs: &zero}})
	worked := s.enqueue(t, &penstockv1.EnqueueRequest{Type: "works"})
	dlq := s.wait(t, failed).DlqId
	if got := s.wait(t, worked); got.State != string(protocol.StateSucceeded) {
		t.Fatalf("%v", got)
	}
	if _, err := s.dead.EditDeadLetter(t.Context(), connect.NewRequest(&penstockv1.EditDeadLetterRequest{DlqId: dlq, Payload: []byte(`{"name": "` + secret + `", "x": 1}`)})); err != nil {
		t.Fatal(err)
	}
	re, err := s.dead.RequeueDeadLetters(t.Context(), connect.NewRequest(&penstockv1.RequeueDeadLettersRequest{DlqIds: []string{dlq}}))
	if err != nil || re.Msg.Results[0].Error != nil {
		t.Fatalf("%v, %v", re, err)
	}
	again := re.Msg.Results[0].TaskId
	s.wait(t, again)
	if found := whereIs(t, s.Stores); len(found) < 6 {
		t.Fatalf("before the erasure it is in %v only", found)
	}
	res, err := s.erase(t, failed)
	if err != nil || res.AlreadyErased || res.Task.ErasedAt == nil || len(res.RequeuedTaskIds) != 1 || res.RequeuedTaskIds[0] != again {
		t.Fatalf("%v, %v", res, err)
	}
	for _, id := range []string{worked, again} {
		if _, err := s.erase(t, id); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, "nothing is left", func() (bool, string) {
		found := whereIs(t, s.Stores)
		return len(found) == 0, fmt.Sprint(found)
	})
	// The last entry of the stream stays for the group's sake until there is another.
	left, err := s.Redis(t).XRange(t.Context(), protocol.StreamTask, "-", "+").Result()
	if err != nil || len(left) > 1 {
		t.Errorf("stream:task holds %v, %v", left, err)
	}
	if res, err = s.erase(t, failed); err != nil || !res.AlreadyErased {
		t.Errorf("erased again: %v, %v", res, err)
	}
	re, err = s.dead.RequeueDeadLetters(t.Context(), connect.NewRequest(&penstockv1.RequeueDeadLettersRequest{DlqIds: []string{dlq}, Again: true}))
	if err != nil || !strings.Contains(re.Msg.Results[0].GetError().GetMessage(), "was erased") {
		t.Errorf("requeued after its erasure: %v, %v", re, err)
	}
	if _, err := s.dead.EditDeadLetter(t.Context(), connect.NewRequest(&penstockv1.EditDeadLetterRequest{DlqId: dlq, Payload: []byte("1"), Revision: 1})); code(err) != protocol.CodeInvalidTransition {
		t.Errorf("edited after its erasure: %v", err)
	}
	// A repeat of its request is still one: of what was erased nothing is compared.
	rep, err := s.tasks.Enqueue(t.Context(), connect.NewRequest(&penstockv1.EnqueueRequest{
		Type: "fails", IdempotencyKey: "k1", RetryPolicy: &penstockv1.RetryPolicy{Strategy: "fixed", BaseMs: &zero}, Payload: []byte(`{"name": "` + secret + `"}`),
	}))
	if err != nil || !rep.Msg.IdempotentHit || len(rep.Msg.Task.Payload) > len("null") {
		t.Errorf("the request again: %v, %v", rep, err)
	}
	if found := whereIs(t, s.Stores); len(found) != 0 {
		t.Errorf("a repeat brought it back into %v", found)
	}
	id, err := protocol.ParseID(failed)
	if err != nil {
		t.Fatal(err)
	}
	if types := testkit.EventTypes(t, s.Stores, id); strings.Count(types, string(protocol.EventErased)) != 1 {
		t.Errorf("events %s", types)
	}
	testkit.VerifyLog(t, s.Stores)
}

// Only what has ended is erased, and nothing that others were promised.
func TestWhatIsNotErased(t *testing.T) {
	t.Parallel()
	s := start(t)
	later := time.Hour.Milliseconds()
	pending := s.enqueue(t, &penstockv1.EnqueueRequest{Type: "works", ScheduleType: "delay", DelayMs: later})
	running := s.enqueue(t, &penstockv1.EnqueueRequest{Type: "waits"})
	worked := s.enqueue(t, &penstockv1.EnqueueRequest{Type: "works"})
	s.wait(t, worked)
	first := s.enqueue(t, &penstockv1.EnqueueRequest{Type: "works", DependsOn: []*penstockv1.Dependency{{TaskId: worked}, {TaskId: running}}})
	testkit.Eventually(t, "it runs", func() (bool, string) {
		res, err := s.tasks.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: running}))
		return err == nil && res.Msg.Task.State == string(protocol.StateRunning), fmt.Sprint(res, err)
	})
	for id, want := range map[string]string{pending: "is pending and needs its payload", running: "is running", worked: "depends on the result of"} {
		if _, err := s.erase(t, id); code(err) != protocol.CodeInvalidTransition || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, reason := range []string{"", "  ", strings.Repeat("x", 1001), "a\x00b"} {
		_, err := s.tasks.EraseTask(t.Context(), connect.NewRequest(&penstockv1.EraseTaskRequest{TaskId: worked, Reason: reason}))
		if code(err) != protocol.CodeInputInvalid {
			t.Errorf("reason %q: %v", reason, err)
		}
	}
	if _, err := s.erase(t, "0198a000-0000-7000-8000-000000000000"); code(err) != protocol.CodeNotFound {
		t.Errorf("an unknown one: %v", err)
	}
	for _, id := range []string{first, running} {
		if _, err := s.tasks.CancelTask(t.Context(), connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: id, Reason: "asked by " + secret})); err != nil {
			t.Fatal(err)
		}
	}
	if res, err := s.erase(t, running); err != nil || res.Task.LastErrorReason.GetValue() != "asked by "+secret {
		t.Errorf("a person's reason is not content: %v, %v", res, err)
	}
	if res, err := s.erase(t, worked); err != nil || len(res.Task.Result) > 0 {
		t.Errorf("%v, %v", res, err)
	}
	testkit.VerifyLog(t, s.Stores)
}

// What can't be removed from Redis at once is removed later, by whoever looks next.
func TestRedisIsAwayMeanwhile(t *testing.T) {
	t.Parallel()
	s := start(t)
	id := s.enqueue(t, &penstockv1.EnqueueRequest{Type: "fails", MaxRetries: new(int32)})
	s.wait(t, id)
	parsed, err := protocol.ParseID(id)
	if err != nil {
		t.Fatal(err)
	}
	away := erasure.New(erasure.Options{Store: s.Store(t), Forget: func(context.Context) error { return errors.New("no Redis") }, Drop: func(context.Context, string, []string) error { return errors.New("no Redis") }, Log: testkit.Log(t)})
	if already, _, err := away.Erase(t.Context(), parsed, "alice", "ticket"); err != nil || already {
		t.Fatalf("%v, %v", already, err)
	}
	if found := whereIs(t, s.Stores); len(found) != 1 || found[0] != protocol.StreamDLQ {
		t.Errorf("it is in %v", found)
	}
	if res, err := s.erase(t, id); err != nil || !res.AlreadyErased {
		t.Fatalf("%v, %v", res, err)
	}
	if found := whereIs(t, s.Stores); len(found) != 0 {
		t.Errorf("it is in %v", found)
	}
	testkit.VerifyLog(t, s.Stores)
}
