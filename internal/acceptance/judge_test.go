package acceptance

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/gate"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// world is all the evidence that the judges of this test look at; each case
// changes a piece of it.
type world struct {
	lives    map[string]*story
	acked    streams.GroupInfo
	ackedErr error
	entry    map[string]any // of stream:dlq
	calls    int
	receipts []string
	gate     gateReport
	job      job
	runs     []runRow
	events   []runEvent
	made     map[string]any
	state    string // a MEN event
	hit      string
	status   int
	dup      string
	figures  figures
	again    []*penstockv1.Event // a log that was read again
	at       time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{lives: lives(t), status: 200, acked: streams.GroupInfo{LastDelivered: "1-0"}, calls: 1, receipts: []string{"a", "a", "a"}}
	for _, e := range w.lives["three"].events {
		w.again = append(w.again, proto.CloneOf(e))
	}
	dead, success := w.lives["dead"], w.lives["success"]
	w.entry = map[string]any{"task_id": dead.task.TaskId, "tool_name": typeStep, "payload": "{}", "error": "e", "retry_count": "3", "failed_at": "2026-02-25T12:00:00Z"}
	w.gate = gateReport{Results: []gate.Result{
		{ReplayID: "RP-001", Passed: true}, {ReplayID: "RP-002", Passed: true}, {ReplayID: "RP-003", Passed: true}, {ReplayID: "RP-004", Passed: true}, {ReplayID: "RP-005", Passed: true},
	}}
	w.job = job{id: success.task.TaskId, status: "succeeded", key: success.task.IdempotencyKey, trace: success.task.TraceId}
	w.setRuns(w.lives["waits"])
	w.setEvents(t, w.lives["waits"])
	w.at = w.lives["scheduled"].events[0].OccurredAt.AsTime()
	w.lives["scheduled"].task.ScheduledAt = timestamppb.New(w.at)
	w.made = map[string]any{}
	for _, name := range []string{"task_id", "schedule_type", "timeout_ms", "max_retries", "idempotency_key", "idempotency_scope"} {
		w.made[name] = "x"
	}
	w.state = strings.ReplaceAll(menEventExample, "start_to_close timeout exhausted", "TASK_TIMEOUT")
	w.hit = strings.ReplaceAll(menHitExample, `"ready"`, `"queued"`)
	w.dup = `{"code":"TASK_DUPLICATE","field":"payload"}`
	w.figures = figures{latency: map[int][]time.Duration{}, attempt: map[int][]time.Duration{}}
	for _, n := range []int{0, 1, 3} {
		w.figures.latency[n] = []time.Duration{9 * time.Millisecond, 10 * time.Millisecond}
		w.figures.attempt[n] = []time.Duration{9 * time.Millisecond, 10 * time.Millisecond}
	}
	return w
}

func (w *world) setRuns(s *story) {
	id := uuidOf(s.task.TaskId)
	for _, r := range protocol.Runs(eventsOf(id, s.events)) {
		row := runRow{RunID: protocol.RunID(id, r.Attempt), TaskID: id.String(), Attempt: r.Attempt, RunStatus: r.Status, IdempotencyKey: protocol.ExecutionKey(id, r.Attempt)}
		if !r.NextRetryAt.IsZero() {
			row.NextRetryAt = &r.NextRetryAt
		}
		w.runs = append(w.runs, row)
	}
}

func (w *world) setEvents(t *testing.T, s *story) {
	t.Helper()
	at := ""
	id := uuidOf(s.task.TaskId)
	for _, e := range s.events {
		word := protocol.VocabularyP3C.Project(protocol.State(e.Status), at)
		if word == at {
			continue
		}
		p := map[string]any{
			"run_id": protocol.RunID(id, int(e.Attempt)), "task_id": id.String(), "previous_status": at, "status": word, "attempt": e.Attempt,
			"idempotency_key": protocol.ExecutionKey(id, int(e.Attempt)), "next_retry_at": nil, "error_code": nil, "actor": "worker",
		}
		if e.NextRetryAt != nil {
			p["next_retry_at"] = e.NextRetryAt.AsTime()
		}
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		w.events = append(w.events, runEvent{EventType: protocol.P3CEvent, TraceID: s.task.TraceId, Payload: b})
		at = word
	}
}

