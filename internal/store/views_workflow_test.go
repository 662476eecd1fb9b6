package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// wantWorkflow compares a workflow's events with the logs of its tasks, and its
// retry context with the last retry in them.
func wantWorkflow(t testing.TB, f failer, c *pgx.Conn, id string, stories ...*story) {
	want := map[string][]string{}
	var last *protocol.Event
	total := 0
	for _, s := range stories {
		task := s.task.ID.String()
		if s.name != nil {
			task = *s.name
		}
		for _, e := range s.events {
			backoff, failure := "-", ""
			if e.BackoffDelay >= 0 {
				backoff = fmt.Sprint(e.BackoffDelay.Milliseconds())
			}
			if e.Code != "" {
				failure = e.Reason
			}
			want[s.task.ID.String()] = append(want[s.task.ID.String()], fmt.Sprintf("%s %d %s %q %s %q", protocol.AsterType(e.Type), e.Attempt, backoff, failure, task, e.Reason))
			total++
			if e.Type == protocol.EventRetryScheduled && (last == nil || e.OccurredAt.After(last.OccurredAt) ||
				e.OccurredAt.Equal(last.OccurredAt) && strings.Compare(e.TaskID.String(), last.TaskID.String()) >= 0) {
				last = e
			}
		}
	}
	rows, err := c.Query(t.Context(), `SELECT task_id::text, sequence, event_type, attempt_number, backoff_delay_ms, failure_reason, payload FROM workflow_events WHERE workflow_id = $1 ORDER BY sequence`, id)
	if err != nil {
		f.Fatalf("workflow events: %v", err)
	}
	got := map[string][]string{}
	n := 0
	for rows.Next() {
		var task, typ string
		var seq int64
		var attempt int
		var backoff *int64
		var failure *string
		var payload struct{ TaskID, Reason string }
		if err := rows.Scan(&task, &seq, &typ, &attempt, &backoff, &failure, &payload); err != nil {
			f.Fatalf("workflow events: %v", err)
		}
		if n++; seq != int64(n) {
			f.Fatalf("sequence %d at place %d", seq, n)
		}
		delay := "-"
		if backoff != nil {
			delay = fmt.Sprint(*backoff)
		}
		got[task] = append(got[task], fmt.Sprintf("%s %d %s %q %s %q", typ, attempt, delay, deref(failure), payload.TaskID, payload.Reason))
	}
	if n != total {
		f.Fatalf("%d events, want %d", n, total)
	}
	for task, events := range want {
		if !slices.Equal(got[task], events) {
			f.Fatalf("task %s:\n got %s\nwant %s", task, strings.Join(got[task], "\n     "), strings.Join(events, "\n     "))
		}
	}
	ctx := protocol.RetryContext{CurrentAttempt: 1}
	if last != nil {
		ctx = protocol.RetryContext{CurrentAttempt: last.Attempt, LastBackoff: last.BackoffDelay.Milliseconds()}
	}
	var state protocol.RetryContext
	if err := c.QueryRow(t.Context(), "SELECT retry_context FROM workflow_state WHERE workflow_id = $1", id).Scan(&state); err != nil || state != ctx {
		f.Fatalf("retry context %+v, want %+v; error %v", state, ctx, err)
	}
}

// A graph's workflow is over when its last task is, and failed if one did.
func TestWorkflowState(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	graph := newID()
	add := func(state string) {
		cols := columns(newID())
		cols["state"], cols["graph_id"], cols["due_at"] = "'"+state+"'", "'"+graph+"'", "NULL"
		if protocol.State(state).Terminal() {
			cols["finished_at"] = "now()"
		}
		exec(t, c, insertSQL(cols))
	}
	want := func(want string) {
		t.Helper()
		if got := get[string](t, c, "SELECT status || ' ' || open_tasks || '/' || tasks FROM workflow_state WHERE workflow_id = $1", graph); got != want {
			t.Errorf("the workflow is %s, want %s", got, want)
		}
	}
	add("succeeded")
	want("succeeded 0/1")
	add("cancelled")
	want("cancelled 0/2")
	add("failed")
	want("failed 0/3")
	add("running")
	want("running 1/4")
}

// The filters that the documents' queries use find their rows by an index.
func TestViewPlans(t *testing.T) {
	t.Parallel()
	c := connect(t, testkit.Database(t), "penstock_app", nil)
	exec(t, c, "SET enable_seqscan = off")
	id := uuid.NewString()
	for _, sql := range []string{
		"SELECT * FROM jobs WHERE job_id = $1", "SELECT * FROM task_runs WHERE task_id = $1 AND attempt = 2", "SELECT * FROM run_events WHERE task_id = $1",
		"SELECT * FROM workflow_events WHERE workflow_id = $1 AND attempt_number = 2", "SELECT * FROM workflow_state WHERE workflow_id = $1",
		"SELECT * FROM tasks WHERE trace_id = $1::text AND given & 8 <> 0",
	} {
		rows, err := c.Query(t.Context(), "EXPLAIN "+sql, id)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "Seq Scan") || !strings.Contains(text, "Index") {
			t.Errorf("%s\n%s", sql, text)
		}
	}
}
