package rpc

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/penstock-dev/penstock/internal/health"
)

// readyTimeout bounds one readiness check.
const readyTimeout = 3 * time.Second

// readiness answers health checks.
type readiness struct {
	ready    func(context.Context) error
	services []string // full names
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

// ServeHTTP answers /readyz: 200, or 503 with the reasons.
func (h readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	health.Ready(w, h.check(r.Context()), nil)
}

// livez answers /livez.
func livez(w http.ResponseWriter, _ *http.Request) { health.Live(w, nil) }
