package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

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
	if err == nil && o.Kind == protocol.OutcomeApprovalNeeded {
		// Nothing could end the wait yet.
		o.Kind, o.Code, o.Retryable = protocol.OutcomeFailed, protocol.CodeExecutionFailed, false
		o.Error = protocol.Text("the handler asked for approval, which this version can't give: " + o.Error)
		return o, nil
	}
	if err == nil {
		return checkResult(o), nil
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

func checkResult(o *protocol.Outcome) *protocol.Outcome {
	switch {
	case o.Kind != protocol.OutcomeSucceeded:
	case len(o.Result) == 0:
		o.Result = []byte("null")
	case !json.Valid(o.Result):
		return unstorable(o, "is not JSON")
	case escapedNUL(o.Result):
		return unstorable(o, `contains the character NUL (\u0000)`)
	}
	return o
}

// escapedNUL reports whether a string in valid JSON contains \u0000, which is
// not the same as containing those six bytes: the backslash may be escaped.
func escapedNUL(b []byte) bool {
	for {
		i := bytes.IndexByte(b, '\\')
		if i < 0 {
			return false
		}
		if bytes.HasPrefix(b[i:], []byte(`\u0000`)) {
			return true
		}
		b = b[i+2:] // valid JSON has a character after each backslash
	}
}
