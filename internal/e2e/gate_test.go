package e2e

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/internal/gate"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

const internalJobs = "/api/v1/internal/jobs"

// post returns the status and the body of a POST of JSON.
func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	res, err := (&http.Client{Timeout: testkit.Deadline}).Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// The acceptance as a developer runs it: dev in one terminal, verify --gate-b2
// in another.
func TestGateB2OnDev(t *testing.T) {
	t.Parallel()
	addr := freeAddr(t)
	server := "http://" + addr
	d := start(t, "orchestrator", []string{"PENSTOCK_SERVER_LISTEN=" + addr, "PENSTOCK_LOG_LEVEL=warn"}, "dev", "--ephemeral")
	d.says(t, "Ctrl-C")
	waitReady(t, addr)
	hint := regexp.MustCompile(`Accept: +orchestrator (verify --gate-b2 --server \S+ --data-dir \S+)\n`).FindStringSubmatch(d.out.String())
	if hint == nil {
		t.Fatalf("dev does not say how to run the acceptance:\n%s", d.out)
	}
	args := strings.Fields(hint[1])
	out := run1(t, 0, args...)
	for _, want := range []string{
		`RP-001 +PASS +0 +[0-9a-f-]{36} +gate-b2-[0-9a-f]{8}-rp-001 +queued -> running -> succeeded\n`,
		`RP-002 +PASS +1 .*rp-002 +queued -> running -> retrying -> running -> succeeded\n`,
		`RP-003 +PASS +3 .*rp-003 +queued -> running -> retrying -> running -> retrying -> running -> retrying -> running -> succeeded\n`,
		`RP-004 +PASS +3 .*rp-004 +queued -> running -> retrying -> running -> retrying -> running -> retrying -> running -> dlq_pending -> dlq_recorded -> failed\n`,
		` dlq_id +[0-9a-f-]{36}\n`,
		`RP-005 +PASS +0 .*rp-005 +queued -> running -> succeeded\n`,
		` error_code +WF_STATE_TRANSITION_INVALID\n`,
		`Gate B-2: 5 of 5 replays passed`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the output has no %q:\n%s", want, out)
		}
	}
	var r gate.Report
	if err := json.Unmarshal([]byte(run1(t, 0, append(args, "-o", "json")...)), &r); err != nil || !r.Passed || len(r.Results) != 5 {
		t.Errorf("as JSON: %+v, %v", r, err)
	}
	// The internal interface is on.
	code, body := post(t, server+internalJobs, `{"job_type":"t"}`)
	var job struct {
		JobID string `json:"job_id"`
	}
	if err := json.Unmarshal([]byte(body), &job); err != nil || code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := post(t, server+internalJobs+"/"+job.JobID+"/run", ""); code != http.StatusOK || !strings.Contains(body, `"status_transition":"queued -> running -> succeeded"`) {
		t.Errorf("%d %s", code, body)
	}
	if out := run1(t, 0, "verify", "--data-dir", args[len(args)-1]); !strings.Contains(out, "clean") {
		t.Errorf("verify: %s", out)
	}
}

// The internal interface is off where nobody asked for it, and in dev if it is
// configured so.
func TestInternalJobsAreOffUnlessEnabled(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 20 * time.Second}
	for off, begin := range map[string]func(addr string){
		"serve": func(addr string) { s.orchestrator(addr) },
		"dev": func(addr string) {
			start(t, "orchestrator", []string{
				"PENSTOCK_SERVER_LISTEN=" + addr, "PENSTOCK_POSTGRES_URL=" + s.PostgresURL, "PENSTOCK_REDIS_URL=" + s.RedisURL,
				"PENSTOCK_INTERNAL_JOBS_ENABLED=false",
			}, "dev")
		},
	} {
		addr := freeAddr(t)
		begin(addr)
		waitReady(t, addr)
		if code, body := post(t, "http://"+addr+internalJobs, `{"job_type":"t"}`); code != http.StatusNotFound || !strings.Contains(body, "nothing at this path") {
			t.Errorf("%s: %d %s", off, code, body)
		}
	}
}

