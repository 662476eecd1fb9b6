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

// decode reads an outcome. One whose only fault is its result is still an
// outcome.
func decode(values map[string]any) (*protocol.Outcome, error) {
	o, err := protocol.DecodeOutcome(values)
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
