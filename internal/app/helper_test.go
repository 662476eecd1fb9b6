package app

import (
	"context"
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
)

// runOrchestrator runs one until the test ends and returns its base URL, once it
// answers.
func runOrchestrator(t *testing.T, cfg config.Orchestrator) string {
	t.Helper()
	o, err := NewOrchestrator(t.Context(), cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-o.serving:
	case <-time.After(time.Minute):
		t.Fatal("the orchestrator does not serve")
	}
	return o.URL()
}

// newHTTPClient makes a client whose connections end with the test.
func newHTTPClient(t *testing.T, cfg *tls.Config) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: cfg != nil}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
