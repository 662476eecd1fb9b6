package protocol

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"time"
)

// ClockTolerance is how far a worker's clock may be off before its events say so.
// Smaller differences are evened out silently.
const ClockTolerance = time.Second

// Times are members of the data of the events that begin and end an execution:
// when it ran. The worker measured it; what it says is held to what can be by
// Postgres' clock. What it did not say is missing.
type Times struct {
	StartedAt time.Time `json:"started_at,omitzero"`
	// FinishedAt and DurationMS (FinishedAt - StartedAt, rounded down) are those of
	// an execution that ended.
	FinishedAt time.Time `json:"finished_at,omitzero"`
	DurationMS *int64    `json:"duration_ms,omitempty"`
	// ClockSkewMS is how far the worker's clock is ahead of Postgres' (negative:
	// behind), at least; 0 if that is not known to be more than ClockTolerance.
	ClockSkewMS int64 `json:"worker_clock_skew_ms,omitempty"`
}

// timed lists the types of events whose data may have Times.
func timed(e *Event) bool {
	switch e.Type {
	case EventClaimed, EventFailed:
		return true
	case EventSucceeded, EventRetryScheduled, EventInterrupted, EventDLQ, EventApprovalRequested:
		return e.From == StateRunning
	}
	return false
}

// Times returns what the event tells about when its execution ran: nothing if it
// neither begins nor ends one, or its worker did not say.
func (e *Event) Times() Times {
	t, _ := e.times() // what can't be read is a Difference
	return t
}

// Told is Times of an event that this process decided itself: its data is not read
// again.
func (e *Event) Told() Times {
	if e.told != (Times{}) {
		return e.told
	}
	return e.Times()
}

func (e *Event) times() (t Times, err error) {
	if !timed(e) || len(e.Data) == 0 {
		return Times{}, nil
	}
	if err := json.Unmarshal(e.Data, &t); err != nil {
		return Times{}, err
	}
	return t, nil
}

// tell adds the times to the event's data.
func (e *Event) tell(t Times) {
	if t.StartedAt.IsZero() && t.FinishedAt.IsZero() {
		return
	}
	own := data(t)
	if n := len(e.Data); n > 0 { // an object that is not empty
		own = append(append(e.Data[:n-1:n-1], ','), own[1:]...)
	}
	e.Data, e.told = own, t
}

// began is what the claim of an execution tells.
func (t Times) began() Times { return Times{StartedAt: t.StartedAt, ClockSkewMS: t.ClockSkewMS} }

// ran holds what a worker says about when an execution ran to what can be: it began
// after its dispatch and has ended by now. Its duration, which the worker measured,
// is kept: times outside the bounds are moved into them by as little as is needed.
func (t *Task) ran(o *Outcome, env Env) Times {
	if o.StartedAt.IsZero() {
		return Times{}
	}
	now, start := whole(env.Now), whole(o.StartedAt)
	from, until := t.UpdatedAt, now // of the start
	claimed := t.State == StateRunning
	if claimed {
		from, until = t.CreatedAt, earlier(t.ClaimedAt, now)
	}
	from = earlier(from, now)
	out := Times{ClockSkewMS: skew(o, from, until, now)}
	if o.Kind == OutcomeClaimed {
		out.StartedAt = whole(within(start, from, now))
		return out
	}
	took := max(cmp.Or(whole(o.FinishedAt), now).Sub(start), 0)
	switch possible := now.Sub(from); {
	case !claimed:
		took = min(took, possible)
		out.StartedAt = within(start, from, now.Add(-took))
	case took <= possible: // the recorded start is late if the worker's clock is ahead
		out.StartedAt = earlier(t.StartedAt, now.Add(-took))
	default:
		out.StartedAt = earlier(t.StartedAt, now)
		took = now.Sub(out.StartedAt)
	}
	out.StartedAt = whole(out.StartedAt)
	out.FinishedAt = out.StartedAt.Add(took)
	n := took.Milliseconds()
	out.DurationMS = &n
	return out
}

// skew returns by how many milliseconds at least the worker's clock is ahead (or,
// negative, behind); 0 within the tolerance.
func skew(o *Outcome, from, until, now time.Time) int64 {
	ahead := o.StartedAt.Sub(until)
	if o.Kind != OutcomeClaimed && !o.FinishedAt.IsZero() {
		ahead = max(ahead, o.FinishedAt.Sub(now))
	}
	behind := from.Sub(o.StartedAt)
	switch {
	case ahead > ClockTolerance:
		return ahead.Milliseconds()
	case behind > ClockTolerance && !from.IsZero():
		return -behind.Milliseconds()
	}
	return 0
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func within(at, from, until time.Time) time.Time { return later(earlier(at, until), from) }

// whole is the time as Postgres and JSON keep it: in microseconds, of UTC.
func whole(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Microsecond)
}

// verifyTimes reports times that can't be. The differences after the known ones are
// those of the same event.
func (r *Replay) verifyTimes(e *Event, known int) {
	t, err := e.times()
	switch {
	case err != nil:
		if !slices.ContainsFunc(r.Differences[known:], func(d Difference) bool { return d.Field == "data" }) {
			r.read(e, &Times{})
		}
	case t.StartedAt.After(e.OccurredAt):
		r.differ(e, "started_at", moment(t.StartedAt), "not after "+moment(e.OccurredAt))
	case t.FinishedAt.IsZero():
	case t.FinishedAt.After(e.OccurredAt):
		r.differ(e, "finished_at", moment(t.FinishedAt), "not after "+moment(e.OccurredAt))
	case t.FinishedAt.Before(t.StartedAt):
		r.differ(e, "finished_at", moment(t.FinishedAt), "not before "+moment(t.StartedAt))
	case t.DurationMS != nil && *t.DurationMS != t.FinishedAt.Sub(t.StartedAt).Milliseconds():
		r.differ(e, "duration_ms", strconv.FormatInt(*t.DurationMS, 10), inMillis(t.FinishedAt.Sub(t.StartedAt)))
	}
}
