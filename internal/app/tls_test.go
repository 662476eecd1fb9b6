package app

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/tlsfiles"
	"github.com/penstock-dev/penstock/internal/tlsfiles/tlstest"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// A port that other machines reach opens only if callers are known, or if
// nobody wants to know.
func TestExposedPortIsRefused(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t, "ca")
	cert, key := ca.Issue(t, "server")
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		what string
		edit func(*config.Orchestrator)
		ok   bool
	}{
		{"loopback", func(*config.Orchestrator) {}, true},
		{"localhost", func(c *config.Orchestrator) { c.Server.Listen = "localhost:0" }, true},
		{"every address", func(c *config.Orchestrator) { c.Server.Listen = ":0" }, false},
		{"every IPv4 address", func(c *config.Orchestrator) { c.Server.Listen = "0.0.0.0:0" }, false},
		{"TLS without client certificates", func(c *config.Orchestrator) {
			c.Server.Listen, c.Server.TLS = ":0", config.ServerTLS{CertFile: cert, KeyFile: key}
		}, false},
		{"client certificates", func(c *config.Orchestrator) {
			c.Server.Listen, c.Server.TLS = ":0", config.ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: ca.File}
		}, true},
		{"tokens", func(c *config.Orchestrator) { c.Server.Listen, c.Auth.TokensFile = ":0", tokens }, true},
		{"as told", func(c *config.Orchestrator) { c.Server.Listen, c.Auth.AllowUnauthenticated = ":0", true }, true},
		{"tokens, and anybody reads", func(c *config.Orchestrator) {
			c.Server.Listen, c.Auth.TokensFile, c.Auth.AnonymousRoles = ":0", tokens, []string{"viewer"}
		}, true},
		{"tokens that nobody needs", func(c *config.Orchestrator) {
			c.Server.Listen, c.Auth.TokensFile, c.Auth.AnonymousRoles = ":0", tokens, []string{"viewer", "producer"}
		}, false},
		{"tokens that nobody needs, on loopback", func(c *config.Orchestrator) { c.Auth.TokensFile, c.Auth.AnonymousRoles = tokens, []string{"admin"} }, true},
		{"tokens that nobody needs, as told", func(c *config.Orchestrator) {
			c.Server.Listen, c.Auth.TokensFile, c.Auth.AnonymousRoles, c.Auth.AllowUnauthenticated = ":0", tokens, []string{"admin"}, true
		}, true},
	} {
		cfg := testConfig("postgres://127.0.0.1:1/x", "redis://127.0.0.1:1")
		tc.edit(&cfg)
		e, err := openEntrance(cfg, quiet)
		if (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.what, err)
		}
		if err != nil {
			for _, part := range []string{"server.listen: ", "auth.", "server.tls.client_ca_file", "auth.allow_unauthenticated", "127.0.0.1"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%s: %v does not name %s", tc.what, err, part)
				}
			}
			if _, err := net.Dial("tcp", e.listener.Addr().String()); err == nil {
				t.Errorf("%s: the port is open", tc.what)
			}
			continue
		}
		_ = e.listener.Close()
	}
	cfg := testConfig("postgres://127.0.0.1:1/x", "redis://127.0.0.1:1")
	cfg.Server.Listen = "0.0.0.0:0"
	if _, err := NewOrchestrator(t.Context(), cfg, quiet); err == nil || !strings.Contains(err.Error(), "auth.allow_unauthenticated") {
		t.Errorf("%v", err)
	}
	cfg.Server.TLS = config.ServerTLS{CertFile: "none", KeyFile: key}
	if _, err := NewOrchestrator(t.Context(), cfg, quiet); err == nil || !strings.HasPrefix(err.Error(), "server.tls: open none") {
		t.Errorf("%v", err)
	}
}

