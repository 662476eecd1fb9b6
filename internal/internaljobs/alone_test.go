package internaljobs_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/api"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/internaljobs"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// rigged is the interface on the stages of a rig, of which a test runs what it
// wants.
func rigged(t *testing.T) (*env, *testkit.Rig, *internaljobs.Service) {
	t.Helper()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout, cfg.Recovery.TimeoutGrace = 10*time.Millisecond, 0
	r := testkit.NewRig(t, s, cfg)
	waits := api.NewWaits(r.Store, 5*time.Millisecond, testkit.Log(t))
	r.Start(t, waits.Run)
	svc := internaljobs.New(internaljobs.Options{
		Enqueue: r.Enqueuer, Store: r.Store, Waits: waits, Env: r.Env, Dead: r.DeadLetter.Kick, Log: testkit.Log(t),
	})
	server := httptest.NewServer(svc)
	t.Cleanup(server.Close)
	return &env{Stores: s, url: server.URL, db: s.SQL(t)}, r, svc
}

// However long a job stands in a state, nothing but a call moves it: not the
// dispatcher, whose entries others get, nor what looks for lost entries, lost
// workers and timeouts.
func TestNothingElseMovesJobs(t *testing.T) {
	t.Parallel()
	e, r, _ := rigged(t)
	r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	ids := map[string]string{"queued": e.job(t), "retrying": e.job(t), "running": e.job(t)}
	e.run(t, http.StatusOK, ids["retrying"], transient)
	e.claim(t, ids["running"])
	// All of it long ago.
	if _, err := r.DB.Exec(t.Context(), `UPDATE tasks SET due_at = due_at - interval '1 day', next_retry_at = next_retry_at - interval '1 day',
		claimed_at = claimed_at - interval '1 day', started_at = started_at - interval '1 day'`); err != nil {
		t.Fatal(err)
	}
	// And one that was dispatched, as far as its row can tell.
	ids["lost"] = e.job(t)
	if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET due_at = NULL WHERE id = $1", pgid.ID(parse(t, ids["lost"]))); err != nil {
		t.Fatal(err)
	}
	before := map[string]string{}
	for name, id := range ids {
		before[name] = e.stored(t, id)
	}
	for range 3 {
		// The dispatcher looks at all queues that have something due.
		reqs := testkit.Requests(5, "t")
		for _, q := range reqs {
			q.ScheduleType, q.DelayMS = "delay", 20
		}
		r.Enqueue(t, reqs...)
		r.Ack(t, r.Fetch(t, "w", 5)...)
		if err := r.Reconcile.Pass(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		all := make([]protocol.ID, 0, len(ids))
		for _, id := range ids {
			all = append(all, parse(t, id))
		}
		if err := r.Reconcile.Pass(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		if err := r.Reclaim.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Timeout.Look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, id := range ids {
		if after := e.stored(t, id); after != before[name] {
			t.Errorf("the %s job was moved:\n%s\n%s", name, before[name], after)
		}
	}
	queues, err := r.Store.LiveQueues(t.Context())
	if err != nil || slices.Contains(queues, protocol.QueueInternal) || slices.Contains(r.Dispatch.Queues(), protocol.QueueInternal) {
		t.Errorf("queues %v and %v (%v) are looked after", queues, r.Dispatch.Queues(), err)
	}
	if n, err := r.Raw.Exists(t.Context(), protocol.TaskStream(protocol.QueueInternal)).Result(); err != nil || n != 0 {
		t.Errorf("the queue has a stream (%v)", err)
	}
	if n := r.Count(t, "SELECT count(*) FROM dispatch_outbox WHERE queue = $1", protocol.QueueInternal); n != 0 {
		t.Errorf("%d dispatches", n)
	}
	for _, id := range ids { // and a call still does
		e.run(t, http.StatusOK, id, success)
	}
}

// A dead letter that is not written in time is no failure of the call's: the job
// is given up, waits, and is finished as soon as it can be.
func TestDeadLetterThatWaits(t *testing.T) {
	t.Parallel()
	e, r, svc := rigged(t)
	svc.SetWait(50 * time.Millisecond)
	job := e.job(t)
	p := e.problem(t, http.MethodPost, jobs+"/"+job+"/run"+force, "")
	if p.Status != http.StatusServiceUnavailable || !p.Retryable || !strings.Contains(p.Detail, "not written yet") {
		t.Errorf("%+v", p)
	}
	if j := e.get(t, job); j.Status != "dlq_pending" || j.DLQID == nil || j.StatusTransition != "queued -> running -> dlq_pending" {
		t.Errorf("%+v", j)
	}
	for _, how := range []string{success, transient, force} {
		if j := e.run(t, http.StatusConflict, job, how); j.Status != "dlq_pending" || text(j.ErrorCode) != "WF_STATE_TRANSITION_INVALID" || j.DLQID == nil {
			t.Errorf("%+v", j)
		}
	}
	// dlq_recorded lasts for an instant only; a job that stood there would be
	// refused all the same.
	set := func(state string) {
		if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET state = $1 WHERE id = $2", state, pgid.ID(parse(t, job))); err != nil {
			t.Fatal(err)
		}
	}
	set("dlq_recorded")
	for _, how := range []string{success, transient, force} {
		if j := e.run(t, http.StatusConflict, job, how); j.Status != "dlq_recorded" || text(j.ErrorCode) != "WF_STATE_TRANSITION_INVALID" {
			t.Errorf("%+v", j)
		}
	}
	set("dlq_pending")
	if n, err := r.DeadLetter.Sweep(t.Context()); err != nil || n != 1 {
		t.Fatalf("%d dead letters, %v", n, err)
	}
	if j := e.get(t, job); j.Status != "failed" || j.StatusTransition != "queued -> running -> dlq_pending -> dlq_recorded -> failed" {
		t.Errorf("%+v", j)
	}
	e.events(t, job, "task.created task.claimed task.dlq task.transition_rejected task.dlq task.failed")
	testkit.VerifyEvents(t, e.Stores)
}

// A job's dead letter is like any other; what comes out of it is a job.
func TestRequeuedJob(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	job := e.run(t, http.StatusOK, e.job(t), force)
	c := testkit.Client(t, e.url)
	res, err := c.DeadLetters().RequeueDeadLetters(t.Context(), connect.NewRequest(&penstockv1.RequeueDeadLettersRequest{DlqIds: []string{*job.DLQID}}))
	if err != nil || len(res.Msg.Results) != 1 || res.Msg.Results[0].Error != nil {
		t.Fatalf("%v, %v", res, err)
	}
	again := res.Msg.Results[0].TaskId
	if j := e.get(t, again); again == job.JobID || j.Status != "queued" || j.DLQID != nil {
		t.Errorf("%+v", j)
	}
	if j := e.run(t, http.StatusOK, again, success); j.Status != "succeeded" {
		t.Errorf("%+v", j)
	}
	testkit.VerifyLog(t, e.Stores)
}

// Calls in the wrong state, one after the other, are an alert as those of
// workers are.
func TestRefusalsInARowRaiseTheAlert(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(c *config.Orchestrator) { c.Alerts.Interval, c.Alerts.InvalidInARow = 100*time.Millisecond, 3 })
	job := e.job(t)
	e.run(t, http.StatusOK, job, success)
	for range 3 {
		e.run(t, http.StatusConflict, job, success)
	}
	testkit.Eventually(t, "the alert is raised", func() (bool, string) {
		var kinds []byte
		err := e.db.QueryRow(t.Context(), "SELECT COALESCE(json_agg(kind), '[]') FROM alerts WHERE firing").Scan(&kinds)
		var all []string
		_ = json.Unmarshal(kinds, &all)
		return err == nil && slices.Equal(all, []string{"invalid_transitions"}), string(kinds)
	})
}
