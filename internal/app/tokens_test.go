package app

import (
	"context"
	"errors"
	"io"
	"io/fs"
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
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// TestWrongTokensFile: it is an error of the start, before a port is open.
func TestWrongTokensFile(t *testing.T) {
	t.Parallel()
	cfg := testConfig("postgres://127.0.0.1:1/x", "redis://127.0.0.1:1")
	cfg.Auth.TokensFile = filepath.Join(t.TempDir(), "none")
	if _, err := NewOrchestrator(t.Context(), cfg, quiet); err == nil || !strings.HasPrefix(err.Error(), "auth.tokens_file: ") {
		t.Errorf("%v", err)
	}
}

// callAs calls with a token and returns the code of the error, 0 for none.
func callAs(t *testing.T, url, token string) connect.Code {
	t.Helper()
	c, err := client.NewWith(url, client.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, err = c.RPC().CountTasks(t.Context(), connect.NewRequest(&penstockv1.CountTasksRequest{}))
	if err == nil {
		return 0
	}
	return connect.CodeOf(err)
}

// awaitCode waits until calls with a token end as wanted.
func awaitCode(t *testing.T, url, token string, want connect.Code) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for got := callAs(t, url, token); got != want; got = callAs(t, url, token) {
		if time.Now().After(deadline) {
			t.Fatalf("the call ends with code %v, want %v", got, want)
		}
	}
}

// TestDevTokens runs dev on given servers: the tokens are where its data would
// be, hold over restarts, can be changed meanwhile, and leave no temporary
// directory behind.
func TestDevTokens(t *testing.T) {
	t.Parallel()
	w := config.DefaultWorker()
	w.Handlers = map[string]config.Handler{"echo": {Kind: "echo"}}
	postgres, redis, dir := migratedDatabase(t), devtest.Redis(t), t.TempDir()
	var first string
	for _, in := range []string{dir, dir, ""} {
		d, err := StartDev(t.Context(), DevOptions{Dir: in, Principals: []string{"alice roles=viewer", "bob roles=operator"}, Orchestrator: testConfig(postgres, redis), Worker: w, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		if len(d.TokenFiles) != 2 || in != "" && filepath.Dir(d.TokenFiles[1]) != in {
			t.Fatalf("token files %q", d.TokenFiles)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		url := "http://" + d.Orchestrator.Addr()
		text, err := os.ReadFile(d.TokenFiles[0])
		if err != nil {
			t.Fatal(err)
		}
		token := strings.TrimSpace(string(text))
		awaitCode(t, url, token, 0)
		awaitCode(t, url, "nobody-0123456789", connect.CodeUnauthenticated)
		if first == "" {
			first = token
		} else if (token == first) != (in == dir) {
			t.Errorf("in %q the token is the first one: %v", in, token == first)
		}
		if in == "" {
			tokens := filepath.Join(filepath.Dir(d.TokenFiles[0]), "tokens")
			if err := os.WriteFile(tokens, []byte("carol carol-0123456789abc roles=viewer\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			awaitCode(t, url, "carol-0123456789abc", 0)
			awaitCode(t, url, token, connect.CodeUnauthenticated)
		}
		stop()
		if err := errors.Join(<-done, d.Close()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(d.TokenFiles[0]); errors.Is(err, fs.ErrNotExist) != (in == "") {
			t.Errorf("after the end of dev in %q: %v", in, err)
		}
	}
}

// TestDevKeepsAConfiguredTokensFile: dev makes none beside it.
func TestDevKeepsAConfiguredTokensFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := DevOptions{Dir: dir, Principals: []string{"alice roles=viewer"}, Orchestrator: config.DefaultOrchestrator()}
	o.Orchestrator.Auth.TokensFile = "mine"
	d := &Dev{}
	if err := d.makeTokens(&o); err != nil || d.TokenFiles != nil || o.Orchestrator.Auth.TokensFile != "mine" {
		t.Errorf("%v, %q, %q", err, d.TokenFiles, o.Orchestrator.Auth.TokensFile)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestEventStreamEndsWithItsToken: over server-sent events, too, and it says why.
func TestEventStreamEndsWithItsToken(t *testing.T) {
	t.Parallel()
	var tokens string
	g := newGuarded(t, func(c *config.Orchestrator) { tokens = c.Auth.TokensFile })
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url+"/api/v1/events/watch", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+tokenOf("viewer"))
	res, err := g.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	if err := os.WriteFile(tokens, []byte("ada "+tokenOf("admin")+" roles=admin\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(res.Body) // to its end
	if _, last, _ := strings.Cut(string(all), "event: stream.error\ndata: "); err != nil || !strings.Contains(last, `"status":401`) {
		t.Errorf("the stream ended with %q, %v", all, err)
	}
}
