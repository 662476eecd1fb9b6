package internaljobs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

// run names what a call asks for; its name is also that of the parameter.
type run string

const (
	succeed       run = "succeed"
	transientFail run = "transient_fail"
	forceFail     run = "force_fail"
)

// deadLetterWait bounds how long a call waits for the dead letter to be written.
const deadLetterWait = 5 * time.Second

// outcome is what a worker would report.
func (r run) outcome(t *protocol.Task) *protocol.Outcome {
	o := &protocol.Outcome{ID: t.ID, Delivery: t.Delivery, Kind: protocol.OutcomeSucceeded, Delay: -1}
	if r != succeed {
		o.Kind, o.Code, o.Error = protocol.OutcomeFailed, protocol.CodeExecutionFailed, string(r)+" was asked for"
		o.Retryable = r == transientFail
	}
	return o
}

// apply decides what a run does to a job, as about an outcome of its current
// delivery. Unlike a worker's, it is no delivery of something reported before:
// who asks twice means it, so it is never a repeat, and does not count as the
// outcome that a worker's repeat would be compared with.
func (r run) apply(t *protocol.Task, env protocol.Env) ([]*protocol.Event, protocol.Verdict, *protocol.Outcome) {
	kind, delivery := t.AppliedKind, t.AppliedDelivery
	t.AppliedKind, t.AppliedDelivery = "", 0
	o := r.outcome(t)
	events, verdict := t.ApplyOutcome(o, env)
	t.AppliedKind, t.AppliedDelivery = kind, delivery
	for _, e := range events {
		e.Actor = Actor
	}
	return events, verdict, o
}

// decision is what became of a call.
type decision struct {
	found   bool
	task    protocol.Task // afterwards
	seq     int           // of the last event before
	states  []protocol.State
	verdict protocol.Verdict
	outcome *protocol.Outcome
}

func (s *Service) run(w http.ResponseWriter, r *http.Request, jobID string) error {
	how, err := parseRun(r)
	if err != nil {
		return err
	}
	if err := emptyBody(w, r); err != nil {
		return err
	}
	id, err := protocol.ParseID(jobID)
	if err != nil {
		return notFound(jobID)
	}
	d, err := s.decide(r.Context(), id, how)
	if err != nil {
		return err
	}
	if !d.found {
		s.runs.WithLabelValues(string(how), "unknown_job").Inc()
		return notFound(jobID)
	}
	s.runs.WithLabelValues(string(how), d.verdict.String()).Inc()
	if s.o.Judged != nil {
		s.o.Judged(r.Context(), func(yield func(*protocol.Outcome, string) bool) { yield(d.outcome, d.verdict.String()) })
	}
	if d.task.State == protocol.StateDLQPending && d.verdict == protocol.Applied {
		s.o.Dead()
		if err := s.awaitFailed(r.Context(), &d); err != nil {
			return err
		}
	}
	row, err := s.find(r.Context(), id)
	if err != nil {
		return err
	}
	j := jobOf(row, d.states)
	j.stand(d.task.State, d.task.RetryCount(), d.task.Code) // it may have moved on since
	if d.verdict == protocol.Applied {
		return reply(w, http.StatusOK, j)
	}
	code := protocol.VocabularyB2.Code(protocol.CodeInvalidTransition)
	j.ErrorCode, j.StatusTransition = &code, ""
	j.Message = "the job is " + j.Status + ": " + string(how) + " is not possible, and nothing was changed"
	return reply(w, http.StatusConflict, j)
}

// decide moves the job, or records that the call was refused.
func (s *Service) decide(ctx context.Context, id protocol.ID, how run) (d decision, err error) {
	err = s.o.Store.Decide(ctx, []protocol.ID{id}, func(now time.Time, tasks map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
		d = decision{}
		t := tasks[id]
		if t == nil || t.Queue != protocol.QueueInternal {
			return nil, nil
		}
		env := s.o.Env
		env.Now = now
		d = decision{found: true, seq: t.Seq, states: []protocol.State{t.State}}
		var events []*protocol.Event
		events, d.verdict, d.outcome = how.apply(&t.Task, env)
		for _, e := range events {
			d.states = append(d.states, e.To)
		}
		d.task = t.Task
		if len(events) == 0 {
			return nil, nil
		}
		return []*store.Locked{t}, events
	})
	return d, err
}

// awaitFailed waits until the dead letter of a job that was just given up is
// written and the job failed.
func (s *Service) awaitFailed(ctx context.Context, d *decision) error {
	limit, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	for {
		s.o.Waits.Wait(limit, d.task.ID)
		row, err := s.find(ctx, d.task.ID)
		if err != nil {
			return err
		}
		if protocol.State(row.State) == protocol.StateFailed {
			break
		}
		if limit.Err() != nil {
			return connect.NewError(connect.CodeUnavailable, errors.New("the job was given up, but its dead letter is not written yet; GET the job to see when it is"))
		}
	}
	states, err := s.history(ctx, d.task.ID, d.seq)
	if err != nil {
		return err
	}
	d.states = append(d.states[:1], states...)
	d.task.State = protocol.StateFailed
	return nil
}

// parseRun reads the query: at most one of the two parameters, "true" or
// "false".
func parseRun(r *http.Request) (run, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return "", bad("", "the query string is malformed: %v", err)
	}
	how := succeed
	for name, values := range q {
		asked := run(name)
		switch {
		case asked != transientFail && asked != forceFail:
			return "", bad(clip(name), "is no parameter of this call, which takes force_fail=true or transient_fail=true")
		case len(values) != 1 || values[0] != "true" && values[0] != "false":
			return "", bad(name, "must be true or false, once")
		case values[0] == "false":
		case how != succeed:
			return "", bad("", "force_fail and transient_fail exclude each other")
		default:
			how = asked
		}
	}
	return how, nil
}

// emptyBody refuses a body, which a run does not have. An empty object counts as
// none.
func emptyBody(w http.ResponseWriter, r *http.Request) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		return bad("", "this call takes no body")
	}
	if s := strings.TrimSpace(string(b)); s != "" && s != "{}" {
		return bad("", "this call takes no body")
	}
	return nil
}
