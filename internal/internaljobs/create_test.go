package internaljobs_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// problem is a REST error.
type problem struct {
	Status              int
	Title, Detail, Code string
	Field               string
	Retryable           bool
}

func (e *env) problem(t *testing.T, method, path, body string) problem {
	t.Helper()
	code, h, b := e.send(t, method, path, body)
	var p problem
	if err := json.Unmarshal(b, &p); err != nil || p.Status != code || h.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s %s: %d %s is no problem", method, path, code, b)
	}
	return p
}

func TestCreate(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	code, h, body := e.send(t, http.MethodPost, jobs, `{"job_type":"report:daily","tenant_id":"acme","payload_json":{"b":[1,2.50]},"idempotency_key":"k1"}`)
	j := answer(t, body)
	if code != http.StatusCreated || h.Get("Content-Type") != "application/json" || *j.IdempotentHit || j.Status != "queued" || j.RetryCount != 0 ||
		j.StatusTransition != "queued" || j.TenantID != "acme" || j.JobType != "report:daily" || j.IdempotencyKey != "k1" || j.DLQID != nil || j.ErrorCode != nil ||
		!strings.HasPrefix(j.TraceID, "trace-run-"+j.JobID) || string(j.PayloadJSON) != `{"b":[1,2.50]}` || j.CreatedAt.IsZero() {
		t.Errorf("%d %s", code, body)
	}
	// The same key and the same fields, however they are spelled, are the same
	// job, wherever it stands.
	e.run(t, http.StatusOK, j.JobID, transient)
	code, _, body = e.send(t, http.MethodPost, jobs, `{"payload_json": {"b" : [1, 2.50]}, "idempotency_key":"k1", "job_type":"report:daily", "tenant_id":"acme"}`)
	again := answer(t, body)
	if code != http.StatusOK || !*again.IdempotentHit || again.JobID != j.JobID || again.Status != "retrying" || again.RetryCount != 1 ||
		again.StatusTransition != "queued -> running -> retrying" {
		t.Errorf("%d %s", code, body)
	}
	for field, body := range map[string]string{
		"job_type":     `{"job_type":"other","tenant_id":"acme","payload_json":{"b":[1,2.50]},"idempotency_key":"k1"}`,
		"payload_json": `{"job_type":"report:daily","tenant_id":"acme","payload_json":{"b":[1]},"idempotency_key":"k1"}`,
	} {
		if p := e.problem(t, http.MethodPost, jobs, body); p.Status != http.StatusConflict || p.Code != "TASK_DUPLICATE" || p.Field != field {
			t.Errorf("another %s: %+v", field, p)
		}
	}
	// Another tenant's key is another key; without a payload it is null.
	code, _, body = e.send(t, http.MethodPost, jobs, `{"job_type":"t","idempotency_key":"k1"}`)
	if j := answer(t, body); code != http.StatusCreated || j.TenantID != "default" || string(j.PayloadJSON) != "null" {
		t.Errorf("%d %s", code, body)
	}
	testkit.VerifyLog(t, e.Stores)
}

// Ordinary tasks and jobs never stand in for each other.
func TestTasksAreNoJobs(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	c := testkit.Client(t, e.url)
	_, err := c.EnqueueTask(t.Context(), &task.Request{Type: "t", Queue: protocol.QueueInternal})
	if p, ok := err.(*protocol.Error); !ok || p.Code != protocol.CodeInputInvalid || p.Field != "queue" { //nolint:errorlint // as the client promises
		t.Errorf("an ordinary task in the queue of jobs: %v", err)
	}
	three := 3
	ordinary := &task.Request{Type: "t", Payload: json.RawMessage(`1`), Key: "k", MaxRetries: &three}
	got, err := c.EnqueueTask(t.Context(), ordinary)
	if err != nil {
		t.Fatal(err)
	}
	const job = `{"job_type":"t","payload_json":1,"idempotency_key":"k"}`
	if p := e.problem(t, http.MethodPost, jobs, job); p.Code != "TASK_DUPLICATE" || p.Field != "queue" {
		t.Errorf("a job with a task's key: %+v", p)
	}
	testkit.Eventually(t, "the task is in its stream", func() (bool, string) {
		var waits bool
		err := e.db.QueryRow(t.Context(), "SELECT due_at IS NOT NULL FROM tasks WHERE id = $1::uuid", got.TaskID).Scan(&waits)
		return err == nil && !waits, fmt.Sprint(err)
	})
	before := e.stored(t, got.TaskID)
	for method, path := range map[string]string{http.MethodGet: "", http.MethodPost: "/run"} {
		if p := e.problem(t, method, jobs+"/"+got.TaskID+path, ""); p.Status != http.StatusNotFound || p.Code != "TASK_NOT_FOUND" || p.Field != "job_id" {
			t.Errorf("%s an ordinary task: %+v", method, p)
		}
	}
	if after := e.stored(t, got.TaskID); after != before {
		t.Errorf("the task was changed:\n%s\n%s", before, after)
	}
	if code, _, body := e.send(t, http.MethodPost, jobs, strings.ReplaceAll(job, `"k"`, `"k2"`)); code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	ordinary.Key = "k2"
	if _, err := c.EnqueueTask(t.Context(), ordinary); protocol.CodeOf(err) != protocol.CodeDuplicate {
		t.Errorf("a task with a job's key: %v", err)
	}
}