// fewRetries stands between the gate and an orchestrator, and makes every task
// one that is retried once only.
func fewRetries(t *testing.T, addr string) (server string) {
	t.Helper()
	to, err := url.Parse("http://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == penstockv1connect.TaskServiceEnqueueBatchProcedure {
			m := &penstockv1.EnqueueBatchRequest{}
			body, err := io.ReadAll(r.Body)
			if err == nil {
				err = proto.Unmarshal(body, m)
			}
			for _, q := range m.Tasks {
				q.MaxRetries = proto.Int32(1)
			}
			if body, _ = proto.Marshal(m); err != nil {
				t.Error(err)
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// A system that does not do what the document says is told so, by exit code 1.
func TestGateB2Fails(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 20 * time.Second}
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	p := start(t, "orchestrator", []string{"PENSTOCK_REDIS_URL=" + s.RedisURL, "PENSTOCK_SERVER=" + fewRetries(t, addr)}, "verify", "--gate-b2")
	if code := p.wait(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, want := range []string{
		`RP-001 +PASS`, `RP-002 +PASS`, `RP-003 +FAIL +1 `, `RP-004 +FAIL +1 `, `RP-005 +PASS`, ` wrong +retry_count is 1, want 3\n`,
		`Gate B-2: 3 of 5 replays passed`, `orchestrator: gate B-2: 2 of 5 replays failed`,
	} {
		if !regexp.MustCompile(want).MatchString(p.out.String()) {
			t.Errorf("the output has no %q:\n%s", want, p.out)
		}
	}
	testkit.VerifyLog(t, s.Stores)
}

// TestAcceptanceTQP2 is the second acceptance of the task queue protocol: a task
// that fails is retried up to MAX_RETRIES and then becomes a dead letter, and the
// event log is complete.
func TestAcceptanceTQP2(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 20 * time.Second}
	addr := freeAddr(t)
	s.orchestrator(addr, "PENSTOCK_RETRY_BASE=10ms", "PENSTOCK_RETRY_MAX_BACKOFF=100ms", "PENSTOCK_RETRY_JITTER_MAX=5ms")
	waitReady(t, addr)
	s.worker(injectConfig)
	c := testkit.Client(t, "http://"+addr)
	const payload = `{"mode":"transient_error","text":"bank away"}`
	const again = "task.claimed task.retry_scheduled "
	task := s.ends(c, s.injected(c, payload), "failed", "task.created "+again+again+again+"task.claimed task.dlq task.dlq task.failed")
	if task.RetryCount != 3 || task.MaxRetries != 3 || task.LastErrorCode.GetValue() != "TASK_RETRY_EXHAUSTED" || task.DlqId == "" {
		t.Errorf("%v", task)
	}
	db := s.SQL(t)
	id, err := protocol.ParseID(task.TaskId)
	if err != nil {
		t.Fatal(err)
	}
	var items int
	var dlqID pgid.ID
	var stored string
	if err := db.QueryRow(t.Context(), "SELECT count(*) OVER (), dlq_id, payload::text FROM dlq_items").Scan(&items, &dlqID, &stored); err != nil ||
		items != 1 || protocol.ID(dlqID).String() != task.DlqId || stored != payload {
		t.Errorf("%d dead letters, %s with payload %s (%v); want one, %s", items, protocol.ID(dlqID), stored, err, task.DlqId)
	}
	entries, err := s.Redis(t).XRange(t.Context(), protocol.StreamDLQ, "-", "+").Result()
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d entries of stream:dlq (%v), want 1", len(entries), err)
	}
	entry := entries[0].Values
	for name, want := range map[string]string{
		"task_id": task.TaskId, "tool_name": "inject", "payload": payload, "retry_count": "3", "dlq_id": task.DlqId,
	} {
		if entry[name] != want {
			t.Errorf("stream:dlq: %s is %q, want %q", name, entry[name], want)
		}
	}
	if msg, _ := entry["error"].(string); !strings.Contains(msg, "bank away") {
		t.Errorf("stream:dlq: error is %q", msg)
	}
	failedAt, _ := entry["failed_at"].(string)
	if at, err := time.Parse(time.RFC3339Nano, failedAt); err != nil || time.Since(at).Abs() > testkit.Deadline {
		t.Errorf("stream:dlq: failed_at is %q", failedAt)
	}
	rows, err := db.Query(t.Context(), "SELECT seq FROM event_log WHERE task_id = $1 AND error_code IS NOT NULL ORDER BY seq", pgid.ID(id))
	if err != nil {
		t.Fatal(err)
	}
	var failures []int
	for rows.Next() {
		var seq int
		if err := rows.Scan(&seq); err != nil {
			t.Fatal(err)
		}
		failures = append(failures, seq)
	}
	if rows.Err() != nil || !slices.Equal(failures, []int{3, 5, 7, 9, 10, 11}) { // each failed attempt, and the steps of the dead letter
		t.Errorf("events %v have an error code (%v)", failures, rows.Err())
	}
	testkit.VerifyLog(t, s.Stores)
}
