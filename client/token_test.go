package client_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// headerTap notes the Authorization header of each call that passes.
type headerTap struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string][]string // by procedure
}

func newHeaderTap(t *testing.T, target string) *headerTap {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	tap := &headerTap{seen: map[string][]string{}}
	next := httputil.NewSingleHostReverseProxy(u)
	next.FlushInterval = -1
	tap.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tap.mu.Lock()
		name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
		tap.seen[name] = append(tap.seen[name], strings.Join(r.Header.Values("Authorization"), "|"))
		tap.mu.Unlock()
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(tap.Close)
	return tap
}

// take returns what was seen since the last call.
func (tap *headerTap) take() map[string][]string {
	tap.mu.Lock()
	defer tap.mu.Unlock()
	seen := tap.seen
	tap.seen = map[string][]string{}
	return seen
}

// callAll makes a call of each kind and returns the errors.
func callAll(t *testing.T, c *client.Client) map[string]error {
	t.Helper()
	errs := map[string]error{}
	_, errs["EnqueueBatch"] = c.EnqueueTask(t.Context(), pending())
	_, errs["GetTask"] = c.Get(t.Context(), "", "nobody")
	_, errs["CountTasks"] = c.RPC().CountTasks(t.Context(), connect.NewRequest(&penstockv1.CountTasksRequest{}))
	_, errs["ListDeadLetters"] = c.DeadLetters().ListDeadLetters(t.Context(), connect.NewRequest(&penstockv1.ListDeadLettersRequest{}))
	stream, err := c.RPC().WatchEvents(t.Context(), connect.NewRequest(&penstockv1.WatchEventsRequest{Position: "earliest"}))
	if err != nil {
		t.Fatal(err)
	}
	stream.Receive()
	errs["WatchEvents"] = stream.Err()
	_ = stream.Close()
	return errs
}

func TestToken(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	made, err := auth.MakeFiles(t.TempDir(), "alice roles=producer,operator")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(made.TokenFiles[0])
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.Config()
	cfg.Auth.TokensFile, cfg.Auth.AnonymousRoles = made.TokensFile, []string{auth.RoleProducer, auth.RoleViewer}
	tap := newHeaderTap(t, testkit.StartOrchestrator(t, cfg).URL)
	if _, err := testkit.Client(t, tap.URL).EnqueueTask(t.Context(), pending()); err != nil { // the orchestrator is up
		t.Fatal(err)
	}
	for _, tc := range []struct {
		token string
		code  connect.Code // of all calls; 0: they succeed
	}{
		{"", 0}, {strings.TrimSpace(string(text)), 0}, {"nobody-0123456789", connect.CodeUnauthenticated},
	} {
		// A dead orchestrator first: the choice of the live one holds for all calls.
		c, err := client.NewWith("http://127.0.0.1:1,"+tap.URL, client.Options{Token: tc.token})
		if err != nil {
			t.Fatal(err)
		}
		tap.take()
		for call, err := range callAll(t, c) {
			switch {
			case tc.code == 0 && err != nil && call != "GetTask", tc.code != 0 && connect.CodeOf(err) != tc.code:
				t.Errorf("token %q: %s: %v", tc.token, call, err)
			case err != nil && tc.token != "" && strings.Contains(err.Error(), tc.token):
				t.Errorf("%s: the error shows the token: %v", call, err)
			}
		}
		header := ""
		if tc.token != "" {
			header = "Bearer " + tc.token
		}
		seen := tap.take()
		for _, call := range []string{"EnqueueBatch", "GetTask", "CountTasks", "ListDeadLetters", "WatchEvents"} {
			if got := seen[call]; len(got) != 1 || got[0] != header {
				t.Errorf("token %q: %s came with %q", tc.token, call, got)
			}
		}
		_ = c.Close()
	}
}

func TestBadToken(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"with a space", "line\nbreak", "é", "\x7f"} {
		_, err := client.NewWith("http://127.0.0.1:1", client.Options{Token: token})
		if err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("%q: %v", token, err)
		}
	}
}
