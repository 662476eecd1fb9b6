package acceptance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-dev/penstock/internal/gate"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// gateReport is what the replays gave.
type gateReport = gate.Report

// replays runs RP-001 to RP-005, once for all lines that are about them.
func (r *run) replays(ctx context.Context) (*gateReport, error) {
	return r.gate.get(func() (*gateReport, error) {
		return gate.Run(ctx, gate.Options{Client: r.o.Client, RedisURL: r.o.RedisURL, RedisKeyPrefix: r.o.RedisKeyPrefix, Log: r.o.Log})
	})
}

func replayed(id string) func(context.Context, *run, *finding) error {
	return func(ctx context.Context, r *run, f *finding) error {
		rep, err := r.replays(ctx)
		if err != nil {
			return err
		}
		judgeReplay(f, rep, id)
		return nil
	}
}

func judgeReplay(f *finding, rep *gateReport, id string) {
	i := slices.IndexFunc(rep.Results, func(x gate.Result) bool { return x.ReplayID == id })
	if i < 0 {
		f.wrongf("%s was not run", id)
		return
	}
	x := rep.Results[i]
	f.notef("trace_id=%s job_id=%s retry_count=%d status_transition=%s", x.TraceID, x.JobID, x.RetryCount, x.StatusTransition)
	if x.DLQID != "" {
		f.notef("dlq_id=%s", x.DLQID)
	}
	if x.ErrorCode != "" {
		f.notef("error_code=%s", x.ErrorCode)
	}
	f.wrong = append(f.wrong, x.Wrong...)
	if !x.Passed && len(x.Wrong) == 0 {
		f.wrongf("%s failed", id)
	}
}

func b2Replays(ctx context.Context, r *run, f *finding) error {
	rep, err := r.replays(ctx)
	if err != nil {
		return err
	}
	for _, id := range []string{"RP-001", "RP-002", "RP-003", "RP-004", "RP-005"} {
		var one finding
		if judgeReplay(&one, rep, id); len(one.wrong) > 0 {
			f.wrongf("%s: %s", id, strings.Join(one.wrong, "; "))
		}
	}
	f.notef("queue %s", rep.Queue)
	return nil
}

// b2States are the document's, with the one that it lacks.
var b2States = []string{"queued", "running", "retrying", "succeeded", "dlq_pending", "dlq_recorded", "failed", "cancelled"}

// job is a row of the view jobs.
type job struct {
	id, status, key, trace, code string
	retries                      int
}

// b2Status has tasks in as many states as can be held, and compares each with
// its row of the view.
func b2Status(ctx context.Context, r *run, f *finding) error {
	stories, err := r.variety(ctx)
	if err != nil {
		return err
	}
	for _, s := range stories {
		id := uuidOf(s.task.TaskId)
		var j job
		err := r.query(ctx, `SELECT job_id::text, status, idempotency_key, trace_id, COALESCE(error_code, ''), retry_count FROM jobs WHERE job_id = $1`, id.String()).
			scan(&j.id, &j.status, &j.key, &j.trace, &j.code, &j.retries)
		if err != nil {
			return fmt.Errorf("job %s: %w", id, err)
		}
		judgeJob(f, s, j)
	}
	for _, st := range protocol.States() {
		var word *string
		if err := r.query(ctx, "SELECT penstock_word('b2', $1)", string(st)).scan(&word); err != nil {
			return err
		}
		if want := protocol.VocabularyB2.Project(st, ""); word == nil || *word != want {
			f.wrongf("the view's word for %s is not %s", st, want)
		}
	}
	f.notef("%d jobs compared", len(stories))
	return nil
}

func judgeJob(f *finding, s *story, j job) {
	if want := protocol.VocabularyB2.Project(protocol.State(s.task.State), ""); j.status != want || !slices.Contains(b2States, j.status) {
		f.wrongf("job %s has status %s, want %s", j.id, j.status, want)
	}
	if j.retries != int(s.task.RetryCount) || j.key != s.task.IdempotencyKey || j.trace != s.task.TraceId {
		f.wrongf("job %s has retry_count %d, idempotency_key %s, trace_id %s; the task %d, %s, %s", j.id, j.retries, j.key, j.trace, s.task.RetryCount, s.task.IdempotencyKey, s.task.TraceId)
	}
	for i, e := range s.events {
		if i > 0 && e.PreviousStatus != s.events[i-1].Status {
			f.wrongf("job %s: an event from %s follows one to %s", j.id, e.PreviousStatus, s.events[i-1].Status)
		}
		if !protocol.Allowed(protocol.State(e.PreviousStatus), protocol.State(e.Status)) && e.PreviousStatus != e.Status {
			f.wrongf("job %s went from %s to %s", j.id, e.PreviousStatus, e.Status)
		}
	}
	// Our graph's moves, in the document's words.
	legal := []string{
		" queued", "queued running", "running succeeded", "running retrying", "running dlq_pending", "retrying running", "retrying dlq_pending",
		"dlq_pending dlq_recorded", "dlq_recorded failed", "queued cancelled", "running cancelled", "retrying cancelled",
		"running queued", "retrying queued", // interrupted, and approval asked for by a handler: beyond the document
	}
	states := make([]protocol.State, len(s.events))
	for i, e := range s.events {
		states[i] = protocol.State(e.Status)
	}
	for _, m := range protocol.VocabularyB2.Moves(states) {
		if !slices.Contains(legal, m[0]+" "+m[1]) {
			f.wrongf("job %s moved from %s to %s", j.id, m[0], m[1])
		}
	}
}