func TestBadCalls(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	job := e.job(t)
	before := e.stored(t, job)
	const none = "0198c0de-0000-7000-8000-000000000001"
	for _, tt := range []struct {
		method, path, body string
		status             int
		field, detail      string
	}{
		{"POST", jobs, `{"job_type":"a b"}`, 400, "job_type", "want only"},
		{"POST", jobs, `{}`, 400, "job_type", "want 1 to 128"},
		{"POST", jobs, `{"job_type":"t","tenant_id":"ä"}`, 400, "tenant_id", "want only"},
		{"POST", jobs, `{"job_type":"t","payload_json":"\u0000"}`, 400, "payload_json", "NUL"},
		{"POST", jobs, `{"job_type":"t","idempotency_key":"\n"}`, 400, "idempotency_key", "control character"},
		{"POST", jobs, `{"job_type":7}`, 400, "job_type", "one JSON object"},
		{"POST", jobs, `{"job_type":"t","queue":"x"}`, 400, "", `unknown field "queue"`},
		{"POST", jobs, `[]`, 400, "", "one JSON object"},
		{"POST", jobs, `{"job_type":"t"`, 400, "", "one JSON object"},
		{"POST", jobs, `{"job_type":"t"} {}`, 400, "", "something follows"},
		{"POST", jobs, "", 415, "", "application/json"},
		{"POST", jobs, `{"job_type":"t","payload_json":"` + strings.Repeat("x", 300_000) + `"}`, 400, "payload_json", "at most 262144"},
		{"POST", jobs, `{"job_type":"` + strings.Repeat("x", 5<<20) + `"}`, 413, "", "larger than"},
		{"POST", jobs + "?a=b", `{"job_type":"t"}`, 400, "", "no query parameters"},
		{"GET", jobs, "", 405, "", "does not take GET"},
		{"GET", jobs + "/" + job + "?a=b", "", 400, "", "no query parameters"},
		{"POST", jobs + "/" + job, "", 405, "", "does not take POST"},
		{"GET", jobs + "/" + none, "", 404, "job_id", none},
		{"GET", jobs + "/x", "", 404, "job_id", `"x"`},
		{"GET", jobs + "/", "", 404, "job_id", `""`},
		{"GET", jobs + "/" + job + "/run", "", 405, "", "does not take GET"},
		{"POST", jobs + "/" + none + "/run", "", 404, "job_id", none},
		{"POST", jobs + "/x/run", "", 404, "job_id", `"x"`},
		{"POST", jobs + "/" + job + "/run?force_fail=true&transient_fail=true", "", 400, "", "exclude each other"},
		{"POST", jobs + "/" + job + "/run?force_fail=1", "", 400, "force_fail", "true or false"},
		{"POST", jobs + "/" + job + "/run?force_fail", "", 400, "force_fail", "true or false"},
		{"POST", jobs + "/" + job + "/run?a%ffb" + strings.Repeat("%e7%94%b2", 30), "", 400, "ab甲甲甲甲甲甲甲甲甲甲甲甲甲甲甲甲甲甲甲甲…", "no parameter"},
		{"POST", jobs + "/" + job + "/run?transient_fail=true&transient_fail=true", "", 400, "transient_fail", "once"},
		{"POST", jobs + "/" + job + "/run?fail=true", "", 400, "fail", "no parameter"},
		{"POST", jobs + "/" + job + "/run?succeed=true", "", 400, "succeed", "no parameter"},
		{"POST", jobs + "/" + job + "/run?%zz", "", 400, "", "malformed"},
		{"POST", jobs + "/" + job + "/run", `{"force_fail":true}`, 400, "", "no body"},
		{"POST", jobs + "/" + job + "/run", strings.Repeat(" ", 100), 400, "", "no body"},
		{"POST", jobs + "/" + job + "/run/x", "", 404, "", "nothing at this path"},
		{"POST", jobs + "x", "", 404, "", "nothing at this path"},
		{"GET", "/api/v1/internal/", "", 404, "", "nothing at this path"},
		{"GET", "/api/v1/internal/tasks", "", 404, "", "nothing at this path"},
	} {
		p := e.problem(t, tt.method, tt.path, tt.body)
		if p.Status != tt.status || p.Field != tt.field || !strings.Contains(p.Detail, tt.detail) || p.Retryable {
			t.Errorf("%s %.200s %.100s: %+v", tt.method, tt.path, tt.body, p)
		}
	}
	if after := e.stored(t, job); after != before {
		t.Errorf("a refused call changed the job:\n%s\n%s", before, after)
	}
	if n := 0; e.db.QueryRow(t.Context(), "SELECT count(*) FROM tasks").Scan(&n) != nil || n != 1 {
		t.Errorf("%d tasks, want 1", n)
	}
	// {} is as good as no body.
	if code, _, body := e.send(t, http.MethodPost, jobs+"/"+job+"/run", "{}\n"); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
}

// Without internal_jobs.enabled, which is off by default, there is no such path.
func TestDisabled(t *testing.T) {
	t.Parallel()
	if config.DefaultOrchestrator().InternalJobs.Enabled {
		t.Error("it is on by default")
	}
	e := newEnv(t, func(c *config.Orchestrator) { c.InternalJobs.Enabled = false })
	for method, path := range map[string]string{http.MethodPost: "", http.MethodGet: "/0198c0de-0000-7000-8000-000000000001"} {
		if p := e.problem(t, method, jobs+path, ""); p.Status != http.StatusNotFound || !strings.Contains(p.Detail, "nothing at this path") {
			t.Errorf("%s: %+v", method, p)
		}
	}
}
