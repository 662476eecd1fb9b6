package app

import (
	"net/http"
	"sync/atomic"
)

// gate answers on the RPC port from the very start: alive, but not ready,
// until the stores can be used and the real handler takes over.
type gate struct{ handler atomic.Pointer[http.Handler] }

func newGate() *gate {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"alive"}` + "\n"))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"status":"not ready","reasons":["starting: waiting for Postgres and Redis"]}` + "\n"))
	})
	g := &gate{}
	g.open(mux)
	return g
}

// open puts another handler in place.
func (g *gate) open(h http.Handler) { g.handler.Store(&h) }

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) { (*g.handler.Load()).ServeHTTP(w, r) }
