package gate_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/gate"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/worker"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// system is a running orchestrator.
type system struct {
	testkit.Stores
	url string
}

func newSystem(t *testing.T) system {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Retry.MaxRetries = 9 // the gate brings its own
	sys := system{s, testkit.StartOrchestrator(t, cfg).URL}
	testkit.Eventually(t, "ready", func() (bool, string) {
		res, err := http.Get(sys.url + "/readyz") //nolint:noctx // the server is in this process
		if err != nil {
			return false, err.Error()
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK, res.Status
	})
	return sys
}

func (s system) options(t *testing.T, c *client.Client) gate.Options {
	t.Helper()
	return gate.Options{Client: c, RedisURL: s.RedisURL, Log: testkit.Log(t)}
}

// streams lists the task streams that are left.
func (s system) streams(t *testing.T) []string {
	t.Helper()
	keys, err := s.Redis(t).Keys(t.Context(), protocol.StreamTask+":*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func verdicts(r *gate.Report) string {
	var out []string
	for _, res := range r.Results {
		v := "fail"
		if res.Passed {
			v = "pass"
		}
		out = append(out, res.ReplayID+" "+v)
	}
	return strings.Join(out, ", ")
}

const allPass = "RP-001 pass, RP-002 pass, RP-003 pass, RP-004 pass, RP-005 pass"

// Gates run at the same time, next to other workers, and leave nothing but
// finished tasks.
func TestGates(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) { w.HandleRaw("other", nil) })
	reports := make([]*gate.Report, 3)
	var wg sync.WaitGroup
	for i := range reports {
		wg.Go(func() {
			var err error
			if reports[i], err = gate.Run(t.Context(), s.options(t, testkit.Client(t, s.url))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	queues := map[string]bool{}
	for _, r := range reports {
		queues[r.Queue] = true
		if got := verdicts(r); got != allPass || !r.Passed || r.Left != "" {
			t.Errorf("%s; left %q: %+v", got, r.Left, r)
		}
		for i, want := range []struct {
			retries   int
			path, end string
		}{
			{0, "queued -> running -> succeeded", ""},
			{1, "queued -> running -> retrying -> running -> succeeded", ""},
			{3, "queued -> running -> retrying -> running -> retrying -> running -> retrying -> running -> succeeded", ""},
			{3, "queued -> running -> retrying -> running -> retrying -> running -> retrying -> running -> dlq_pending -> dlq_recorded -> failed", "TASK_RETRY_EXHAUSTED"},
			{0, "queued -> running -> succeeded", "WF_STATE_TRANSITION_INVALID"},
		} {
			got := r.Results[i]
			if got.RetryCount != want.retries || got.StatusTransition != want.path || got.ExpectedTransition != want.path || got.ErrorCode != want.end || len(got.Wrong) > 0 ||
				got.TraceID != r.Queue+"-"+strings.ToLower(got.ReplayID) || got.JobID == "" || (got.DLQID != "") != (i == 3) {
				t.Errorf("%+v", got)
			}
		}
	}
	if len(queues) != len(reports) {
		t.Errorf("queues %v are not of one gate each", queues)
	}
	if left := s.streams(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	var n int
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT count(*) FROM event_log WHERE type = 'task.transition_rejected'").Scan(&n); err != nil || n != len(reports) {
		t.Errorf("%d refusals (%v), want one a gate", n, err)
	}
	testkit.VerifyLog(t, s.Stores)
}

// between changes enqueue requests on their way, or what happens around them:
// that is how a system is broken here.
type between struct {
	change func(*penstockv1.EnqueueRequest)
	after  func()
}

func (b between) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != penstockv1connect.TaskServiceEnqueueBatchProcedure {
		return http.DefaultTransport.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	m := &penstockv1.EnqueueBatchRequest{}
	if err := proto.Unmarshal(body, m); err != nil {
		return nil, err
	}
	for _, q := range m.Tasks {
		b.change(q)
	}
	if body, err = proto.Marshal(m); err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res, err := http.DefaultTransport.RoundTrip(r)
	if b.after != nil {
		b.after()
	}
	return res, err
}

func (s system) broken(t *testing.T, b between) gate.Options {
	t.Helper()
	c, err := client.NewWith(s.url, client.Options{HTTP: &http.Client{Transport: b}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return s.options(t, c)
}

// A system that retries too rarely fails the replays that count retries, and no
// others.
func TestTooFewRetries(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r, err := gate.Run(t.Context(), s.broken(t, between{change: func(q *penstockv1.EnqueueRequest) { q.MaxRetries = proto.Int32(1) }}))
	if err != nil {
		t.Fatal(err)
	}
	if got := verdicts(r); r.Passed || got != "RP-001 pass, RP-002 pass, RP-003 fail, RP-004 fail, RP-005 pass" {
		t.Errorf("%s: %+v", got, r)
	}
	const once = "queued -> running -> retrying -> running -> dlq_pending -> dlq_recorded -> failed"
	for id, want := range map[int][]string{
		2: {"state is failed, want succeeded", "retry_count is 1, want 3", "the event log says: " + once},
		3: {"retry_count is 1, want 3", "the event log says: " + once},
	} {
		if got := r.Results[id]; !slices.Equal(got.Wrong, want) || got.StatusTransition != once {
			t.Errorf("%+v; want %q", got, want)
		}
	}
	if left := s.streams(t); len(left) > 0 || r.Left != "" {
		t.Errorf("left behind: %v, %q", left, r.Left)
	}
}

// Delays that do not follow the policy are found out.
func TestWrongDelays(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	r, err := gate.Run(t.Context(), s.broken(t, between{change: func(q *penstockv1.EnqueueRequest) { q.RetryPolicy.BaseMs = proto.Int64(30) }}))
	if err != nil {
		t.Fatal(err)
	}
	if got := verdicts(r); r.Passed || got != "RP-001 pass, RP-002 fail, RP-003 fail, RP-004 fail, RP-005 pass" {
		t.Errorf("%s: %+v", got, r)
	}
	if w := r.Results[2].Wrong; len(w) != 3 || !strings.HasPrefix(w[0], "the delay before retry 1 is 3") {
		t.Errorf("%q", w)
	}
}

// A task that nobody runs is reported with where it stands, and left.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	o := s.broken(t, between{change: func(q *penstockv1.EnqueueRequest) {
		if strings.HasSuffix(q.TraceId, "rp-005") {
			q.Queue = "nobody"
		}
	}})
	o.Timeout = 15 * time.Second
	r, err := gate.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	last := r.Results[4]
	if got := verdicts(r); r.Passed || got != "RP-001 pass, RP-002 pass, RP-003 pass, RP-004 pass, RP-005 fail" ||
		!slices.Equal(last.Wrong, []string{`the task is "queued": not finished within 15s`}) || last.StatusTransition != "queued" {
		t.Errorf("%s: %+v", got, last)
	}
	if !strings.Contains(r.Left, last.JobID) || !strings.Contains(r.Left, "is queued") {
		t.Errorf("left %q", r.Left)
	}
}

// Whoever interrupts a gate leaves no task without a worker, if the system
// works.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := gate.Run(ctx, s.broken(t, between{change: func(*penstockv1.EnqueueRequest) {}, after: cancel}))
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "left behind") {
		t.Errorf("%+v, %v", r, err)
	}
	var states string
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT string_agg(state, ' ' ORDER BY id) FROM tasks").Scan(&states); err != nil || states != "succeeded succeeded succeeded failed succeeded" {
		t.Errorf("%s (%v)", states, err)
	}
	if left := s.streams(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// Two systems that do not belong together are told apart before anything is
// enqueued, or at least before a replay is blamed.
func TestWrongRedis(t *testing.T) {
	t.Parallel()
	s, other := newSystem(t), newSystem(t)
	o := s.options(t, testkit.Client(t, s.url))
	o.RedisURL = testkit.NewStores(t).RedisURL
	if _, err := gate.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no orchestrator uses this Redis") {
		t.Errorf("an empty Redis: %v", err)
	}
	var n int
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT count(*) FROM tasks").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d tasks (%v), want none", n, err)
	}
	o.RedisURL, o.Timeout = other.RedisURL, time.Second
	if _, err := gate.Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is not in this Redis: is redis.url the orchestrator's?") ||
		!strings.Contains(err.Error(), "left behind: task ") {
		t.Errorf("another system's Redis: %v", err)
	}
}
