package worker

import "time"

// SetTimeoutGrace shortens how long a handler may take to return after its
// timeout.
func SetTimeoutGrace(w *Worker, d time.Duration) { w.timeoutGrace = d }

// InFlight is the number of executions that are not settled.
func (w *Worker) InFlight() int { return w.count() }

// SetSoloWait shortens how long a suspect's first delivery waits for what runs.
func SetSoloWait(w *Worker, d time.Duration) { w.soloWait = d }
