package rpc

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"
)

// Defaults of Options.
const (
	// DefaultMaxBatchBytes bounds an EnqueueBatch request: 64 MiB.
	DefaultMaxBatchBytes = 64 << 20
	// DefaultMaxMessageBytes bounds every other request: 4 MiB.
	DefaultMaxMessageBytes = 4 << 20
	// DefaultWatchKeepAlive is the time between keep-alive comments on a
	// server-sent event stream.
	DefaultWatchKeepAlive = 15 * time.Second
)

// maxLimit is the largest accepted byte limit, 1 GiB: the transcoder counts
// bytes in 32 bits and needs room for a response larger than its request.
const maxLimit = 1 << 30

// Options configure NewHandler. The zero value is usable.
type Options struct {
	// Logger receives internal errors, panics and outages. Nil: slog.Default.
	Logger *slog.Logger
	// Ready tells whether the process can serve. It is called for every health
	// check and must return within a few seconds; its context ends after
	// three. The text of its error is shown to anyone who asks /readyz, one
	// reason for each error joined with errors.Join, so it must not hold
	// secrets. Nil: always ready.
	Ready func(ctx context.Context) error
	// Metrics serves GET /metrics. Nil: there is no such path.
	Metrics http.Handler
	// MaxBatchBytes bounds one EnqueueBatch request after decompression.
	// 0: DefaultMaxBatchBytes. At most 1 GiB.
	MaxBatchBytes int
	// MaxMessageBytes bounds one request of every other method after
	// decompression. 0: DefaultMaxMessageBytes. At most 1 GiB.
	MaxMessageBytes int
	// WatchKeepAlive is the time between keep-alive comments on
	// GET /api/v1/events/watch. 0: DefaultWatchKeepAlive.
	WatchKeepAlive time.Duration
	// Gate decides by a call's headers whether it may be made, before anything of
	// its body is read, and may return the context that the call goes on with. Its
	// errors are mapped as the services' are (see ToConnect). Nil: every call may.
	Gate connect.RequestGateFunc
	// Ambient tells whether a request may do anything although it shows no token: a
	// browser that is made to send it by a stranger's page could, too. Such requests
	// must name this server in Host by an IP address, a name without a dot, or one
	// of AllowedHosts (see Browsers). Nil: no.
	Ambient func() bool
	// AllowedHosts are further names, without a port; "*.example.com" stands for all
	// below example.com, "*" for every name.
	AllowedHosts []string
	// Interceptors run around every call of the services, the first outermost,
	// also for requests that the service will not see because they cannot be
	// decoded. They see errors that are mapped already; their own errors are
	// mapped as the services' are (see ToConnect), their panics are left to
	// net/http.
	Interceptors []connect.Interceptor
	// Handlers serve further paths: each all paths that begin with its key, which
	// begins and ends with a slash, e.g. "/api/v1/internal/". No key may begin
	// with another. Interceptors do not run for them, and their errors should look
	// like those of the REST API: see WriteProblem.
	Handlers map[string]http.Handler
}

func (o Options) limits() limits { return limits{batch: o.MaxBatchBytes, message: o.MaxMessageBytes} }

// withDefaults returns o with every zero value replaced.
func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Ready == nil {
		o.Ready = func(context.Context) error { return nil }
	}
	if o.MaxBatchBytes == 0 {
		o.MaxBatchBytes = DefaultMaxBatchBytes
	}
	if o.MaxMessageBytes == 0 {
		o.MaxMessageBytes = DefaultMaxMessageBytes
	}
	if o.Gate == nil {
		o.Gate = func(ctx context.Context, _ connect.Spec, _ connect.Peer, _ http.Header) (context.Context, error) {
			return ctx, nil
		}
	}
	if o.WatchKeepAlive == 0 {
		o.WatchKeepAlive = DefaultWatchKeepAlive
	}
	return o
}
