package acceptance

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

var simSeed = []byte("seed of the tests")

// sim lives through a task's life by package protocol's own decisions: what is
// said about it is as it must be.
type sim struct {
	t      *testing.T
	task   *protocol.Task
	env    protocol.Env
	events []*protocol.Event
	seen   []sighting
	typ    string
}

func newSim(t *testing.T, state protocol.State, maxRetries int) *sim {
	t.Helper()
	id := protocol.ID(uuid.Must(uuid.NewV7()))
	s := &sim{t: t, typ: typeStep, env: protocol.Env{Now: time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC), Seed: simSeed, MaxInterruptions: 3}}
	s.task = &protocol.Task{
		ID: id, State: state, Attempt: 1, Delivery: 1, Seq: 1, MaxRetries: maxRetries, Policy: protocol.DefaultRetryPolicy(),
		TraceID: fmt.Sprintf("trace-run-%s:1-%s", id, uuid.NewString()),
	}
	s.events = []*protocol.Event{{
		TaskID: id, Seq: 1, Type: protocol.EventCreated, To: state, Attempt: 1, Delivery: 1, BackoffDelay: -1, Actor: protocol.ActorAPI, TraceID: s.task.TraceID, OccurredAt: s.env.Now,
	}}
	return s
}

// do takes steps: claim, ok, fail, timeout, permanent, snooze, dispatch, lost,
// bury, cancel.
func (s *sim) do(steps ...string) *sim {
	s.t.Helper()
	for _, step := range steps {
		s.env.Now = s.env.Now.Add(time.Second)
		var events []*protocol.Event
		ok := true
		switch step {
		case "dispatch":
			events, ok = s.task.Dispatch(s.env)
		case "lost":
			events, ok = s.task.Lost(s.env, protocol.ActorReclaimer, "idle", &protocol.ReclaimData{OriginalConsumer: "gone", NewConsumer: "reclaimer", MessageID: "1-0", IdleMS: 5000})
		case "bury":
			events, ok = s.task.RecordDeadLetter(s.env)
		case "cancel":
			events, ok = s.task.Cancel(s.env, protocol.ActorAPI, protocol.CodeCancelled, "")
		default:
			o := s.outcome(step)
			if o.Kind == protocol.OutcomeClaimed {
				s.seen = append(s.seen, sighting{s.task.Attempt, s.task.Delivery, protocol.ExecutionKey(s.task.ID, s.task.Attempt), s.env.Now})
			}
			var v protocol.Verdict
			events, v = s.task.ApplyOutcome(o, s.env)
			ok = v == protocol.Applied
		}
		if !ok {
			s.t.Fatalf("%s is not possible in %s", step, s.task.State)
		}
		s.events = append(s.events, events...)
	}
	return s
}

func (s *sim) outcome(step string) *protocol.Outcome {
	o := &protocol.Outcome{ID: s.task.ID, Delivery: s.task.Delivery, WorkerID: "worker", MessageID: "2-0", StartedAt: s.env.Now, FinishedAt: s.env.Now, Delay: -1}
	switch step {
	case "claim":
		o.Kind = protocol.OutcomeClaimed
	case "ok":
		o.Kind, o.Result = protocol.OutcomeSucceeded, []byte(`{}`)
	case "fail":
		o.Kind, o.Code, o.Error, o.Retryable = protocol.OutcomeFailed, protocol.CodeExecutionFailed, "no route to host", true
	case "timeout":
		o.Kind, o.Code, o.Error, o.Retryable = protocol.OutcomeFailed, protocol.CodeTimeout, "start_to_close timeout", true
	case "permanent":
		o.Kind, o.Code, o.Error = protocol.OutcomeFailed, protocol.CodeExecutionFailed, "no such account"
	case "snooze":
		o.Kind, o.Delay = protocol.OutcomeSnoozed, 30*time.Millisecond
	default:
		s.t.Fatalf("no step is called %s", step)
	}
	return o
}

