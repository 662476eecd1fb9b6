package api_test

import (
	"regexp"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// TestTaskSaysWhatItWaitsFor: GetTask tells in each state that waits why, and what
// happens next; the states that don't are left alone.
func TestTaskSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c := e.conn(t)
	if _, err := c.Exec(t.Context(), `INSERT INTO workers (id, host, pid, version, queues, concurrency, running, stuck, interval_ms, seen_at, drain_at, drain_by) VALUES
		('w1', 'h', 1, 'v', '{served}', 1, 0, 0, 86400000, now(), NULL, NULL), ('w2', 'h', 1, 'v', '{other,served}', 1, 0, 0, 86400000, now(), NULL, NULL),
		('w3', 'h', 1, 'v', '{served}', 1, 0, 0, 86400000, now(), now(), 'u'), ('w4', 'h', 1, 'v', '{served}', 1, 0, 0, 1000, now() - interval '1 hour', NULL, NULL)`); err != nil {
		t.Fatal(err)
	}
	const when = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z`
	for _, x := range []struct {
		name  string
		req   *penstockv1.EnqueueRequest
		sql   []string // run with the task's id
		words string   // a regular expression for all of it
	}{
		{"scheduled", pending(), nil, `its time, ` + when},
		{"queued", &penstockv1.EnqueueRequest{Queue: "served"}, nil, `a worker of queue served to fetch it: 2 are alive; of its entries 1 are not fetched and 0 are held by workers`},
		{"queued for nobody", &penstockv1.EnqueueRequest{Queue: "q1"}, nil, `a worker of queue q1 to fetch it: none reports to an orchestrator; of its entries 1 are not fetched .*`},
		{"expires", &penstockv1.EnqueueRequest{Queue: "q2", ScheduleToStartTimeoutMs: ptr(later)}, nil, `a worker of queue q2 .*; cancelled with TASK_EXPIRED if it has not started by ` + when},
		{"no room", pending(), []string{"UPDATE tasks SET state = 'queued', queue = 'internal-jobs', due_at = NULL WHERE id = $1"}, `calls of the internal run interface: its queue is never dispatched`},
		{"depends", pending(), []string{"UPDATE tasks SET due_at = NULL, open_dependencies = 2, on_dependency_failure = 'run' WHERE id = $1"}, `2 of the tasks that it depends on to end`},
		{"retrying", pending(), []string{"UPDATE tasks SET state = 'retrying', attempt = 2, max_retries = 3, next_retry_at = due_at, last_error_code = 'TASK_TIMEOUT' WHERE id = $1"},
			`attempt 2 of 4 after TASK_TIMEOUT, ` + when},
		{"retrying, dispatched", pending(), []string{"UPDATE tasks SET state = 'retrying', next_retry_at = now(), due_at = NULL, queue = 'q3' WHERE id = $1"}, `a worker of queue q3 to fetch it: none reports to an orchestrator; .*`},
		{"lost", pending(), []string{"UPDATE tasks SET state = 'interrupted' WHERE id = $1", `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at, worker_id, error_code, reason)
			VALUES ($1, 2, 'task.interrupted', 'interrupted', 1, 1, 'reclaimer', 't', now(), 'w9', 'TASK_WORKER_LOST', E'idle\n for 300 s')`},
			`its next dispatch: worker w9 was lost at ` + when + ` \(idle for 300 s\); waits for ` + when},
		{"handed back", pending(), []string{"UPDATE tasks SET state = 'interrupted' WHERE id = $1", `INSERT INTO event_log (task_id, seq, type, status, attempt, delivery, actor, trace_id, occurred_at, worker_id, error_code)
			VALUES ($1, 2, 'task.interrupted', 'interrupted', 1, 1, 'worker', 't', now(), 'w9', 'TASK_UNKNOWN_TYPE')`}, `its next dispatch: worker w9 handed it back at ` + when + `; waits for ` + when},
		{"asked", pending(), []string{"UPDATE tasks SET state = 'waiting_approval', due_at = NULL WHERE id = $1",
			`INSERT INTO approvals (id, task_id, tenant, kind, name, digest, required, approvers, requesters, status, requested_at, expires_at) VALUES ($1, $1, 'default', 'handler', 'large', 'd', 2, '{a}', '{b}', 'pending', now(), now() + interval '1 day')`,
			`INSERT INTO approvals (id, task_id, tenant, kind, name, digest, required, approvers, requesters, status, requested_at, expires_at, decided_at) VALUES (gen_random_uuid(), $1, 'default', 'handler', 'old', 'd', 2, '{a}', '{b}', 'withdrawn', now(), now(), now())`,
			`INSERT INTO approval_votes (approval_id, principal, requesters, reason, at) VALUES ($1, 'a', '{b}', 'r', now())`},
			`people to decide about handler large \(1 of 2 approvals, rejected at ` + when + ` without a decision\)`},
		{"running", pending(), []string{"UPDATE tasks SET state = 'running', due_at = NULL, started_at = now() WHERE id = $1"}, ``},
		{"ended", pending(), []string{"UPDATE tasks SET state = 'cancelled', due_at = NULL, finished_at = now() WHERE id = $1"}, ``},
	} {
		id := e.enqueue(t, x.req).TaskId
		for _, sql := range x.sql {
			if _, err := c.Exec(t.Context(), sql, id); err != nil {
				t.Fatalf("%s: %s: %v", x.name, sql, err)
			}
		}
		res, err := e.rpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: id}))
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		if got := res.Msg.Task.WaitsFor; !regexp.MustCompile("^" + x.words + "$").MatchString(got) {
			t.Errorf("%s: waits for %q, want %s", x.name, got, x.words)
		}
	}
}

// TestWindowFullSaysSo: a task that waits in Postgres for room in its stream says
// since when, and what is in the stream.
func TestWindowFullSaysSo(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(c *config.Orchestrator) { c.Dispatch.Window = 1 })
	var last *penstockv1.Task
	testkit.Eventually(t, "a task waits for room", func() (bool, string) {
		id := e.enqueue(t, &penstockv1.EnqueueRequest{}).TaskId
		res, err := e.rpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: id}))
		if err != nil {
			return false, err.Error()
		}
		last = res.Msg.Task
		return strings.HasPrefix(last.WaitsFor, "room in "+protocol.StreamTask+" since "), last.WaitsFor
	})
	if !strings.Contains(last.WaitsFor, "1 are not fetched") {
		t.Errorf("waits for %q, want what is in the stream", last.WaitsFor)
	}
}
