package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
)

// readyTimeout bounds one readiness check.
const readyTimeout = 3 * time.Second

// readiness answers health checks.
type readiness struct {
	ready    func(context.Context) error
	services []string   // full names
	stuck    func() int // of a worker
}

// check asks whether the process can serve.
func (h readiness) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return h.ready(ctx)
}

// Check implements grpchealth.Checker for the whole process ("") and for each
// service. Other names get NotFound.
func (h readiness) Check(ctx context.Context, req *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if req.Service != "" && !slices.Contains(h.services, req.Service) {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("there is no such service"))
	}
	status := grpchealth.StatusServing
	if h.check(ctx) != nil {
		status = grpchealth.StatusNotServing
	}
	return &grpchealth.CheckResponse{Status: status}, nil
}

// healthStatus is the body of /livez and /readyz.
type healthStatus struct {
	Status string `json:"status"`
	// Reasons are the errors that keep the process from being ready.
	Reasons []string `json:"reasons,omitempty"`
	// StuckHandlers is how many handlers of a worker ignore their cancellation.
	StuckHandlers *int `json:"stuck_handlers,omitempty"`
}

// ServeHTTP answers /readyz: 200, or 503 with the reasons.
func (h readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	code, status := http.StatusOK, healthStatus{Status: "ready"}
	if err := h.check(r.Context()); err != nil {
		code, status = http.StatusServiceUnavailable, healthStatus{Status: "not ready", Reasons: reasons(err)}
	}
	if h.stuck != nil {
		n := h.stuck()
		status.StuckHandlers = &n
	}
	writeStatus(w, code, status)
}

// NewHealthHandler returns a handler of GET /livez and GET /readyz alone, as
// NewHandler answers them, for a worker. ready is as in Options; /readyz also
// tells how many handlers are stuck.
func NewHealthHandler(ready func(context.Context) error, stuck func() int) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", livez)
	mux.Handle("GET /readyz", readiness{ready: ready, stuck: stuck})
	return mux
}

// livez answers /livez.
func livez(w http.ResponseWriter, _ *http.Request) {
	writeStatus(w, http.StatusOK, healthStatus{Status: "alive"})
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

// writeStatus sends a status that nobody may keep.
func writeStatus(w http.ResponseWriter, code int, status healthStatus) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(status)
}