// moves are stories in which everything of MEN's table happens.
func (w *world) moves() []*story {
	var out []*story
	for _, name := range []string{"scheduled", "once", "permanent", "cancelled", "cancelled2", "cancelled3"} {
		out = append(out, w.lives[name])
	}
	return out
}

// judges are all lines whose evidence is judged, by name.
var judges = map[string]func(w *world, f *finding){
	"TQP-1": func(w *world, f *finding) { judgeSuccess(f, w.lives["success"]); judgeAcked(f, w.acked, w.ackedErr) },
	"TQP-2": func(w *world, f *finding) { judgeDead(f, w.lives["dead"], w.entry) },
	"TQP-3": func(w *world, f *finding) {
		s := *w.lives["lost"]
		s.seen = s.seen[1:] // the first execution was that of the worker that is gone
		judgeReclaimed(f, &s, "gone", "1-0", time.Second)
	},
	"TQP-4":           func(w *world, f *finding) { judgeEffect(f, w.lives["effect"], w.calls, w.receipts) },
	"RP-004":          func(w *world, f *finding) { judgeReplay(f, &w.gate, "RP-004") },
	"B2-8.1":          func(w *world, f *finding) { judgeJob(f, w.lives["success"], w.job) },
	"B2-8.2":          func(w *world, f *finding) { judgeDelays(f, w.lives["three"], simSeed, 3) },
	"B2-8.3":          func(w *world, f *finding) { judgeFourth(f, w.lives["dead"]) },
	"MEN-transitions": func(w *world, f *finding) { judgeMoves(f, w.moves()) },
	"MEN-attempts": func(w *world, f *finding) {
		attemptCase{retries: 3, attempts: 4, code: protocol.CodeRetryExhausted, cause: protocol.CodeExecutionFailed}.judge(f, w.lives["dead"])
	},
	"MEN-create": func(w *world, f *finding) {
		body := map[string]any{"payload": map[string]any{}}
		for _, name := range []string{"task_id", "schedule_type", "timeout_ms", "max_retries", "idempotency_key", "idempotency_scope"} {
			body[name] = "x"
		}
		judgeCreate(f, body, w.made, w.lives["scheduled"], w.at)
	},
	"MEN-event": func(w *world, f *finding) { judgeEvent(f, []byte(w.state), "task_20260225_0001") },
	"MEN-idempotent-hit": func(w *world, f *finding) {
		judgeHit(f, w.status, []byte(w.hit), "task_20260225_0001")
		judgeDuplicate(f, 409, []byte(w.dup))
	},
	"P3C-timeout": func(w *world, f *finding) {
		injection{script{Timeout: 1}, recovered, protocol.EventRetryScheduled, protocol.CodeTimeout, 2, 0}.judge(f, w.lives["timeout"])
	},
	"P3C-restart": func(w *world, f *finding) {
		injection{script{}, "queued -> running -> interrupted -> queued -> running -> succeeded", protocol.EventInterrupted, protocol.CodeWorkerLost, 1, 1}.judge(f, w.lives["lost"])
	},
	"P3C-fields":        func(w *world, f *finding) { judgeRuns(f, w.lives["waits"], w.runs); judgeAllRuns(f, w.runs) },
	"P3C-events":        func(w *world, f *finding) { judgeRunEvents(f, w.lives["waits"], w.events) },
	"ASTER-replay":      func(w *world, f *finding) { judgeHistory(f, w.lives["three"], w.again, simSeed) },
	"ASTER-no-retry":    func(w *world, f *finding) { w.figures.judge(f, 0) },
	"ASTER-retry-three": func(w *world, f *finding) { w.figures.judge(f, 3) },
}

// Evidence as it must be passes every line.
func TestJudgesPass(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, judge := range judges {
		var f finding
		if judge(w, &f); len(f.wrong) > 0 {
			t.Errorf("%s: %q", name, f.wrong)
		}
		if len(f.notes) == 0 && name != "B2-8.1" && name != "P3C-events" {
			t.Errorf("%s says nothing about what it saw", name)
		}
	}
}