// story is what the RPC would say.
func (s *sim) story() *story {
	id := s.task.ID.String()
	out := &story{seen: s.seen, task: &client.Task{
		TaskId: id, Type: s.typ, State: string(s.task.State), Attempt: int32(s.task.Attempt), RetryCount: int32(s.task.RetryCount()), MaxRetries: int32(s.task.MaxRetries),
		Interruptions: int32(s.task.Interruptions), Delivery: s.task.Delivery, TraceId: s.task.TraceID, IdempotencyKey: id, Payload: script{}.json(),
	}}
	if s.task.Code != "" {
		out.task.LastErrorCode, out.task.LastErrorReason = wrapperspb.String(string(s.task.Code)), wrapperspb.String(s.task.Reason)
	}
	view := protocol.MENView{}
	for _, e := range s.events {
		ev := &penstockv1.Event{
			EventId: e.EventID(), Seq: int32(e.Seq), Type: string(e.Type), TaskId: id, RunId: protocol.RunID(s.task.ID, e.Attempt), PreviousStatus: string(e.From), Status: string(e.To),
			Attempt: int32(e.Attempt), RetryCount: int32(e.RetryCount()), Delivery: e.Delivery, ErrorCode: string(e.Code), Reason: e.Reason, Actor: e.Actor,
			WorkerId: e.WorkerID, MessageId: e.MessageID, TraceId: e.TraceID, OccurredAt: timestamppb.New(e.OccurredAt), Data: e.Data,
		}
		if !e.NextRetryAt.IsZero() {
			ev.NextRetryAt = timestamppb.New(e.NextRetryAt)
		}
		if e.BackoffDelay >= 0 {
			ev.BackoffDelayMs = wrapperspb.Int64(e.BackoffDelay.Milliseconds())
		}
		out.events = append(out.events, ev)
		if m, ok := view.Add(e); ok {
			p := m.Payload
			out.states = append(out.states, &penstockv1.StateEvent{Type: m.Type, Source: m.Source, SessionKey: m.SessionKey, EventId: m.EventID, Payload: &penstockv1.StateChange{
				TaskId: p.TaskID, FromState: p.FromState, ToState: p.ToState, OccurredAt: timestamppb.New(p.OccurredAt), Attempt: int32(p.Attempt), ReasonCode: string(p.ReasonCode), ReasonMessage: p.ReasonMessage,
			}})
		}
	}
	if s.task.State == protocol.StateFailed {
		out.task.DlqId = protocol.DLQID(s.task.ID).String()
		out.dead = &penstockv1.DeadLetter{DlqId: out.task.DlqId, TaskId: id, RetryCount: out.task.RetryCount, RecordedAt: timestamppb.New(s.env.Now)}
	}
	return out
}

// lives are lives by what becomes of them.
func lives(t *testing.T) map[string]*story {
	t.Helper()
	q := func(n int, steps ...string) *story { return newSim(t, protocol.StateQueued, n).do(steps...).story() }
	return map[string]*story{
		"success":    q(3, "claim", "ok"),
		"once":       q(3, "claim", "fail", "claim", "ok"),
		"timeout":    q(3, "claim", "timeout", "claim", "ok"),
		"three":      q(3, "claim", "fail", "claim", "fail", "claim", "fail", "claim", "ok"),
		"dead":       q(3, "claim", "fail", "claim", "fail", "claim", "fail", "claim", "fail", "bury"),
		"permanent":  q(2, "claim", "permanent", "bury"),
		"lost":       q(3, "claim", "lost", "dispatch", "claim", "ok"),
		"effect":     q(3, "claim", "fail", "claim", "lost", "dispatch", "claim", "ok"),
		"scheduled":  newSim(t, protocol.StatePending, 3).do("dispatch", "claim", "ok").story(),
		"waits":      q(3, "claim", "fail"),
		"cancelled":  newSim(t, protocol.StatePending, 3).do("cancel").story(),
		"cancelled2": q(3, "cancel"),
		"cancelled3": q(3, "claim", "cancel"),
		"event":      q(2, "claim", "timeout", "claim", "timeout", "claim", "timeout", "bury"),
	}
}
