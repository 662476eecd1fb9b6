package worker

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// orchestrator is one that the worker may call.
type orchestrator struct {
	workers penstockv1connect.WorkerServiceClient
	effects penstockv1connect.EffectServiceClient
	tasks   penstockv1connect.TaskServiceClient
}

// orchestrators are those that the worker may call: any of them will do. They are
// safe for concurrent use.
type orchestrators struct {
	http    *http.Client
	token   string
	servers []orchestrator
	current atomic.Uint32 // the one that answered last
}

// orchestratorURLs splits Options.OrchestratorURL.
func orchestratorURLs(urls string) ([]string, error) {
	if urls == "" {
		return nil, nil
	}
	var out []string
	for _, s := range strings.Split(urls, ",") {
		s = strings.TrimSpace(s)
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			shown := "(unreadable)" // it may hold a password
			if err == nil {
				shown = u.Redacted()
			}
			return nil, fmt.Errorf("worker: orchestrator URL %q is not a base URL such as http://127.0.0.1:8080", shown)
		}
		out = append(out, strings.TrimSuffix(s, "/"))
	}
	return out, nil
}

// tls returns a copy of the settings of connections to https URLs.
func (o *Options) tls() *tls.Config {
	if o.OrchestratorTLS == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12}
	}
	return o.OrchestratorTLS.Clone()
}

// newOrchestrators returns nil if the options name none.
func newOrchestrators(o *Options) (*orchestrators, error) {
	urls, err := orchestratorURLs(o.OrchestratorURL)
	if err != nil || len(urls) == 0 {
		return nil, err
	}
	c := &orchestrators{token: o.OrchestratorToken, http: &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: callTimeout}).DialContext,
		MaxIdleConnsPerHost: 8,
		IdleConnTimeout:     90 * time.Second,
		TLSClientConfig:     o.tls(),
		ForceAttemptHTTP2:   true,
	}}}
	for _, u := range urls {
		c.servers = append(c.servers, orchestrator{
			workers: penstockv1connect.NewWorkerServiceClient(c.http, u), effects: penstockv1connect.NewEffectServiceClient(c.http, u),
			tasks: penstockv1connect.NewTaskServiceClient(c.http, u),
		})
	}
	return c, nil
}

// close releases idle connections.
func (c *orchestrators) close() {
	if c != nil {
		c.http.CloseIdleConnections()
	}
}

// callAny tries each orchestrator once, for at most callTimeout, beginning with
// the one that answered last, until one answers or final says that the others
// would answer alike.
func callAny[Req, Res any](ctx context.Context, c *orchestrators, m *Req, call func(context.Context, orchestrator, *connect.Request[Req]) (*connect.Response[Res], error), final func(error) bool) (*Res, error) {
	each := callTimeout
	if d, ok := ctx.Deadline(); ok {
		each = min(each, time.Until(d)/time.Duration(len(c.servers)))
	}
	var err error
	for range c.servers {
		n := c.current.Load()
		var res *connect.Response[Res]
		if res, err = callOne(ctx, each, c, c.servers[int(n)%len(c.servers)], m, call); err == nil {
			return res.Msg, nil
		}
		if ctx.Err() != nil || final(err) {
			return nil, err
		}
		c.current.CompareAndSwap(n, n+1)
	}
	return nil, err
}

func callOne[Req, Res any](ctx context.Context, limit time.Duration, c *orchestrators, o orchestrator, m *Req, call func(context.Context, orchestrator, *connect.Request[Req]) (*connect.Response[Res], error)) (*connect.Response[Res], error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req := connect.NewRequest(m)
	if c.token != "" {
		req.Header().Set("Authorization", "Bearer "+c.token)
	}
	return call(ctx, o, req)
}
