package execute

import (
	"encoding/json"
	"errors"
)

// asker is an error by which a handler asks a person before it goes on.
type asker interface {
	error
	// ApprovalRequest is what it asks, a JSON object.
	ApprovalRequest() json.RawMessage
}

// approvalOf returns what the error of a handler asks a person for, if it does.
func approvalOf(err error) (json.RawMessage, bool) {
	if a, ok := errors.AsType[asker](err); ok {
		return a.ApprovalRequest(), true
	}
	return nil, false
}
