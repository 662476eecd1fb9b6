package result_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// ran is when a task ran, as its row, its run and its last event have it.
type ran struct {
	started, finished   time.Time
	runFrom, runTo      time.Time
	from, to            *time.Time
	skew                int64
	created, recordedAt time.Time
}

func runOf(t *testing.T, r *testkit.Rig, id protocol.ID) (x ran) {
	t.Helper()
	err := r.DB.QueryRow(t.Context(), `SELECT t.started_at, t.finished_at, r.started_at, r.finished_at, (e.data->>'started_at')::timestamptz, (e.data->>'finished_at')::timestamptz,
			COALESCE((e.data->>'worker_clock_skew_ms')::bigint, 0), t.created_at, e.occurred_at
		FROM tasks t JOIN task_runs r ON r.task_id = t.id AND r.attempt = t.attempt
		JOIN event_log e ON e.task_id = t.id AND e.previous_status = 'running' WHERE t.id = $1`, pgid.ID(id)).Scan(
		&x.started, &x.finished, &x.runFrom, &x.runTo, &x.from, &x.to, &x.skew, &x.created, &x.recordedAt)
	if err != nil {
		t.Fatal(err)
	}
	if x.from == nil || x.to == nil || !x.from.Equal(x.started) || !x.to.Equal(x.finished) || !x.runFrom.Equal(x.started) || !x.runTo.Equal(x.finished) {
		t.Errorf("row %s to %s, event %v to %v, run %s to %s: want the same", x.started, x.finished, x.from, x.to, x.runFrom, x.runTo)
	}
	if x.started.Before(x.created) || x.finished.Before(x.started) || x.finished.After(x.recordedAt) {
		t.Errorf("created %s, started %s, finished %s, recorded %s: out of order", x.created, x.started, x.finished, x.recordedAt)
	}
	return x
}

// long enough ago that the times which workers report are possible ones.
func longAgo(t *testing.T, r *testkit.Rig, hs []testkit.Held) {
	t.Helper()
	if _, err := r.DB.Exec(t.Context(), `WITH x AS (UPDATE tasks SET created_at = created_at - interval '1 hour', updated_at = updated_at - interval '1 hour' WHERE id = ANY($1::uuid[]))
		UPDATE event_log SET occurred_at = occurred_at - interval '1 hour' WHERE task_id = ANY($1::uuid[])`, pgid.Slice(ids(hs))); err != nil {
		t.Fatal(err)
	}
}

// A task has run from when to when its worker says, however late that is recorded,
// whether its claim came alone or inside the outcome.
func TestRunTimesAreTheWorkers(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Results.Run)
	hs := fetched(t, r, 6)
	longAgo(t, r, hs)
	from := time.Now().Add(-10 * time.Minute).Truncate(time.Millisecond)
	took := []time.Duration{5 * time.Millisecond, time.Second, time.Second, 199 * time.Millisecond, time.Minute, 0}
	for i, h := range hs {
		o := succeeded(h)
		o.StartedAt, o.FinishedAt = from, from.Add(took[i])
		if i%2 == 1 {
			claim := h.Outcome(protocol.OutcomeClaimed)
			claim.StartedAt, claim.FinishedAt = from, time.Time{}
			r.Report(t, claim)
			r.WaitState(t, protocol.StateRunning, h.ID)
		}
		r.Report(t, o)
	}
	r.WaitState(t, protocol.StateSucceeded, ids(hs)...)
	r.Ack(t, hs...)
	for i, h := range hs {
		if x := runOf(t, r, h.ID); !x.started.Equal(from) || x.finished.Sub(x.started) != took[i] || x.skew != 0 {
			t.Errorf("a run of %s is recorded as %s (%s to %s, skew %d ms)", took[i], x.finished.Sub(x.started), x.started, x.finished, x.skew)
		}
	}
	testkit.VerifyLog(t, r.Stores)
}

// A worker whose clock is hours off: its times stay in their bounds, its durations
// are right, and its events say how far it is off.
func TestRunTimesOfAWrongClock(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Results.Run)
	hs := fetched(t, r, 8)
	longAgo(t, r, hs)
	name := func(i int) string { return fmt.Sprintf("task %d", i) }
	for i, h := range hs {
		off := 5 * time.Hour
		if i >= 4 {
			off = -off
		}
		now := time.Now().Add(off)
		o := succeeded(h)
		if i%4 == 3 {
			o = failed(h, false)
		}
		o.StartedAt, o.FinishedAt = now.Add(-time.Second), now
		if i%2 == 1 {
			claim := h.Outcome(protocol.OutcomeClaimed)
			claim.StartedAt, claim.FinishedAt = o.StartedAt, time.Time{}
			r.Report(t, claim)
			r.WaitState(t, protocol.StateRunning, h.ID)
		}
		r.Report(t, o)
	}
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	for i, h := range hs {
		r.WaitState(t, map[bool]protocol.State{true: protocol.StateFailed, false: protocol.StateSucceeded}[i%4 == 3], h.ID)
	}
	r.Ack(t, hs...)
	for i, h := range hs {
		x := runOf(t, r, h.ID)
		// Up to a millisecond is lost where both ends are cut to one.
		if took := x.finished.Sub(x.started); took < time.Second-time.Millisecond || took > time.Second+time.Millisecond {
			t.Errorf("%s: 1 s is recorded as %s", name(i), took)
		}
		if least := int64(3 * time.Hour / time.Millisecond); (i < 4) != (x.skew > 0) || max(x.skew, -x.skew) < least {
			t.Errorf("%s: a clock that is 5 h off has a skew of %d ms", name(i), x.skew)
		}
	}
	testkit.VerifyLog(t, r.Stores)
}

// An outcome whose times are none at all is no outcome; its task ends as with any
// other that can't be read.
func TestRunTimesThatAreNone(t *testing.T) {
	t.Parallel()
	r := rig(t)
	r.Start(t, r.Results.Run)
	r.Start(t, r.DeadLetter.Run)
	r.Start(t, r.DeadLetter.RunIngest)
	hs := fetched(t, r, 4)
	for i, v := range []any{"-1", "1e99", "253402300800000", "now"} {
		values := succeeded(hs[i]).Values()
		for j := 0; j < len(values); j += 2 {
			if values[j] == protocol.FieldFinishedAt {
				values[j+1] = v
			}
		}
		if a := r.Client.Append(t.Context(), protocol.StreamResult, [][]any{values})[0]; a.Err != nil {
			t.Fatal(a.Err)
		}
	}
	r.WaitState(t, protocol.StateFailed, ids(hs)...)
	r.Ack(t, hs...)
	for _, h := range hs {
		if row := r.Row(t, h.ID); row.Code != string(protocol.CodeInputInvalid) {
			t.Errorf("%+v", row)
		}
	}
	testkit.VerifyLog(t, r.Stores)
}
