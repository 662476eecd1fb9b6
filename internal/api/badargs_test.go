package api_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func token(json string) string { return base64.RawURLEncoding.EncodeToString([]byte(json)) }

// forged are page tokens and positions that no answer contained.
func forged() []string {
	id := protocol.NameID("a", "b").String()
	return []string{
		"x", "%", "AAAA", token("{}"), token("null"), token("[]"), token("1"), token(`{"at":"2026-01-01T00:00:00Z"}`),
		token(`{"at":"nonsense","id":"` + id + `"}`), token(`{"at":"2026-01-01T00:00:00Z","id":"x"}`), token(`{"at":"2026-01-01T00:00:00Z","id":"` + strings.ToUpper(id) + `"}`),
		token(`{"d":"x","x":-1}`), token(`{"d":"x","x":1e99}`), token(`{"d":1}`), strings.Repeat("A", 10_000),
	}
}

// readCalls call every reading RPC with one bad argument each.
func readCalls(ctx context.Context, c services, id string) []struct {
	field string
	err   error
} {
	var out []struct {
		field string
		err   error
	}
	add := func(field string, err error) {
		out = append(out, struct {
			field string
			err   error
		}{field, err})
	}
	list := func(field string, r *penstockv1.ListTasksRequest) {
		_, err := c.ListTasks(ctx, connect.NewRequest(r))
		add(field, err)
	}
	dead := func(field string, r *penstockv1.ListDeadLettersRequest) {
		_, err := c.ListDeadLetters(ctx, connect.NewRequest(r))
		add(field, err)
	}
	events := func(field string, r *penstockv1.ListEventsRequest) {
		_, err := c.ListEvents(ctx, connect.NewRequest(r))
		add(field, err)
	}
	wait := func(field string, r *penstockv1.WaitTaskRequest) {
		_, err := c.WaitTask(ctx, connect.NewRequest(r))
		add(field, err)
	}
	get := func(field string, r *penstockv1.GetTaskRequest) {
		_, err := c.GetTask(ctx, connect.NewRequest(r))
		add(field, err)
	}
	for _, n := range []int32{-1, 1001, 1 << 30, -1 << 31} {
		list("page_size", &penstockv1.ListTasksRequest{PageSize: n})
		dead("page_size", &penstockv1.ListDeadLettersRequest{PageSize: n})
		events("page_size", &penstockv1.ListEventsRequest{TaskId: id, PageSize: n})
	}
	for _, s := range forged() {
		list("page_token", &penstockv1.ListTasksRequest{PageToken: s})
		dead("page_token", &penstockv1.ListDeadLettersRequest{PageToken: s})
	}
	list("states", &penstockv1.ListTasksRequest{States: []string{"queued", "nonsense"}})
	list("states", &penstockv1.ListTasksRequest{States: []string{strings.Repeat("s", 10_000)}})
	for _, ts := range []*timestamppb.Timestamp{{Seconds: 1 << 62}, {Nanos: -1}, {Seconds: -1 << 62}} {
		list("created_after", &penstockv1.ListTasksRequest{CreatedAfter: ts})
		list("created_before", &penstockv1.ListTasksRequest{CreatedBefore: ts})
	}
	events("after_seq", &penstockv1.ListEventsRequest{TaskId: id, AfterSeq: -1})
	for _, n := range []int32{-1, 600_001, 1<<31 - 1} {
		wait("timeout_ms", &penstockv1.WaitTaskRequest{TaskId: id, TimeoutMs: n})
	}
	for _, s := range []string{"", strings.Repeat("i", 256), strings.Repeat("i", 10_000)} {
		get("task_id", &penstockv1.GetTaskRequest{TaskId: s})
		events("task_id", &penstockv1.ListEventsRequest{TaskId: s})
		wait("task_id", &penstockv1.WaitTaskRequest{TaskId: s})
	}
	for _, s := range []string{"a\x00", "a\nb", strings.Repeat("t", 10_000)} {
		get("tenant", &penstockv1.GetTaskRequest{TaskId: "x", Tenant: s})
		list("tenant", &penstockv1.ListTasksRequest{Tenant: s})
		list("queue", &penstockv1.ListTasksRequest{Queue: s})
		list("type", &penstockv1.ListTasksRequest{Type: s})
		dead("tenant", &penstockv1.ListDeadLettersRequest{Tenant: s})
		dead("type", &penstockv1.ListDeadLettersRequest{Type: s})
		dead("error_code", &penstockv1.ListDeadLettersRequest{ErrorCode: s})
		dead("fingerprint", &penstockv1.ListDeadLettersRequest{Fingerprint: s})
		dead("status", &penstockv1.ListDeadLettersRequest{Status: s})
		dead("queue", &penstockv1.ListDeadLettersRequest{Queue: s})
		_, err := c.GroupDeadLetters(ctx, connect.NewRequest(&penstockv1.GroupDeadLettersRequest{GroupBy: s}))
		add("group_by", err)
		_, err = c.ListDeadLetterBatches(ctx, connect.NewRequest(&penstockv1.ListDeadLetterBatchesRequest{Kind: s}))
		add("kind", err)
		_, err = c.ListDeadLetterBatches(ctx, connect.NewRequest(&penstockv1.ListDeadLetterBatchesRequest{Status: s}))
		add("status", err)
		_, err = c.CountTasks(ctx, connect.NewRequest(&penstockv1.CountTasksRequest{Tenant: s}))
		add("tenant", err)
		_, err = c.CountTasks(ctx, connect.NewRequest(&penstockv1.CountTasksRequest{Queue: s}))
		add("queue", err)
		_, err = c.CountTasks(ctx, connect.NewRequest(&penstockv1.CountTasksRequest{Type: s}))
		add("type", err)
		_, err = c.GetQueue(ctx, connect.NewRequest(&penstockv1.GetQueueRequest{Queue: s}))
		add("queue", err)
	}
	for _, s := range []string{"", "x", strings.ToUpper(id), strings.Repeat("1", 10_000)} {
		_, err := c.GetDeadLetter(ctx, connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: s}))
		add("dlq_id", err)
	}
	return out
}

