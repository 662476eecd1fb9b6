package enqueue_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
)

// post sends JSON to the REST API and returns the status and the reply.
func post(t *testing.T, url, body string, into any) int {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return res.StatusCode
}

// The request of the scheduling contract, with the type that ours requires, in
// every way to write the same moment; the past is recorded as such.
func TestScheduledAtOverREST(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	url := o.URL + "/api/v1/tasks"
	testkit.Eventually(t, "ready", func() (bool, string) {
		res, err := http.Get(o.URL + "/readyz")
		if err != nil {
			return false, err.Error()
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK, res.Status
	})
	const form = `{"task_id": %q, "type": "notify", "schedule_type": "at", "scheduled_at": %q, "timeout_ms": 30000, "max_retries": 2,
		"idempotency_key": %q, "idempotency_scope": "tenant_a", "payload": {"channel": "dingtalk", "request_id": "req-1"}}`
	type reply struct {
		Hit  bool `json:"idempotent_hit"`
		Task struct {
			ID          string `json:"task_id"`
			State       string `json:"state"`
			ScheduledAt string `json:"scheduled_at"`
		} `json:"task"`
		Code  string `json:"code"`
		Field string `json:"field"`
	}
	next := time.Now().AddDate(1, 0, 0).UTC().Truncate(time.Second)
	for i, at := range []string{
		next.Format(time.RFC3339), next.In(time.FixedZone("", 8*3600)).Format(time.RFC3339), next.In(time.FixedZone("", -12600)).Format("2006-01-02T15:04:05.000-07:00"),
	} {
		var r reply
		status := post(t, url, fmt.Sprintf(form, "task_20260225_0001", at, "order_1001"), &r)
		if got, err := time.Parse(time.RFC3339, r.Task.ScheduledAt); status != http.StatusOK || err != nil || !got.Equal(next) || r.Hit != (i > 0) || r.Task.State != "pending" {
			t.Errorf("%s: status %d, %+v", at, status, r)
		}
	}
	var past reply
	if post(t, url, fmt.Sprintf(form, "past", "2026-02-25T12:00:00+08:00", "order_1002"), &past); past.Task.State != "queued" || past.Task.ScheduledAt != "2026-02-25T04:00:00Z" {
		t.Errorf("in the past: %+v", past)
	}
	db := s.SQL(t)
	var n int
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM event_log WHERE type = 'task.created' AND (data->>'past')::boolean AND (data->>'scheduled_at')::timestamptz = '2026-02-25T04:00:00Z'").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d events tell of the past, %v", n, err)
	}
	const waits = `{"task_id": "past and waits", "type": "notify", "schedule_type": "at", "scheduled_at": "2026-02-25T12:00:00+08:00", "depends_on": [{"task_id": "past"}]}`
	if status := post(t, url, waits, &past); status != http.StatusOK {
		t.Fatalf("status %d, %+v", status, past)
	}
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM event_log WHERE type = 'task.created' AND (data->>'past')::boolean AND (data->>'scheduled_at')::timestamptz = '2026-02-25T04:00:00Z'").Scan(&n); err != nil || n != 2 {
		t.Errorf("%d events tell of the past, %v; one waits for the other", n, err)
	}
	for name, at := range map[string]string{
		"no offset": "2026-02-25T12:00:00", "a date": "2026-02-25", "no such day": "2026-02-30T12:00:00Z", "no such hour": "2026-02-25T25:00:00Z", "words": "tomorrow",
		"far future": "9999-01-01T00:00:00Z", "before 1970": "1969-12-31T23:59:59Z", "year 0": "0000-01-01T00:00:00Z", "empty": "", "a number": "1772020800", "space": "2026-02-25 12:00:00Z",
	} {
		var r reply
		status := post(t, url, fmt.Sprintf(form, "bad", at, "order_1003"), &r)
		if status != http.StatusBadRequest || r.Code != "TASK_INPUT_INVALID" || r.Field != "scheduled_at" {
			t.Errorf("%s: status %d, %+v", name, status, r)
		}
	}
	if err := db.QueryRow(t.Context(), "SELECT count(*) FROM tasks").Scan(&n); err != nil || n != 3 {
		t.Errorf("%d tasks, %v; want 3", n, err)
	}
}

// Keys and scopes that are too long are refused, wherever they are given, and
// nothing is stored, not even a part of them.
func TestLongKeysOverREST(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	testkit.Eventually(t, "ready", func() (bool, string) {
		res, err := http.Get(o.URL + "/readyz")
		if err != nil {
			return false, err.Error()
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK, res.Status
	})
	long := strings.Repeat("k", 10_000)
	send := func(body, header string) (status int, code, field string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, o.URL+"/api/v1/tasks", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if header != "" {
			req.Header.Set("Idempotency-Key", header)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		var reply struct{ Code, Field string }
		if err := json.NewDecoder(res.Body).Decode(&reply); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, reply.Code, reply.Field
	}
	for name, c := range map[string]struct{ body, header, field string }{
		"header":     {`{"type":"x"}`, long, "idempotency_key"},
		"quoted":     {`{"type":"x"}`, `"` + long + `"`, "idempotency_key"},
		"body":       {`{"type":"x","idempotency_key":"` + long + `"}`, "", "idempotency_key"},
		"scope":      {`{"type":"x","idempotency_key":"k","idempotency_scope":"` + long + `"}`, "", "idempotency_scope"},
		"task id":    {`{"type":"x","task_id":"` + long + `"}`, "", "task_id"},
		"two values": {`{"type":"x","idempotency_key":"a"}`, "b", "idempotency_key"},
	} {
		if status, code, field := send(c.body, c.header); status != http.StatusBadRequest || code != "TASK_INPUT_INVALID" || field != c.field {
			t.Errorf("%s: %d %s %s, want TASK_INPUT_INVALID of %s", name, status, code, field, c.field)
		}
	}
	var n int
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM event_log) + (SELECT count(*) FROM idempotency_keys)").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows, %v; want none", n, err)
	}
	if status, code, _ := send(`{"type":"x"}`, strings.Repeat("k", 255)); status != http.StatusOK {
		t.Errorf("a key of 255 bytes: %d %s", status, code)
	}
}
