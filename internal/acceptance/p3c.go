package acceptance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// injection is a run that fails once, in one of the documents' three ways.
type injection struct {
	script        script
	path          string
	typ           protocol.EventType
	code          protocol.Code
	attempt       int
	interruptions int32
}

const recovered = "queued -> running -> retry_scheduled -> running -> succeeded"

func p3cTimeout(ctx context.Context, r *run, f *finding) error {
	return injection{script{Timeout: 1}, recovered, protocol.EventRetryScheduled, protocol.CodeTimeout, 2, 0}.run(ctx, r, f)
}

func p3cTransient(ctx context.Context, r *run, f *finding) error {
	return injection{script{Fail: 1}, recovered, protocol.EventRetryScheduled, protocol.CodeExecutionFailed, 2, 0}.run(ctx, r, f)
}

func p3cRestart(ctx context.Context, r *run, f *finding) error {
	return injection{script{Restart: []int64{1}}, "queued -> running -> interrupted -> queued -> running -> succeeded", protocol.EventInterrupted, protocol.CodeWorkerLost, 1, 1}.run(ctx, r, f)
}

func (i injection) run(ctx context.Context, r *run, f *finding) error {
	s, err := r.live(ctx, i.script, func(t *task.Request) {
		switch {
		case i.script.Timeout > 0:
			t.Timeout = ms(300)
		case len(i.script.Restart) > 0:
			t.Timeout = r.patience()
		}
	})
	if err != nil {
		return err
	}
	i.judge(f, s)
	return nil
}

func (i injection) judge(f *finding, s *story) {
	s.whole(f)
	s.ended(f, protocol.StateSucceeded, i.attempt, "")
	if got := s.path(protocol.VocabularyP3C); got != i.path {
		f.wrongf("the run went %s, want %s", got, i.path)
	}
	if e := s.of(i.typ); e == nil || e.ErrorCode != string(i.code) {
		f.wrongf("the log has no %s with %s: %s", i.typ, i.code, types(s.events))
	}
	if len(s.seen) != 2 || s.task.Interruptions != i.interruptions {
		f.wrongf("%d executions and %d interruptions, want 2 and %d", len(s.seen), s.task.Interruptions, i.interruptions)
	}
	f.notef("task %s: %s", s.task.TaskId, s.path(protocol.VocabularyP3C))
}

// runRow is a row of the view task_runs.
type runRow struct {
	RunID, TaskID  string
	Attempt        int
	RunStatus      string
	IdempotencyKey string
	NextRetryAt    *time.Time
}

const runColumns = "run_id, task_id::text, attempt, run_status, idempotency_key, next_retry_at"

// p3cFields compares runs with the field contract: of tasks that have ended,
// and of one that waits for its retry.
func p3cFields(ctx context.Context, r *run, f *finding) error {
	stories, err := r.variety(ctx)
	if err != nil {
		return err
	}
	waits := task.Retry{Strategy: "fixed", Base: longest, MaxBackoff: longest, NoJitter: true}
	e, err := r.enqueue(ctx, r.request(script{Fail: 1}, func(t *task.Request) { t.Retry = &waits }))
	if err == nil {
		err = r.reach(ctx, e.TaskID, protocol.StateRetrying)
	}
	if err != nil {
		return err
	}
	waiting, err := r.gather(ctx, e.TaskID)
	if err != nil {
		return err
	}
	var all []runRow
	for _, s := range append(stories, waiting) {
		rows, err := collect(ctx, r, pgx.RowToStructByPos[runRow], "SELECT "+runColumns+" FROM task_runs WHERE task_id = $1 ORDER BY attempt", uuidOf(s.task.TaskId).String())
		if err != nil {
			return err
		}
		judgeRuns(f, s, rows)
		all = append(all, rows...)
	}
	judgeAllRuns(f, all)
	return r.constraints(ctx, f, uuidOf(waiting.task.TaskId).String())
}

func judgeRuns(f *finding, s *story, rows []runRow) {
	id := uuidOf(s.task.TaskId)
	if len(rows) != int(s.task.Attempt) {
		f.wrongf("task %s is in attempt %d and has %d runs", id, s.task.Attempt, len(rows))
	}
	want := protocol.Runs(eventsOf(id, s.events))
	for i, row := range rows {
		if row.Attempt != i+1 || row.TaskID != id.String() || row.RunID != protocol.RunID(id, i+1) || row.IdempotencyKey != protocol.ExecutionKey(id, i+1) {
			f.wrongf("run %d of task %s is %+v", i+1, id, row)
		}
		if i < len(want) && row.RunStatus != want[i].Status {
			f.wrongf("run %s has run_status %s, its log says %s", row.RunID, row.RunStatus, want[i].Status)
		}
		if (row.NextRetryAt != nil) != (row.RunStatus == "retry_scheduled") {
			f.wrongf("run %s is %s with next_retry_at %v", row.RunID, row.RunStatus, row.NextRetryAt)
		}
	}
}

