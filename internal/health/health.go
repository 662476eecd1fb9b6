// Package health answers probes over HTTP.
package health

import (
	"encoding/json"
	"net/http"
)

// Status is the body of /livez and /readyz.
type Status struct {
	Status string `json:"status"`
	// Reasons are the errors that keep the process from being alive or ready.
	Reasons []string `json:"reasons,omitempty"`
	// StuckHandlers is how many handlers of a worker ignore their cancellation.
	StuckHandlers *int `json:"stuck_handlers,omitempty"`
}

// Live answers /livez by what is wrong, if anything.
func Live(w http.ResponseWriter, err error) { answer(w, err, Status{Status: "alive"}, "not alive") }

// Ready answers /readyz by what is wrong, if anything; stuck may be nil.
func Ready(w http.ResponseWriter, err error, stuck *int) {
	answer(w, err, Status{Status: "ready", StuckHandlers: stuck}, "not ready")
}

// answer sends a status that nobody may keep: 200, or 503 with the reasons.
func answer(w http.ResponseWriter, err error, s Status, not string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	code := http.StatusOK
	if err != nil {
		s.Status, s.Reasons, code = not, reasons(err), http.StatusServiceUnavailable
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(s)
}

// reasons lists the errors that were joined into err.
func reasons(err error) []string {
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // only the outermost join counts
	if !ok {
		return []string{err.Error()}
	}
	var texts []string
	for _, e := range joined.Unwrap() {
		texts = append(texts, reasons(e)...)
	}
	return texts
}
