package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// debug serves profiles of this process, on a port of their own that only this
// machine reaches: whoever gets there may see what is in memory.
type debug struct {
	listener net.Listener
	server   *http.Server
}

// openDebug serves from now on, also while the stores are waited for. Without an
// address it returns nil.
func openDebug(listen string, log *slog.Logger) (*debug, error) {
	if listen == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("debug.listen: %w", err)
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() { // what localhost means is up to the machine
		return nil, errors.Join(fmt.Errorf("debug.listen: other machines can reach %s; write 127.0.0.1", l.Addr()), l.Close())
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	// A profile takes as long as its caller says: there is no limit of the answer.
	d := &debug{listener: l, server: &http.Server{Handler: onlyAddressed(mux), ReadHeaderTimeout: 5 * time.Second}}
	go func() {
		if err := d.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("profiles are not served any more", "addr", l.Addr().String(), "error", err)
		}
	}()
	log.Info("profiles of this process are served", "url", "http://"+l.Addr().String()+"/debug/pprof/")
	return d, nil
}

// onlyAddressed refuses calls under a name that is not this machine's own: a
// browser can be made to call under any other.
func onlyAddressed(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.Host) {
			http.Error(w, "call it by its address, such as 127.0.0.1", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// close cuts off profiles that are being taken.
func (d *debug) close() {
	if d != nil {
		_ = d.server.Close()
	}
}
