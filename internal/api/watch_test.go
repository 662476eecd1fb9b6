package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// watcher collects the responses of one WatchEvents call.
type watcher struct {
	responses chan *penstockv1.WatchEventsResponse
	end       chan error
	stop      context.CancelFunc
	position  string // of the last response taken
}

func watch(t *testing.T, c penstockv1connect.TaskServiceClient, r *penstockv1.WatchEventsRequest) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w := &watcher{responses: make(chan *penstockv1.WatchEventsResponse, 10_000), end: make(chan error, 1), stop: cancel}
	t.Cleanup(cancel)
	s, err := c.WatchEvents(ctx, connect.NewRequest(r))
	if err != nil {
		t.Fatalf("watch: %v", err)
	}
	go func() {
		for s.Receive() {
			w.responses <- s.Msg()
		}
		w.end <- s.Err()
		_ = s.Close()
	}()
	first := w.response(t)
	if len(first.Events) != 0 || first.Position == "" {
		t.Errorf("the first response is not just a position: %v", first)
	}
	return w
}

func (w *watcher) response(t *testing.T) *penstockv1.WatchEventsResponse {
	t.Helper()
	select {
	case r := <-w.responses:
		w.position = r.Position
		return r
	case err := <-w.end:
		t.Fatalf("watch ended: %v", err)
	case <-time.After(testkit.Deadline):
		t.Fatal("no response")
	}
	return nil
}

// next returns the ids of the next n events.
func (w *watcher) next(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for len(out) < n {
		for _, e := range w.response(t).Events {
			out = append(out, e.EventId)
		}
	}
	if len(out) > n {
		t.Fatalf("%d events, want %d: %v", len(out), n, out)
	}
	return out
}

// quiet checks that nothing came besides what was taken: an event enqueued
// now is the very next one.
func (w *watcher) quiet(t *testing.T, e *env, r *penstockv1.EnqueueRequest) {
	t.Helper()
	r.Type, r.ScheduleType, r.DelayMs = "x", "delay", later
	want := created(e.enqueue(t, r))
	if got := w.next(t, 1)[0]; got != want {
		t.Errorf("next event %s, want %s", got, want)
	}
}

func created(task *penstockv1.Task) string { return "evt_" + task.TaskId + "_1" }

func pending(change ...func(*penstockv1.EnqueueRequest)) *penstockv1.EnqueueRequest {
	r := &penstockv1.EnqueueRequest{Type: "x", ScheduleType: "delay", DelayMs: later}
	for _, f := range change {
		f(r)
	}
	return r
}

