package result

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// unstorable is what a success becomes whose result can't be stored: a
// permanent failure that says why. The handler's work is done, and running it
// again would end the same way.
func unstorable(o *protocol.Outcome, why string) *protocol.Outcome {
	return &protocol.Outcome{
		ID: o.ID, Delivery: o.Delivery, Kind: protocol.OutcomeFailed, WorkerID: o.WorkerID, MessageID: o.MessageID,
		StartedAt: o.StartedAt, FinishedAt: o.FinishedAt, Code: protocol.CodeExecutionFailed, Delay: -1,
		Error: protocol.Text(fmt.Sprintf("the handler succeeded, but its result can't be stored: it %s", why)),
	}
}

// unreadable is what becomes of the task whose outcome can't be read, if the
// entry at least says which task it is about. Its worker has acknowledged the
// task's entry; without this the task would be taken for lost and run again,
// to the same end, for ever.
func unreadable(values map[string]any, cause error) *protocol.Outcome {
	p, ok := protocol.PairOf(values)
	if !ok || values[protocol.FieldKind] == string(protocol.OutcomeClaimed) {
		return nil // a claim does not end an execution
	}
	if e, ok := errors.AsType[*protocol.Error](cause); ok && e.Field == protocol.FieldVersion {
		return nil // of a newer worker: a rolling upgrade must not end tasks
	}
	return &protocol.Outcome{
		ID: p.ID, Delivery: p.Delivery, Kind: protocol.OutcomeFailed, Code: protocol.CodeInputInvalid, Delay: -1,
		Error: protocol.Text("the worker's outcome can't be read: " + cause.Error()),
	}
}

// decode reads an outcome. One whose only fault is its result is still an
// outcome.
func decode(values map[string]any) (*protocol.Outcome, error) {
	o, err := protocol.DecodeOutcome(values)
	if err == nil {
		return checkResult(checkApproval(checkCode(o))), nil
	}
	if e, ok := errors.AsType[*protocol.Error](err); ok && e.Field == protocol.FieldResult {
		rest := maps.Clone(values)
		delete(rest, protocol.FieldResult)
		if o, err2 := protocol.DecodeOutcome(rest); err2 == nil && o.Kind == protocol.OutcomeSucceeded {
			return unstorable(o, e.Message), nil
		}
	}
	return nil, err
}

// checkCode holds a failure to the codes that workers may give; another one would
// mean what the orchestrator says with it.
func checkCode(o *protocol.Outcome) *protocol.Outcome {
	switch o.Code {
	case "", protocol.CodeExecutionFailed, protocol.CodeTimeout, protocol.CodeInputInvalid:
	default:
		if o.Kind == protocol.OutcomeFailed {
			o.Code, o.Error = protocol.CodeExecutionFailed, protocol.Text(string(o.Code)+": "+o.Error)
		}
	}
	return o
}

// checkApproval makes a permanent failure of a handler's question that nobody can
// answer.
func checkApproval(o *protocol.Outcome) *protocol.Outcome {
	if o.Kind != protocol.OutcomeApprovalNeeded {
		return o
	}
	if _, err := protocol.ParseApproval(o.Approval); err != nil {
		o.Kind, o.Code, o.Retryable, o.Approval = protocol.OutcomeFailed, protocol.CodeInputInvalid, false, nil
		o.Error = protocol.Text("the handler asked for approval, but its request can't be used: " + err.Error())
	}
	return o
}

func checkResult(o *protocol.Outcome) *protocol.Outcome {
	switch {
	case o.Kind != protocol.OutcomeSucceeded:
	case len(o.Result) == 0:
		o.Result = []byte("null")
	case !json.Valid(o.Result):
		return unstorable(o, "is not JSON")
	default:
		if err := protocol.CheckEscapes(o.Result); err != nil {
			return unstorable(o, err.Error())
		}
	}
	return o
}

// applyAll applies outcomes in one transaction. If Postgres refuses the data
// itself, each is applied alone: a refused success as a permanent failure, and
// what is refused even so is kept as a dead letter. So one outcome never blocks
// the others.
func (s *Stage) applyAll(ctx context.Context, outcomes []outcome, es []streams.Entry) error {
	if len(outcomes) == 0 {
		return nil
	}
	err := s.apply(ctx, outcomes)
	if !refused(err) {
		return err
	}
	s.o.Log.Error("a batch of outcomes was refused; applying them one by one", "error", err)
	values := make(map[string]map[string]any, len(es))
	for _, e := range es {
		values[e.ID] = e.Values
	}
	for _, o := range outcomes {
		err := s.apply(ctx, []outcome{o})
		if refused(err) && o.Kind == protocol.OutcomeSucceeded {
			o.Outcome = unstorable(o.Outcome, "was refused by Postgres: "+err.Error())
			err = s.apply(ctx, []outcome{o})
		}
		if refused(err) {
			err = s.o.DeadLetters.Keep(ctx, []*protocol.DeadLetter{
				protocol.Garbage(protocol.StreamResult, o.entry, values[o.entry], err, time.Now()),
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refused reports whether Postgres will never take this data: a data exception,
// a violated constraint, or a limit of its own such as the depth of JSON.
func refused(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(e.Code, "22") || strings.HasPrefix(e.Code, "23") || strings.HasPrefix(e.Code, "54"))
}
