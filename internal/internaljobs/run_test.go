package internaljobs_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-dev/penstock/internal/internaljobs"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Every way through the state machine, call by call.
func TestRuns(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const toFailed = " -> dlq_pending -> dlq_recorded -> failed"
	const retry, dead = " task.claimed task.retry_scheduled", " task.dlq task.dlq task.failed"
	for name, tt := range map[string]struct {
		running bool
		calls   []string
		// moves has one entry for each call.
		moves  []string
		events string
		retry  int
		code   string // of the last failure
	}{
		"success":                   {calls: []string{success}, moves: []string{"queued -> running -> succeeded"}, events: "task.created task.claimed task.succeeded", code: "null"},
		"success of a running job":  {running: true, calls: []string{success}, moves: []string{"running -> succeeded"}, events: "task.created task.claimed task.succeeded", code: "null"},
		"one retry":                 {calls: []string{transient, success}, moves: []string{"queued -> running -> retrying", "retrying -> running -> succeeded"}, events: "task.created" + retry + " task.claimed task.succeeded", retry: 1, code: "null"},
		"a running job that fails":  {running: true, calls: []string{transient, success}, moves: []string{"running -> retrying", "retrying -> running -> succeeded"}, events: "task.created" + retry + " task.claimed task.succeeded", retry: 1, code: "null"},
		"three retries":             {calls: []string{transient, transient, transient, success}, moves: []string{"queued -> running -> retrying", "retrying -> running -> retrying", "retrying -> running -> retrying", "retrying -> running -> succeeded"}, events: "task.created" + retry + retry + retry + " task.claimed task.succeeded", retry: 3, code: "null"},
		"four failures":             {calls: []string{transient, transient, transient, transient}, moves: []string{"queued -> running -> retrying", "retrying -> running -> retrying", "retrying -> running -> retrying", "retrying -> running" + toFailed}, events: "task.created" + retry + retry + retry + " task.claimed" + dead, retry: 3, code: "TASK_RETRY_EXHAUSTED"},
		"forced":                    {calls: []string{force}, moves: []string{"queued -> running" + toFailed}, events: "task.created task.claimed" + dead, code: "TASK_EXECUTION_FAILED"},
		"forced while running":      {running: true, calls: []string{force}, moves: []string{"running" + toFailed}, events: "task.created task.claimed" + dead, code: "TASK_EXECUTION_FAILED"},
		"forced while retrying":     {calls: []string{transient, force}, moves: []string{"queued -> running -> retrying", "retrying -> running" + toFailed}, events: "task.created" + retry + " task.claimed" + dead, retry: 1, code: "TASK_EXECUTION_FAILED"},
		"a parameter that is false": {calls: []string{"?force_fail=false&transient_fail=true", "?transient_fail=false"}, moves: []string{"queued -> running -> retrying", "retrying -> running -> succeeded"}, events: "task.created" + retry + " task.claimed task.succeeded", retry: 1, code: "null"},
	} {
		t.Run(name, func(t *testing.T) {
			job := e.job(t)
			if tt.running {
				e.claim(t, job)
			}
			var last *internaljobs.Job
			for i, how := range tt.calls {
				last = e.run(t, http.StatusOK, job, how)
				words := strings.Split(tt.moves[i], " -> ")
				if last.StatusTransition != tt.moves[i] || last.Status != words[len(words)-1] || last.JobID != job {
					t.Errorf("call %d: %s, %q; want %q", i+1, last.Status, last.StatusTransition, tt.moves[i])
				}
			}
			if last.RetryCount != tt.retry || text(last.ErrorCode) != tt.code {
				t.Errorf("retry_count %d, error_code %s; want %d, %s", last.RetryCount, text(last.ErrorCode), tt.retry, tt.code)
			}
			wantDLQ := "null"
			if last.Status == "failed" {
				wantDLQ = protocol.DLQID(parse(t, job)).String()
			}
			if text(last.DLQID) != wantDLQ {
				t.Errorf("dlq_id %s, want %s", text(last.DLQID), wantDLQ)
			}
			e.events(t, job, tt.events)
			e.whole(t, job, tt.moves)
		})
	}
	testkit.VerifyLog(t, e.Stores)
	var workers int
	if err := e.db.QueryRow(t.Context(), "SELECT count(*) FROM event_log WHERE type <> 'task.created' AND actor NOT IN ('internal-jobs', 'deadletter') AND worker_id IS NULL").Scan(&workers); err != nil || workers != 0 {
		t.Errorf("%d events of runs have another actor (%v)", workers, err)
	}
}

// whole checks that GET tells the same story as all calls together.
func (e *env) whole(t *testing.T, job string, moves []string) {
	t.Helper()
	var want []string
	for _, m := range moves {
		words := strings.Split(m, " -> ")
		if len(want) > 0 {
			words = words[1:]
		}
		want = append(want, words...)
	}
	if want[0] == "running" {
		want = append([]string{"queued"}, want...)
	}
	j := e.get(t, job)
	if j.StatusTransition != strings.Join(want, " -> ") || j.Status != want[len(want)-1] || j.TenantID != "default" || j.JobType != "t" ||
		j.IdempotencyKey != job || j.TraceID == "" || string(j.PayloadJSON) != `{"n":1}` {
		t.Errorf("%+v; want %v", j, want)
	}
}

