package internaljobs_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/internaljobs"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// The three ways to run a job.
const (
	success   = ""
	transient = "?transient_fail=true"
	force     = "?force_fail=true"
)

// env is one orchestrator that has the interface.
type env struct {
	testkit.Stores
	url string
	db  *pgx.Conn
}

func newEnv(t *testing.T, change ...func(*config.Orchestrator)) *env {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.InternalJobs.Enabled = true
	cfg.Retry.MaxRetries = 7 // jobs have their own
	for _, f := range change {
		f(&cfg)
	}
	e := &env{Stores: s, url: testkit.StartOrchestrator(t, cfg).URL, db: s.SQL(t)}
	testkit.Eventually(t, "ready", func() (bool, string) {
		code, _, body := e.send(t, http.MethodGet, "/readyz", "")
		return code == http.StatusOK, string(body)
	})
	return e
}

var caller = &http.Client{Timeout: testkit.Deadline, Transport: &http.Transport{DisableKeepAlives: true}}

// send makes a call; a body is sent as JSON.
func (e *env) send(t *testing.T, method, path, body string) (int, http.Header, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, e.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	res, err := caller.Do(r)
	if err != nil {
		t.Error(err)
		return 0, nil, nil
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, res.Header, b
}

// answer decodes a reply, which must have all of the interface's names and no
// others.
func answer(t *testing.T, body []byte) *internaljobs.Job {
	t.Helper()
	j := &internaljobs.Job{}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(j); err != nil {
		t.Errorf("%v in %s", err, body)
	}
	var names map[string]any
	_ = json.Unmarshal(body, &names)
	for _, n := range []string{
		"job_id", "tenant_id", "job_type", "status", "retry_count", "idempotency_key", "dlq_id", "trace_id", "error_code", "status_transition",
	} {
		if _, ok := names[n]; !ok {
			t.Errorf("the reply has no %s: %s", n, body)
		}
	}
	return j
}

const jobs = internaljobs.Prefix + "jobs"

// job makes a job and returns its id.
func (e *env) job(t *testing.T) string {
	t.Helper()
	code, _, body := e.send(t, http.MethodPost, jobs, `{"job_type":"t","payload_json":{"n":1}}`)
	if code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	return answer(t, body).JobID
}

// run runs a job and returns the reply, whose status must be code.
func (e *env) run(t *testing.T, code int, job, how string) *internaljobs.Job {
	t.Helper()
	got, _, body := e.send(t, http.MethodPost, jobs+"/"+job+"/run"+how, "")
	if got != code {
		t.Fatalf("run%s: %d, want %d: %s", how, got, code, body)
	}
	return answer(t, body)
}

func (e *env) get(t *testing.T, job string) *internaljobs.Job {
	t.Helper()
	code, _, body := e.send(t, http.MethodGet, jobs+"/"+job, "")
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	return answer(t, body)
}

// report moves a job as the outcome of a worker would: nothing else makes it
// running and leaves it so.
func (e *env) report(t *testing.T, job string, kind protocol.OutcomeKind, want string) {
	t.Helper()
	o := &protocol.Outcome{ID: parse(t, job), Delivery: 1, Kind: kind, WorkerID: "w", StartedAt: time.Now(), Delay: -1}
	if a := e.Streams(t).Append(t.Context(), protocol.StreamResult, [][]any{o.Values()})[0]; a.Err != nil {
		t.Fatal(a.Err)
	}
	testkit.Eventually(t, "the job is "+want, func() (bool, string) {
		j := e.get(t, job)
		return j.Status == want, j.Status
	})
}

func (e *env) claim(t *testing.T, job string) {
	t.Helper()
	e.report(t, job, protocol.OutcomeClaimed, "running")
}

func parse(t *testing.T, job string) protocol.ID {
	t.Helper()
	id, err := protocol.ParseID(job)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func (e *env) events(t *testing.T, job, want string) {
	t.Helper()
	if got := testkit.EventTypes(t, e.Stores, parse(t, job)); got != want {
		t.Errorf("job %s: events %q, want %q", job, got, want)
	}
}

// text is what may be null.
func text(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

// stored describes a task and what belongs to it.
func (e *env) stored(t *testing.T, job string) (out string) {
	t.Helper()
	for _, sql := range []string{
		"SELECT to_jsonb(t) - 'updated_at' - 'event_seq' - 'rejected_delivery' FROM tasks t WHERE id = $1::uuid",
		"SELECT to_jsonb(d) FROM dlq_items d WHERE task_id = $1::uuid",
	} {
		rows, err := e.db.Query(t.Context(), sql, job)
		if err != nil {
			t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[json.RawMessage])
		if err != nil {
			t.Fatal(err)
		}
		out += fmt.Sprintf("%s\n", all)
	}
	return out
}