// insertBySQL stores a pending task with its event in a transaction.
func insertBySQL(t *testing.T, tx pgx.Tx) string {
	t.Helper()
	id := uuid.Must(uuid.NewV7()).String()
	for _, sql := range []string{
		`INSERT INTO tasks (id, tenant, queue, type, state, max_retries, schedule_type, delay_ms, timeout_ms, due_at, idempotency_scope, given, trace_id, payload)
		 VALUES ($1, 'default', 'default', 'x', 'pending', 3, 'delay', 3600000, 1000, now() + interval '1 hour', 'default', 0, 't', '1')`,
		`INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at) VALUES ($1, 1, 'task.created', 'pending', 1, 1, 'api', 't', now())`,
	} {
		if _, err := tx.Exec(t.Context(), sql, id); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return "evt_" + id + "_1"
}

// TestWatchNeverSkipsALateCommit: an older transaction that commits after a
// younger one comes first, and nothing is passed over while it is open.
func TestWatchNeverSkipsALateCommit(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	fromStart := watch(t, e.rpc, &penstockv1.WatchEventsRequest{Position: "earliest"})
	before := created(e.enqueue(t, pending()))
	if got := fromStart.next(t, 1)[0]; got != before {
		t.Fatalf("first event %s, want %s", got, before)
	}
	resumeAt := fromStart.position

	old, err := e.conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{insertBySQL(t, old)}
	// A watch that starts now sees the event of the open transaction, too.
	fromNow := watch(t, e.grpc, &penstockv1.WatchEventsRequest{})
	for range 3 {
		want = append(want, created(e.enqueue(t, pending())))
	}
	// The younger ones are committed and readable, but must not overtake.
	if _, err := e.rpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: strings.Split(want[3], "_")[1]})); err != nil {
		t.Fatal(err)
	}
	resumed := watch(t, e.rpc, &penstockv1.WatchEventsRequest{Position: resumeAt})
	select {
	case r := <-fromStart.responses:
		t.Errorf("overtaken while the older transaction was open: %v", r)
	case r := <-fromNow.responses:
		t.Errorf("overtaken while the older transaction was open: %v", r)
	case <-time.After(500 * time.Millisecond): // several polls
	}
	if err := old.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]*watcher{"from the start": fromStart, "from now": fromNow, "resumed": resumed} {
		if got := w.next(t, 4); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestWatchResumes: from any position received, the rest follows without gap
// or repeat, also on another orchestrator and after a restart.
func TestWatchResumes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := watch(t, e.rpc, &penstockv1.WatchEventsRequest{})
	type point struct {
		position string
		seen     int
	}
	points := []point{{w.position, 0}}
	var want []string
	const n = 20
	for i := range n {
		req := &penstockv1.EnqueueBatchRequest{}
		for range i%3 + 1 {
			req.Tasks = append(req.Tasks, pending())
		}
		res, err := e.rpc.EnqueueBatch(t.Context(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		for range res.Msg.Results {
			want = append(want, "")
		}
		for got := 0; got < len(req.Tasks); {
			for _, ev := range w.response(t).Events {
				want[len(want)-len(req.Tasks)+got] = ev.EventId
				got++
			}
			points = append(points, point{w.position, len(want) - len(req.Tasks) + got})
		}
	}
	if c := e.conn(t); scan[int](t, c, "SELECT count(*) FROM event_log") != len(want) {
		t.Fatalf("%d events seen, the log has others", len(want))
	}
	w.stop()
	e.orch.Stop(t)
	second := testkit.StartOrchestrator(t, e.stores.Config())
	ready(t, second.URL)
	c := dial(t, second.URL)
	for _, p := range points {
		rest := len(want) - p.seen
		w := watch(t, c, &penstockv1.WatchEventsRequest{Position: p.position})
		if got := w.next(t, rest); fmt.Sprint(got) != fmt.Sprint(want[p.seen:]) {
			t.Errorf("after %d: %v, want %v", p.seen, got, want[p.seen:])
		}
		w.stop()
	}
}

func TestWatchFilters(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	early := e.enqueue(t, pending(func(r *penstockv1.EnqueueRequest) { r.Tenant, r.TaskId = "a", "named" }))
	// "From now" reaches back to the oldest transaction that is open anywhere on
	// the server, also of other tests.
	c := e.conn(t)
	testkit.Eventually(t, "the first event is below every open transaction", func() (bool, string) {
		return scan[bool](t, c, "SELECT max(xid::text::bigint) < pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM event_log"), ""
	})
	byTask := watch(t, e.rpc, &penstockv1.WatchEventsRequest{Position: "earliest", TaskId: "named", Tenant: "a"})
	byTenant := watch(t, e.rpc, &penstockv1.WatchEventsRequest{Position: "earliest", Tenant: "b"})
	byType := watch(t, e.rpc, &penstockv1.WatchEventsRequest{Types: []string{"task.succeeded", "task.claimed"}})
	now := watch(t, e.rpc, &penstockv1.WatchEventsRequest{})
	both := watch(t, e.rpc, &penstockv1.WatchEventsRequest{Tenant: "b", Types: []string{"task.created"}})
	var others []string
	for _, tenant := range []string{"a", "b", "c", "b"} {
		others = append(others, created(e.enqueue(t, pending(func(r *penstockv1.EnqueueRequest) { r.Tenant = tenant }))))
	}
	if got := byTask.response(t); len(got.Events) != 1 || got.Events[0].TaskId != "named" || got.Events[0].Tenant != "a" || got.Events[0].RunId != "named:1" ||
		got.Events[0].IdempotencyKey != "named" || got.Events[0].Status != "pending" || got.Events[0].PreviousStatus != "" {
		t.Errorf("by task: %v (task %v)", got, early)
	}
	if got := byTenant.next(t, 2); got[0] != others[1] || got[1] != others[3] {
		t.Errorf("by tenant: %v, want the second and fourth of %v", got, others)
	}
	if got := both.next(t, 2); got[0] != others[1] || got[1] != others[3] {
		t.Errorf("by tenant and type: %v", got)
	}
	if got := now.next(t, 4); fmt.Sprint(got) != fmt.Sprint(others) {
		t.Errorf("from now: %v, want %v", got, others)
	}
	if len(byType.responses) != 0 {
		t.Errorf("by type: %v", <-byType.responses)
	}
	byTenant.quiet(t, e, &penstockv1.EnqueueRequest{Tenant: "b"})
}

// TestWatchEnds: cancelling ends the call; a stopping orchestrator says that
// another one can take over, and from where.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	cancelled := watch(t, e.rpc, &penstockv1.WatchEventsRequest{})
	cancelled.stop()
	if err := <-cancelled.end; connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("cancelled: %v", err)
	}
	w1, w2 := watch(t, e.rpc, &penstockv1.WatchEventsRequest{}), watch(t, e.grpc, &penstockv1.WatchEventsRequest{})
	start := time.Now()
	e.orch.Stop(t)
	for _, w := range []*watcher{w1, w2} {
		if err := <-w.end; connect.CodeOf(err) != connect.CodeUnavailable {
			t.Errorf("stopped: %v", err)
		}
	}
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("stopping with open watches took %s", d)
	}
}