// Each piece of evidence counts.
func TestJudgesFail(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		line   string
		change func(w *world)
		want   string
	}{
		{"TQP-1", func(w *world) { w.lives["success"].task.State = "failed" }, "want succeeded"},
		{"TQP-1", func(w *world) { w.lives["success"].events = w.lives["success"].events[:2] }, "0 final events"},
		{"TQP-1", func(w *world) { s := w.lives["success"]; s.events = append(s.events, s.events[2]) }, "has seq"},
		{"TQP-1", func(w *world) { w.lives["success"].events[1].Type = "task.queued" }, "the log says: created queued succeeded"},
		{"TQP-1", func(w *world) { w.lives["success"].seen = nil }, "called 0 times"},
		{"TQP-1", func(w *world) { w.acked.Pending = 1 }, "1 entries are pending"},
		{"TQP-1", func(w *world) { w.acked.Undelivered = 1 }, "1 undelivered"},
		{"TQP-1", func(w *world) { w.acked.LastDelivered = "0-0" }, "no entry was ever delivered"},
		{"TQP-1", func(w *world) { w.ackedErr = errors.New("gone") }, "is not known: gone"},
		{"TQP-2", func(w *world) { w.entry = nil }, "is not in stream:dlq"},
		{"TQP-2", func(w *world) { delete(w.entry, "failed_at") }, "has no failed_at"},
		{"TQP-2", func(w *world) { w.entry["payload"] = "[]" }, "has payload []"},
		{"TQP-2", func(w *world) { w.entry["retry_count"] = "4" }, "retry_count 4"},
		{"TQP-2", func(w *world) { w.lives["dead"].seen = w.lives["dead"].seen[1:] }, "the handler saw attempts [2 3 4]"},
		{"TQP-2", func(w *world) { w.lives["dead"].task.LastErrorCode = nil }, `has code ""`},
		{"TQP-2", func(w *world) { w.lives["dead"].events[2].Type = "task.progress" }, "2 events task.retry_scheduled"},
		{"TQP-3", func(w *world) { w.lives["lost"].of(protocol.EventReclaimed).Data = []byte(`{"original_consumer":"x"}`) }, "task.reclaimed says"},
		{"TQP-3", func(w *world) { w.lives["lost"].of(protocol.EventReclaimed).Type = "task.progress" }, "no task.reclaimed"},
		{"TQP-3", func(w *world) {
			e := w.lives["lost"].of(protocol.EventReclaimed)
			e.OccurredAt = w.lives["lost"].events[1].OccurredAt
		}, "before the visibility timeout"},
		{"TQP-3", func(w *world) { w.lives["lost"].task.Interruptions = 0 }, "0 interruptions"},
		{"TQP-3", func(w *world) { s := w.lives["lost"]; s.seen[1].Delivery = 1 }, "under a later delivery"},
		{"TQP-4", func(w *world) { w.calls = 2 }, "called 2 times"},
		{"TQP-4", func(w *world) { w.calls = 0 }, "called 0 times"},
		{"TQP-4", func(w *world) { w.receipts[2] = "b" }, "want the same one"},
		{"TQP-4", func(w *world) { w.lives["effect"].seen = w.lives["effect"].seen[:2]; w.receipts = w.receipts[:2] }, "at least three"},
		{"RP-004", func(w *world) { w.gate.Results[3].Passed = false }, "RP-004 failed"},
		{"RP-004", func(w *world) { w.gate.Results[3].Wrong = []string{"no dlq_id"} }, "no dlq_id"},
		{"RP-004", func(w *world) { w.gate.Results = w.gate.Results[:3] }, "was not run"},
		{"B2-8.1", func(w *world) { w.job.status = "done" }, "has status done"},
		{"B2-8.1", func(w *world) { w.job.key = "" }, "has retry_count 0"},
		{"B2-8.1", func(w *world) { w.lives["success"].events[1].Status = "interrupted" }, "follows"},
		{"B2-8.1", func(w *world) { e := w.lives["success"].events; e[1].Status, e[2].PreviousStatus = "queued", "queued" }, "went from queued to succeeded"},
		{"B2-8.2", func(w *world) { w.lives["three"].events[2].BackoffDelayMs.Value++ }, "recomputed"},
		{"B2-8.2", func(w *world) { w.lives["three"].task.RetryCount = 2 }, "retry_count 2"},
		{"B2-8.2", func(w *world) { w.lives["three"].events[2].Data = []byte(`{"delay_source":"retry_after"}`) }, "came from a policy"},
		{"B2-8.2", func(w *world) { s := w.lives["three"]; s.events = append(s.events[:2:2], s.events[3:]...) }, "can't be replayed"},
		{"B2-8.3", func(w *world) { s := w.lives["dead"]; s.events[len(s.events)-2].Status = "dlq_pending" }, "it went queued"},
		{"B2-8.3", func(w *world) { w.lives["dead"].dead = nil }, "no dead letter"},
		{"B2-8.3", func(w *world) { w.lives["dead"].dead.RecordedAt = nil }, "no dead letter"},
		{"B2-8.3", func(w *world) { w.lives["dead"].seen = nil }, "failed 0 times"},
		{"MEN-transitions", func(w *world) { w.lives["cancelled3"] = w.lives["cancelled"] }, "running->cancelled never happened"},
		{"MEN-transitions", func(w *world) { w.lives["once"].states[1].Payload.ToState = "pending" }, "ready->pending is no legal transition"},
		{"MEN-transitions", func(w *world) { w.lives["once"].states[0].Payload.ToState = "running" }, "begins as running"},
		{"MEN-transitions", func(w *world) { s := w.lives["once"]; s.states = s.states[:2] }, `ends as "running"`},
		{"MEN-attempts", func(w *world) { w.lives["dead"].task.Attempt = 5 }, "in attempt 5"},
		{"MEN-attempts", func(w *world) { w.lives["dead"].task.LastErrorReason.Value = "boom" }, "does not name TASK_EXECUTION_FAILED"},
		{"MEN-attempts", func(w *world) { w.lives["dead"].seen[0].Attempt = 0 }, "saw attempts [0 2 3 4]"},
		{"MEN-create", func(w *world) { w.made["timeout_ms"] = 1 }, "timeout_ms is 1"},
		{"MEN-create", func(w *world) { delete(w.made, "idempotency_scope") }, "idempotency_scope is <nil>"},
		{"MEN-create", func(w *world) { w.lives["scheduled"].task.Payload = []byte("[]") }, "the payload is []"},
		{"MEN-create", func(w *world) {
			w.at = w.at.Add(time.Hour)
			w.lives["scheduled"].task.ScheduledAt = timestamppb.New(w.at)
		}, "before its time"},
		{"MEN-create", func(w *world) { w.lives["scheduled"].task.ScheduledAt = nil }, "scheduled_at is"},
		{"MEN-event", func(w *world) { w.state = strings.Replace(w.state, `"source"`, `"origin"`, 1) }, "the event has"},
		{"MEN-event", func(w *world) { w.state = strings.Replace(w.state, `"attempt":3`, `"attempt":"3"`, 1) }, "payload.attempt string"},
		{"MEN-event", func(w *world) { w.state = strings.Replace(w.state, `"attempt":3`, `"attempt":2`, 1) }, "want " + menEventExample},
		{"MEN-event", func(w *world) { w.state = strings.Replace(w.state, `"running"`, `"ready"`, 1) }, "want " + menEventExample},
		{"MEN-event", func(w *world) { w.state = "null" }, "is no JSON object"},
		{"MEN-idempotent-hit", func(w *world) { w.hit = strings.Replace(w.hit, `"idempotent_hit":true`, `"idempotent_hit":false`, 1) }, "the reply is"},
		{"MEN-idempotent-hit", func(w *world) { w.hit = strings.Replace(w.hit, `"started_at":null,`, ``, 1) }, "no task.started_at null"},
		{"MEN-idempotent-hit", func(w *world) { w.hit = strings.Replace(w.hit, `"last_error_code":null`, `"last_error_code":""`, 1) }, "no task.last_error_code null"},
		{"MEN-idempotent-hit", func(w *world) { w.status = 409 }, "answered with 409"},
		{"MEN-idempotent-hit", func(w *world) { w.dup = `{"code":"TASK_DUPLICATE","field":"type"}` }, "want 409, TASK_DUPLICATE about payload"},
		{"P3C-timeout", func(w *world) { w.lives["timeout"] = w.lives["once"] }, "no task.retry_scheduled with TASK_TIMEOUT"},
		{"P3C-timeout", func(w *world) { w.lives["timeout"] = w.lives["success"] }, "the run went queued -> running -> succeeded"},
		{"P3C-restart", func(w *world) { w.lives["lost"].task.Interruptions = 2 }, "2 interruptions"},
		{"P3C-restart", func(w *world) { w.lives["lost"] = w.lives["once"] }, "the run went"},
		{"P3C-fields", func(w *world) { w.runs[1].NextRetryAt = nil }, "is retry_scheduled with next_retry_at"},
		{"P3C-fields", func(w *world) { w.runs[0].NextRetryAt = w.runs[1].NextRetryAt }, "is failed with next_retry_at"},
		{"P3C-fields", func(w *world) { w.runs[1].IdempotencyKey = w.runs[0].IdempotencyKey }, "that of two runs"},
		{"P3C-fields", func(w *world) { w.runs = w.runs[:1] }, "has 1 runs"},
		{"P3C-fields", func(w *world) { w.runs[0].Attempt = 0 }, "run 1 of task"},
		{"P3C-fields", func(w *world) { w.runs[0].RunStatus = "succeeded" }, "its log says failed"},
		{"P3C-events", func(w *world) { w.events[0].Payload = []byte(`{"run_id":""}`) }, "has [run_id]"},
		{"P3C-events", func(w *world) { w.events[1].TraceID = "mine" }, "has trace_id mine"},
		{"P3C-events", func(w *world) { w.events = w.events[:2] }, "show [[ queued] [queued running]]"},
		{"P3C-events", func(w *world) { w.events[0].EventType = "task.created" }, "an event task.created"},
		{"ASTER-replay", func(w *world) { w.lives["three"].events[4].BackoffDelayMs.Value-- }, "recomputed"},
		{"ASTER-replay", func(w *world) { w.lives["three"].seen = w.lives["three"].seen[1:] }, "the worker saw [2 3 4]"},
		{"ASTER-replay", func(w *world) { w.again = w.again[:len(w.again)-1] }, "two replays differ"},
		{"ASTER-replay", func(w *world) { w.lives["three"].task.Attempt = 3 }, "the task is succeeded in attempt 3"},
		{"ASTER-no-retry", func(w *world) { w.figures.latency[0][1] = 100 * time.Millisecond }, "p99 is 100ms"},
		{"ASTER-no-retry", func(w *world) { w.figures.latency[0] = nil }, "nothing was measured"},
		{"ASTER-retry-three", func(w *world) { w.figures.attempt[3][1] = 11 * time.Millisecond }, "takes 10.0 % longer"},
	} {
		w := newWorld(t)
		tt.change(w)
		var f finding
		if judges[tt.line](w, &f); !strings.Contains(strings.Join(f.wrong, "; "), tt.want) || f.unsure {
			t.Errorf("%d: %s: %q, want %q", i, tt.line, f.wrong, tt.want)
		}
	}
}