// variety lives through what tasks can live through without a lost worker.
func (r *run) variety(ctx context.Context) ([]*story, error) {
	var out []*story
	for _, s := range []script{{}, {Fail: 1}, {Fail: always}, {Permanent: true}, {Snooze: []int64{1}}} {
		x, err := r.live(ctx, s, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	later := func(t *task.Request) { t.Delay = longest }
	for _, change := range []func(*task.Request){later, func(t *task.Request) { t.Queue = r.queue(queueIdle) }} {
		e, err := r.enqueue(ctx, r.request(script{}, change))
		if err != nil {
			return nil, err
		}
		x, err := r.gather(ctx, e.TaskID)
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

// b2Backoff replays tasks of every strategy with the deployment's seed.
func b2Backoff(ctx context.Context, r *run, f *finding) error {
	policies := []task.Retry{
		{Strategy: "exponential", Base: ms(20), MaxBackoff: ms(60), JitterMax: ms(20)}, {Strategy: "linear", Base: ms(15), JitterMax: ms(7)},
		{Strategy: "fixed", Base: ms(25), NoJitter: true}, {Strategy: "schedule", Schedule: []dur{ms(10), ms(30)}, JitterMax: ms(5)},
	}
	for i := range policies {
		s, err := r.live(ctx, script{Fail: 3}, func(t *task.Request) { t.Retry = &policies[i] })
		if err != nil {
			return err
		}
		judgeDelays(f, s, r.seed, 3)
	}
	return nil
}

// judgeDelays recomputes the delays of a task that was retried so many times.
func judgeDelays(f *finding, s *story, seed []byte, retries int) {
	rep := protocol.Replay{Seed: seed}
	for _, e := range eventsOf(uuidOf(s.task.TaskId), s.events) {
		if err := rep.Add(e); err != nil {
			f.wrongf("task %s can't be replayed: %v", s.task.TaskId, err)
			return
		}
	}
	for _, d := range rep.Differences {
		f.wrongf("task %s, event %d: %s is %s, recomputed %s", s.task.TaskId, d.Seq, d.Field, d.Recorded, d.Recomputed)
	}
	var delays []string
	for _, x := range rep.Executions {
		if x.Retry != nil {
			delays = append(delays, x.Retry.Delay.String())
			if x.Retry.DelaySource != protocol.DelayFromPolicy || x.Retry.Policy == nil {
				f.wrongf("task %s: the log does not say that the delay after attempt %d came from a policy", s.task.TaskId, x.Attempt)
			}
		}
	}
	if len(delays) != retries || int(s.task.RetryCount) != retries {
		f.wrongf("task %s has %d delays and retry_count %d, want %d", s.task.TaskId, len(delays), s.task.RetryCount, retries)
	}
	f.notef("task %s: %s", s.task.TaskId, strings.Join(delays, ", "))
}

func b2Fourth(ctx context.Context, r *run, f *finding) error {
	s, err := r.live(ctx, script{Fail: always}, nil)
	if err != nil {
		return err
	}
	judgeFourth(f, s)
	return nil
}

func judgeFourth(f *finding, s *story) {
	s.whole(f)
	s.ended(f, protocol.StateFailed, 4, protocol.CodeRetryExhausted)
	const retry = " -> retrying -> running"
	if got, want := s.path(protocol.VocabularyB2), "queued -> running"+retry+retry+retry+" -> dlq_pending -> dlq_recorded -> failed"; got != want {
		f.wrongf("it went %s, want %s", got, want)
	}
	if len(s.seen) != 4 {
		f.wrongf("it failed %d times, want 4", len(s.seen))
	}
	if s.dead == nil || s.dead.TaskId != s.task.TaskId || s.dead.RecordedAt == nil {
		f.wrongf("it has no dead letter that was recorded (dlq_id %q)", s.task.DlqId)
	}
	f.notef("task %s, dlq_id %s", s.task.TaskId, s.task.DlqId)
}