func TestBadArgumentsRPC(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.enqueue(t, &penstockv1.EnqueueRequest{ScheduleType: "delay", DelayMs: later}).TaskId
	for _, c := range []services{e.rpc, e.grpc} {
		for i, got := range readCalls(t.Context(), c, id) {
			text := refusedRPC(t, got.err, connect.CodeInvalidArgument, protocol.CodeInputInvalid, got.field)
			if len(text) > 1000 {
				t.Errorf("%s: error text of %d bytes", got.field, len(text))
			}
			if t.Failed() {
				t.Fatalf("call %d: %v", i, got.err)
			}
		}
	}
	for _, r := range []*penstockv1.GetTaskRequest{{TaskId: "nobody"}, {TaskId: id[:35] + "x"}, {TaskId: protocol.NameID("a", "b").String()}} {
		_, err := e.rpc.GetTask(t.Context(), connect.NewRequest(r))
		refusedRPC(t, err, connect.CodeNotFound, protocol.CodeNotFound, "task_id")
		_, err = e.grpc.WaitTask(t.Context(), connect.NewRequest(&penstockv1.WaitTaskRequest{TaskId: r.TaskId}))
		refusedRPC(t, err, connect.CodeNotFound, protocol.CodeNotFound, "task_id")
		_, err = e.grpc.ListEvents(t.Context(), connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: r.TaskId}))
		refusedRPC(t, err, connect.CodeNotFound, protocol.CodeNotFound, "task_id")
	}
	_, err := e.rpc.GetDeadLetter(t.Context(), connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: id}))
	refusedRPC(t, err, connect.CodeNotFound, protocol.CodeNotFound, "dlq_id")
}