// TestMutualTLS runs an orchestrator that asks for certificates and tokens, calls
// it in every protocol, and lets a worker with both send heartbeats to it.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ca, strangers := tlstest.NewCA(t, "ca"), tlstest.NewCA(t, "strangers")
	cert, key := ca.Issue(t, "server")
	good := tlsfiles.Client{CAFile: ca.File}
	good.CertFile, good.KeyFile = ca.Issue(t, "caller")
	bad := tlsfiles.Client{CAFile: ca.File}
	bad.CertFile, bad.KeyFile = strangers.Issue(t, "stranger")
	redis := devtest.Redis(t)
	g := newGuarded(t, func(c *config.Orchestrator) {
		c.Redis.URL = redis
		c.Server.TLS = config.ServerTLS{CertFile: cert, KeyFile: key, ClientCAFile: ca.File}
	})
	if !strings.HasPrefix(g.url, "https://") {
		t.Fatalf("URL %s", g.url)
	}
	for _, files := range []tlsfiles.Client{{}, {CAFile: ca.File}, bad} {
		resp, err := newHTTPClient(t, clientTLS(t, files)).Get(g.url + "/livez")
		if err == nil {
			_ = resp.Body.Close()
			t.Errorf("a handshake with %+v succeeded", files)
		}
	}
	http2 := newHTTPClient(t, clientTLS(t, good))
	for name, opts := range map[string][]connect.ClientOption{"grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}, "connect": nil} {
		for caller, code := range map[string]connect.Code{"viewer": 0, "worker": connect.CodePermissionDenied, "": connect.CodeUnauthenticated} {
			req := connect.NewRequest(&penstockv1.CountTasksRequest{})
			if caller != "" {
				req.Header().Set("Authorization", "Bearer "+tokenOf(caller))
			}
			_, err := penstockv1connect.NewTaskServiceClient(http2, g.url, opts...).CountTasks(t.Context(), req)
			if err == nil && code != 0 || err != nil && connect.CodeOf(err) != code {
				t.Errorf("%s as %q: %v", name, caller, err)
			}
		}
	}
	g.http = http2
	if status, body := g.ask(t, "viewer", http.MethodGet, "/api/v1/tasks", "", nil); status != http.StatusOK {
		t.Errorf("REST: %d %s", status, body)
	}

	beats(t, g, redis, clientTLS(t, good))
}

func clientTLS(t *testing.T, files tlsfiles.Client) *tls.Config {
	t.Helper()
	cfg, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// beats runs a worker with a token and one with a token of another role: the
// first is listed, with the progress of its task.
func beats(t *testing.T, g *guarded, redis string, cfg *tls.Config) {
	t.Helper()
	c, err := client.NewWith(g.url, client.Options{TLS: cfg, Token: tokenOf("admin")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	release := make(chan struct{})
	for _, role := range []string{"worker", "viewer"} {
		w, err := worker.New(worker.Options{
			RedisURL: redis, Name: role, OrchestratorURL: g.url, OrchestratorTLS: cfg, OrchestratorToken: tokenOf(role),
			HeartbeatInterval: 20 * time.Millisecond, Queues: []string{role}, Log: quiet, IgnoreSignals: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		w.HandleRaw("t", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
			if err := task.RecordProgress(ctx, map[string]int{"percent": 42}); err != nil {
				t.Error(err)
			}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil, nil
		})
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { close(release) })
	out, err := c.EnqueueTask(t.Context(), &task.Request{Type: "t", Queue: "worker", Payload: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		workers, err := c.Workers().ListWorkers(t.Context(), connect.NewRequest(&penstockv1.ListWorkersRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		events, err := c.RPC().ListEvents(t.Context(), connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: out.TaskID}))
		if err != nil {
			t.Fatal(err)
		}
		got := events.Msg.String()
		if len(workers.Msg.Workers) == 1 && strings.HasPrefix(workers.Msg.Workers[0].WorkerId, "worker") && strings.Contains(got, "task.progress") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("workers %v, events %s", workers.Msg, got)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

// TestDevAnonymousRoles: in dev everybody may do everything, as long as only
// this machine can call.
func TestDevAnonymousRoles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		listen string
		allow  bool
		given  []string
		want   int
	}{
		{"127.0.0.1:0", false, nil, 7}, {"[::1]:0", false, nil, 7}, {"localhost:0", false, nil, 7}, {"127.0.0.1:0", false, []string{"viewer"}, 1},
		{":0", false, nil, 0}, {"0.0.0.0:0", false, nil, 0}, {"example.com:0", false, nil, 0}, {":0", true, nil, 7},
	} {
		o := DevOptions{Dir: t.TempDir(), Principals: []string{"alice roles=viewer"}, Orchestrator: config.DefaultOrchestrator()}
		o.Orchestrator.Server.Listen = tc.listen
		o.Orchestrator.Auth.AllowUnauthenticated, o.Orchestrator.Auth.AnonymousRoles = tc.allow, tc.given
		d := &Dev{}
		if err := d.makeTokens(&o); err != nil {
			t.Fatal(err)
		}
		if got := o.Orchestrator.Auth.AnonymousRoles; len(got) != tc.want {
			t.Errorf("%+v: %v", tc, got)
		}
		if got := o.Orchestrator.Guard.AllowAnonymous; got != (tc.want == 7) {
			t.Errorf("%+v: guard.allow_anonymous is %t", tc, got)
		}
		if len(d.TokenFiles) != 1 || o.Worker.Orchestrator.Token == "" {
			t.Errorf("token files %q", d.TokenFiles)
		}
		_ = d.Close()
	}
}