func judgeAllRuns(f *finding, rows []runRow) {
	keys, statuses := map[string]bool{}, map[string]bool{}
	for _, row := range rows {
		if row.IdempotencyKey == "" || keys[row.IdempotencyKey] {
			f.wrongf("idempotency_key %q is empty, or that of two runs", row.IdempotencyKey)
		}
		keys[row.IdempotencyKey], statuses[row.RunStatus] = true, true
	}
	if !statuses["retry_scheduled"] {
		f.wrongf("no run is retry_scheduled")
	}
	f.notef("%d runs: %s", len(rows), strings.Join(slices.Sorted(maps.Keys(statuses)), ", "))
}

// constraints tries what the database must refuse, and takes it back either way.
func (r *run) constraints(ctx context.Context, f *finding, taskID string) error {
	for _, try := range []struct{ what, set string }{
		{"retry_scheduled without next_retry_at", "next_retry_at = NULL"}, {"an attempt below 1", "attempt = 0"},
		{"next_retry_at in another status", "state = 'running', due_at = NULL"}, {"an attempt above max_attempts", "attempt = max_retries + 2"},
	} {
		err := r.attempt(ctx, "UPDATE tasks SET "+try.set+" WHERE id = $1", taskID)
		if err == nil {
			f.wrongf("the database takes %s", try.what)
			continue
		}
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "23514" {
			return fmt.Errorf("try %s: %w", try.what, err)
		}
	}
	return nil
}

// attempt runs a statement in a transaction that is rolled back.
func (r *run) attempt(ctx context.Context, sql string, arg ...any) error {
	r.dbMu.Lock()
	defer r.dbMu.Unlock()
	tx, err := r.db.Begin(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, sql, arg...)
	return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
}

// runEvent is a row of the view run_events.
type runEvent struct {
	EventType, TraceID string
	Payload            json.RawMessage
}

func p3cEvents(ctx context.Context, r *run, f *finding) error {
	stories, err := r.variety(ctx)
	if err != nil {
		return err
	}
	var ids []protocol.ID
	for _, s := range stories {
		id := uuidOf(s.task.TaskId)
		ids = append(ids, id)
		rows, err := collect(ctx, r, pgx.RowToStructByPos[runEvent], "SELECT event_type, trace_id, payload FROM run_events WHERE task_id = $1 ORDER BY seq", id.String())
		if err != nil {
			return err
		}
		judgeRunEvents(f, s, rows)
		var together bool
		err = r.query(ctx, `SELECT t.xmin::text = (e.xid::text::numeric % 4294967296)::text FROM tasks t JOIN event_log e ON e.task_id = t.id AND e.seq = t.event_seq WHERE t.id = $1`, id.String()).scan(&together)
		if err != nil {
			return fmt.Errorf("the last event of task %s: %w", id, err)
		}
		if !together {
			f.wrongf("task %s and its last event were written by different transactions", id)
		}
	}
	f.notef("%d tasks", len(stories))
	return r.verified(ctx, f, ids)
}

var nine = []string{"actor", "attempt", "error_code", "idempotency_key", "next_retry_at", "previous_status", "run_id", "status", "task_id"}

func judgeRunEvents(f *finding, s *story, rows []runEvent) {
	id := uuidOf(s.task.TaskId)
	trace := regexp.MustCompile(`^trace-run-` + regexp.QuoteMeta(protocol.RunID(id, 1)) + `-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	var moves [][2]string
	for _, e := range rows {
		var p map[string]any
		if err := json.Unmarshal(e.Payload, &p); err != nil || !slices.Equal(slices.Sorted(maps.Keys(p)), nine) || e.EventType != protocol.P3CEvent {
			f.wrongf("an event %s of task %s has %v, want %s with %v", e.EventType, id, slices.Sorted(maps.Keys(p)), protocol.P3CEvent, nine)
			return
		}
		if !trace.MatchString(e.TraceID) {
			f.wrongf("task %s has trace_id %s, want trace-run-{run_id}-{uuid}", id, e.TraceID)
		}
		before, _ := p["previous_status"].(string)
		status, _ := p["status"].(string)
		attempt, _ := p["attempt"].(float64)
		if p["run_id"] != protocol.RunID(id, int(attempt)) || p["task_id"] != id.String() || p["idempotency_key"] != protocol.ExecutionKey(id, int(attempt)) || p["actor"] == "" ||
			(p["next_retry_at"] != nil) != (status == "retry_scheduled") {
			f.wrongf("an event of task %s is %s", id, e.Payload)
		}
		moves = append(moves, [2]string{before, status})
	}
	states := make([]protocol.State, len(s.events))
	for i, e := range s.events {
		states[i] = protocol.State(e.Status)
	}
	if want := protocol.VocabularyP3C.Moves(states); !slices.Equal(moves, want) {
		f.wrongf("the events of task %s show %v, want %v", id, moves, want)
	}
}

// verified compares the rows of tasks with what their logs imply.
func (r *run) verified(ctx context.Context, f *finding, ids []protocol.ID) error {
	st, err := store.Open(ctx, store.Options{URL: r.o.PostgresURL, Role: r.o.Role, MaxConns: 1})
	if err != nil {
		return err
	}
	defer st.Close()
	_, err = verify.Run(ctx, verify.Options{Store: st, IDs: ids, Report: func(d verify.Difference) { f.wrongf("%s: %s", d.Check, d) }})
	return err
}