func TestBadArgumentsREST(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := e.enqueue(t, &penstockv1.EnqueueRequest{ScheduleType: "delay", DelayMs: later}).TaskId
	for _, c := range []struct{ path, field string }{
		{"/api/v1/tasks?page_size=-1", "page_size"}, {"/api/v1/tasks?page_size=x", "page_size"}, {"/api/v1/tasks?page_token=x", "page_token"},
		{"/api/v1/tasks?page_token=" + token(`{"at":"2026-01-01T00:00:00Z","id":"x"}`), "page_token"}, {"/api/v1/tasks?states=nonsense", "states"},
		{"/api/v1/tasks?nope=1", "nope"}, {"/api/v1/tasks?tenant=%00", "tenant"}, {"/api/v1/tasks?created_after=2026-01-01T00:00:00", "created_after"},
		{"/api/v1/dead-letters?page_size=1001", "page_size"}, {"/api/v1/dead-letters?error_code=%00", "error_code"}, {"/api/v1/dead-letters/x", "dlq_id"},
		{"/api/v1/task-counts?queue=%00", "queue"}, {"/api/v1/queues/a%00", "queue"},
		{"/api/v1/tasks/" + id + "/wait?timeout_ms=-1", "timeout_ms"}, {"/api/v1/tasks/" + id + "/events?after_seq=-1", "after_seq"},
		{"/api/v1/tasks/" + strings.Repeat("i", 256), "task_id"}, {"/api/v1/tasks/x?tenant=" + strings.Repeat("t", 5000), "tenant"},
		{"/api/v1/events/watch?position=x", "position"}, {"/api/v1/events/watch?types=nonsense", "types"}, {"/api/v1/events/watch?tenant=%00", "tenant"}, {"/api/v1/events/watch?nope=1", "nope"},
	} {
		p := e.get(t, c.path).refused(t, http.StatusBadRequest, protocol.CodeInputInvalid, c.field)
		if len(p.Detail) > 600 {
			t.Errorf("%s: detail of %d bytes", c.path, len(p.Detail))
		}
		if t.Failed() {
			t.Fatalf("GET %.200s", c.path)
		}
	}
	for _, path := range []string{"/api/v1/tasks/nobody", "/api/v1/tasks/%00", "/api/v1/tasks/nobody/wait", "/api/v1/tasks/nobody/events", "/api/v1/events/watch?task_id=nobody"} {
		e.get(t, path).refused(t, http.StatusNotFound, protocol.CodeNotFound, "task_id")
	}
}

// TestWatchPositionRefused: positions that can't be resumed from say why.
func TestWatchPositionRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.enqueue(t, &penstockv1.EnqueueRequest{ScheduleType: "delay", DelayMs: later})
	c := e.conn(t)
	dep := scan[string](t, c, "SELECT id::text FROM deployment")
	if _, err := c.Exec(t.Context(), "UPDATE event_horizon SET xid = pg_snapshot_xmin(pg_current_snapshot())"); err != nil {
		t.Fatal(err)
	}
	pos := func(d string, x int64, more string) string {
		return token(fmt.Sprintf(`{"d":%q,"x":%d%s}`, d, x, more))
	}
	horizon := scan[int64](t, c, "SELECT xid::text::bigint FROM event_horizon")
	watch := func(cl services, r *penstockv1.WatchEventsRequest) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := cl.WatchEvents(ctx, connect.NewRequest(r))
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		if s.Receive() {
			return nil
		}
		return s.Err()
	}
	for _, cl := range []services{e.rpc, e.grpc} {
		for _, s := range append(forged(), pos(dep, horizon, `,"t":"x"`)) {
			if s == token(`{"at":"2026-01-01T00:00:00Z"}`) || s == token("{}") {
				continue // decodes as a position of no deployment
			}
			err := watch(cl, &penstockv1.WatchEventsRequest{Position: s})
			if connect.CodeOf(err) == connect.CodeOutOfRange {
				continue // decodes as one of another deployment
			}
			refusedRPC(t, err, connect.CodeInvalidArgument, protocol.CodeInputInvalid, "position")
		}
		for name, c := range map[string]struct{ position, want string }{
			"other deployment": {pos("6a7a5c7c-0000-4000-8000-000000000000", horizon, ""), "another deployment"},
			"too old":          {pos(dep, horizon-1, ""), "too old"},
			"too new":          {pos(dep, 1<<60, ""), "newer than this database"},
		} {
			err := watch(cl, &penstockv1.WatchEventsRequest{Position: c.position})
			if connect.CodeOf(err) != connect.CodeOutOfRange || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "earliest") {
				t.Errorf("%s: %v", name, err)
			}
			p := e.get(t, "/api/v1/events/watch?position="+url.QueryEscape(c.position)).problem(t)
			if p.Status != http.StatusBadRequest || !strings.Contains(p.Detail, c.want) || p.Retryable {
				t.Errorf("%s over SSE: %+v", name, p)
			}
		}
		if err := watch(cl, &penstockv1.WatchEventsRequest{Position: pos(dep, horizon, "")}); err != nil {
			t.Errorf("position at the horizon: %v", err)
		}
		if err := watch(cl, &penstockv1.WatchEventsRequest{Position: "earliest"}); err != nil {
			t.Errorf("earliest: %v", err)
		}
		for field, r := range map[string]*penstockv1.WatchEventsRequest{"types": {Types: []string{"task.created", "task.nonsense"}}, "tenant": {Tenant: "a\x00"}} {
			refusedRPC(t, watch(cl, r), connect.CodeInvalidArgument, protocol.CodeInputInvalid, field)
		}
	}
}
