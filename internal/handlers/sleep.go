package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/penstock-dev/penstock/task"
)

// maxSleep is the longest time that a task may ask to sleep.
const maxSleep = 24 * time.Hour

// sleep waits for the time that the payload names, {"ms": 100} or
// {"duration": "1s"}, and returns it in whole milliseconds: {"slept_ms": 100}.
// If ctx ends first it returns the cause.
func sleep(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
	d, err := sleepTime(r.Payload)
	if err != nil {
		return nil, task.InvalidInput(fmt.Errorf("sleep: %w", err))
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-t.C:
		return fmt.Appendf(nil, `{"slept_ms":%d}`, d.Milliseconds()), nil
	}
}

// sleepTime decodes the payload of a sleep task. It returns an error for
// anything but exactly one of the two forms, from 0 to maxSleep.
func sleepTime(payload []byte) (time.Duration, error) {
	var p struct {
		MS       *int64  `json:"ms"`
		Duration *string `json:"duration"`
	}
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&p); err != nil {
		return 0, fmt.Errorf("payload is not {\"ms\": …} or {\"duration\": …}: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return 0, errors.New("payload has more than one JSON value")
	}
	if (p.MS == nil) == (p.Duration == nil) {
		return 0, errors.New("payload needs either ms or duration")
	}
	if p.MS != nil {
		if *p.MS < 0 || *p.MS > maxSleep.Milliseconds() {
			return 0, fmt.Errorf("ms is not between 0 and %d", maxSleep.Milliseconds())
		}
		return time.Duration(*p.MS) * time.Millisecond, nil
	}
	d, err := time.ParseDuration(*p.Duration)
	if err != nil {
		return 0, errors.New("duration is not a time such as 1s or 1m30s")
	}
	if d < 0 || d > maxSleep {
		return 0, fmt.Errorf("duration is not between 0 and %v", maxSleep)
	}
	return d, nil
}
