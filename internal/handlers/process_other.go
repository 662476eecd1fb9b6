//go:build !unix

package handlers

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/penstock-dev/penstock/task"
)

// execSupported tells whether the system has process groups and signals.
const execSupported = false

// run is never reached: newExec refuses the declaration.
func (p *program) run(context.Context, *task.Raw) (json.RawMessage, error) {
	return nil, task.Permanent(errors.New("exec is not supported on this system"))
}