// TestWatchSSE: the same over server-sent events, resumed by Last-Event-ID.
func TestWatchSSE(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	open := func(query string, last string) (*bufio.Scanner, func()) {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.orch.URL+"/api/v1/events/watch?"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if last != "" {
			req.Header.Set("Last-Event-ID", last)
		}
		res, err := http.DefaultClient.Do(req) //nolint:bodyclose // closed by the returned function
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("%s %v", res.Status, res.Header)
		}
		return bufio.NewScanner(res.Body), func() { cancel(); _ = res.Body.Close() }
	}
	// read returns the ids of n events and the last position.
	read := func(s *bufio.Scanner, n int) (ids []string, last string) {
		for len(ids) < n && s.Scan() {
			line := s.Text()
			if p, ok := strings.CutPrefix(line, "id: "); ok {
				last = p
			}
			if d, ok := strings.CutPrefix(line, "data: "); ok {
				var ev struct {
					EventID string `json:"event_id"`
					Type    string `json:"type"`
				}
				if err := json.Unmarshal([]byte(d), &ev); err != nil || ev.Type != "task.created" {
					t.Fatalf("%v: %s", err, d)
				}
				ids = append(ids, ev.EventID)
			}
		}
		if len(ids) != n {
			t.Fatalf("the stream ended after %v: %v", ids, s.Err())
		}
		return ids, last
	}
	s, done := open("position=earliest&types=task.created&tenant=a", "")
	a := func(r *penstockv1.EnqueueRequest) { r.Tenant = "a" }
	want := []string{created(e.enqueue(t, pending(a))), created(e.enqueue(t, pending(a)))}
	e.enqueue(t, pending())
	got, last := read(s, 2)
	done()
	if fmt.Sprint(got) != fmt.Sprint(want) || last == "" {
		t.Errorf("%v, want %v; position %q", got, want, last)
	}
	third := created(e.enqueue(t, pending(a)))
	for _, c := range [][2]string{{"position=earliest&tenant=a", last}, {"tenant=a&position=" + url.QueryEscape(last), ""}} {
		s, done := open(c[0], c[1])
		if got, _ := read(s, 1); got[0] != third {
			t.Errorf("resumed by %v: %v, want %s", c, got, third)
		}
		done()
	}
}
