package rpc

import (
	"log/slog"
	"net/http"
	"time"
)

// Limits of a server made by NewServer.
const (
	readHeaderTimeout    = 10 * time.Second
	idleTimeout          = 3 * time.Minute
	maxHeaderBytes       = 64 << 10
	maxConcurrentStreams = 1000
	pingAfter            = 30 * time.Second
	pingTimeout          = 15 * time.Second
	stalledWriteTimeout  = time.Minute
)

// NewServer returns a server for a handler made by NewHandler that accepts
// HTTP/1.1 and unencrypted HTTP/2 with prior knowledge on the same port (and
// HTTP/2 over TLS if it is started with a certificate). Headers must arrive
// within 10 s and fit in 64 KiB. A body must arrive at 4 KiB/s on the average
// after the first 20 s, and a write be taken within 20 s and a second for each
// 16 KiB. There is no bound of a whole call, as WaitTask and WatchEvents answer
// late and long by design; peers that vanish without closing are found by pings
// (HTTP/2).
//
// Shutdown of the server waits for open calls: the service has to end its
// WatchEvents and WaitTask calls first. A nil logger means slog.Default.
func NewServer(h http.Handler, logger *slog.Logger) *http.Server {
	if logger == nil {
		logger = slog.Default()
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           insistOnProgress(h, progressGrace),
		Protocols:         protocols,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxConcurrentStreams,
			SendPingTimeout:      pingAfter,
			PingTimeout:          pingTimeout,
			WriteByteTimeout:     stalledWriteTimeout,
		},
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn),
	}
}