// A call in the wrong state is refused, changes nothing, and is recorded once.
func TestWrongState(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for state, first := range map[string]string{"succeeded": success, "failed": force} {
		job := e.job(t)
		e.run(t, http.StatusOK, job, first)
		before := e.stored(t, job)
		for _, how := range []string{success, transient, force, success} {
			j := e.run(t, http.StatusConflict, job, how)
			if j.JobID != job || j.Status != state || j.RetryCount != 0 || text(j.ErrorCode) != "WF_STATE_TRANSITION_INVALID" || j.StatusTransition != "" ||
				!strings.Contains(j.Message, "the job is "+state) || (j.DLQID != nil) != (state == "failed") {
				t.Errorf("%s: %+v", state, j)
			}
		}
		if after := e.stored(t, job); after != before {
			t.Errorf("refused calls changed the job:\n%s\n%s", before, after)
		}
		end := map[string]string{"succeeded": "task.succeeded", "failed": "task.dlq task.dlq task.failed"}[state]
		e.events(t, job, "task.created task.claimed "+end+" task.transition_rejected")
		var code, actor string
		if err := e.db.QueryRow(t.Context(), "SELECT error_code, actor FROM event_log WHERE task_id = $1::uuid AND type = 'task.transition_rejected'", job).Scan(&code, &actor); err != nil ||
			code != "TASK_INVALID_TRANSITION" || actor != "internal-jobs" {
			t.Errorf("recorded with %s by %s (%v)", code, actor, err)
		}
		if j := e.get(t, job); strings.Contains(j.StatusTransition, state+" -> ") {
			t.Errorf("a refused call shows in the history: %s", j.StatusTransition)
		}
	}
	// Also where the same was reported before: a call is no repeat of it.
	job := e.job(t)
	e.report(t, job, protocol.OutcomeSucceeded, "succeeded")
	e.run(t, http.StatusConflict, job, success)
	e.events(t, job, "task.created task.claimed task.succeeded task.transition_rejected")
	_, _, metrics := e.send(t, http.MethodGet, "/metrics", "")
	for _, want := range []string{
		`penstock_internal_job_runs_total{run="succeed",verdict="applied"} 1`, `penstock_internal_job_runs_total{run="succeed",verdict="rejected"} 5`,
		`penstock_internal_job_runs_total{run="force_fail",verdict="rejected"} 2`, `penstock_internal_job_runs_total{run="transient_fail",verdict="rejected"} 2`,
	} {
		if !strings.Contains(string(metrics), want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	testkit.VerifyLog(t, e.Stores)
}

// Of 20 calls at once exactly those take effect that the state machine has room
// for, and every other one is refused.
func TestRaces(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	const calls = 20
	race := func(how func(i int) string) (job string, moved []*internaljobs.Job) {
		job = e.job(t)
		var g sync.WaitGroup
		var mu sync.Mutex
		start := make(chan struct{})
		refused := 0
		for i := range calls {
			g.Go(func() {
				<-start
				code, _, body := e.send(t, http.MethodPost, jobs+"/"+job+"/run"+how(i), "")
				j := answer(t, body)
				mu.Lock()
				defer mu.Unlock()
				switch code {
				case http.StatusOK:
					moved = append(moved, j)
				case http.StatusConflict:
					refused++
				default:
					t.Errorf("%d %s", code, body)
				}
			})
		}
		close(start)
		g.Wait()
		if len(moved)+refused != calls {
			t.Errorf("%d calls moved the job, %d were refused", len(moved), refused)
		}
		return job, moved
	}
	job, moved := race(func(int) string { return success })
	if len(moved) != 1 {
		t.Errorf("%d calls succeeded, want 1", len(moved))
	}
	e.events(t, job, "task.created task.claimed task.succeeded task.transition_rejected")

	job, moved = race(func(int) string { return transient })
	counts := map[string]int{}
	for _, j := range moved {
		counts[fmt.Sprint(j.Status, j.RetryCount)]++
	}
	if fmt.Sprint(counts) != "map[failed3:1 retrying1:1 retrying2:1 retrying3:1]" {
		t.Errorf("got %v", counts)
	}
	const retry = "task.claimed task.retry_scheduled "
	got := testkit.EventTypes(t, e.Stores, parse(t, job))
	if len(moved) != 4 || strings.ReplaceAll(got, " task.transition_rejected", "") != "task.created "+retry+retry+retry+"task.claimed task.dlq task.dlq task.failed" {
		t.Errorf("%d calls took effect; events %s", len(moved), got)
	}
	if n := strings.Count(got, "task.transition_rejected"); n != 1 {
		t.Errorf("%d refusals are recorded, want 1", n)
	}

	// All three at once: whoever ends it first ends it for all.
	for range 5 {
		job, moved = race(func(i int) string { return []string{success, transient, force}[i%3] })
		ended := 0
		for _, j := range moved {
			if j.Status == "succeeded" || j.Status == "failed" {
				ended++
			}
		}
		if ended != 1 || e.get(t, job).RetryCount != len(moved)-1 {
			t.Errorf("%d calls moved the job, %d of them ended it: %+v", len(moved), ended, e.get(t, job))
		}
	}
	testkit.VerifyLog(t, e.Stores)
}