// A figure that was missed on a busy machine is neither a pass nor a fail; one
// that was reached is a pass.
func TestBusyMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.figures.slowed = 2 * busyShare
	var f finding
	if w.figures.judge(&f, 1); len(f.wrong) > 0 || f.unsure {
		t.Errorf("reached: %+v", f)
	}
	w.figures.latency[1][1] = time.Second
	if w.figures.judge(&f, 1); len(f.wrong) == 0 || !f.unsure {
		t.Errorf("missed: %+v", f)
	}
}

func TestSelected(t *testing.T) {
	t.Parallel()
	for only, want := range map[string]int{"": 29, "TQP": 5, "tqp-1": 1, "RP,B2": 9, "ASTER-retry": 2, "MEN-idempotent-hit": 1, "P3C,TQP-3": 6} {
		var list []string
		if only != "" {
			list = strings.Split(only, ",")
		}
		if cs, err := selected(list); err != nil || len(cs) != want {
			t.Errorf("%q: %d lines, want %d; error %v", only, len(cs), want, err)
		}
	}
	for _, bad := range []string{"nonsense", ",", "TQP-5"} {
		if _, err := selected(strings.Split(bad, ",")); err == nil {
			t.Errorf("%q selects something", bad)
		}
	}
	if slow, err := Slow(nil); err != nil || fmt.Sprint(slow) != "[TQP-3 TQP-4 P3C-restart]" {
		t.Errorf("slow: %v, error %v", slow, err)
	}
	// Longer than the lines' own times, which are what tells a failure.
	for want, o := range map[time.Duration]Options{
		90 * time.Second: {Only: []string{"RP"}, VisibilityTimeout: time.Minute}, 180 * time.Second: {Only: []string{"TQP-3"}, VisibilityTimeout: time.Minute},
		216 * time.Second: {VisibilityTimeout: time.Minute}, 540 * time.Second: {}, 50 * time.Second: {Only: []string{"MEN"}, LineTimeout: 20 * time.Second},
	} {
		if got := DefaultTimeout(o); got != want {
			t.Errorf("%+v: %s, want %s", o, got, want)
		}
	}
}
