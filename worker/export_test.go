package worker

import (
	"net/http"
	"net/http/httptest"
	"time"
)

// SetTimeoutGrace shortens how long a handler may take to return after its
// timeout.
func SetTimeoutGrace(w *Worker, d time.Duration) { w.timeoutGrace = d }

// InFlight is the number of executions that are not settled.
func (w *Worker) InFlight() int { return w.count() }

// SetSoloWait shortens how long a suspect's first delivery waits for what runs.
func SetSoloWait(w *Worker, d time.Duration) { w.soloWait = d }

// HangLoop makes the worker have a loop that finishes no round.
func HangLoop(w *Worker) { w.pulse.Watch("hangs", 0, 0) }

// Livez asks /livez where loops may take that long for a round.
func Livez(w *Worker, limit time.Duration) int {
	w.moveLimit = limit
	r := httptest.NewRecorder()
	w.healthHandler().ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/livez", nil))
	return r.Code
}
