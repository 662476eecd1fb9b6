package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// TestTokens changes the environment, so it does not run in parallel.
func TestTokens(t *testing.T) {
	s := testkit.NewStores(t)
	made, err := auth.MakeFiles(t.TempDir(), "alice roles=producer,operator", "bob roles=viewer")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(made.TokenFiles[0])
	if err != nil {
		t.Fatal(err)
	}
	alice := strings.TrimSpace(string(text))
	cfg := s.Config()
	cfg.Auth.TokensFile = made.TokensFile
	o := testkit.StartOrchestrator(t, cfg)
	count := func(args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append([]string{"task", "count", "--server", o.URL}, args...)...)
	}
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := count("--token", alice)
		return r.code == 0, r.err
	})
	want(t, "nobody", count(), ExitDenied, "takes one of the roles", "send a token", "--token-file")
	want(t, "a viewer who enqueues", run(t, Orchestrator(), "", "enqueue", "t", "{}", "--server", o.URL, "--token-file", made.TokenFiles[1]), ExitDenied,
		"Enqueue takes one of the roles operator, producer, admin, and this token of bob has viewer")
	want(t, "a token", count("--token", alice), ExitOK)
	want(t, "a token file", count("--token-file", made.TokenFiles[1]), ExitOK)
	wrong := count("--token", "nobody-0123456789")
	want(t, "a wrong token", wrong, ExitDenied, "not known", "--token-file")
	if strings.Contains(wrong.err, "nobody-0123456789") {
		t.Errorf("the error shows the token: %s", wrong.err)
	}
	want(t, "a wrong token, streaming", run(t, Orchestrator(), "", "task", "watch", "--server", o.URL, "--token", "nobody-0123456789"), ExitDenied)
	want(t, "no token at all", count("--token", "short"), ExitUsage, "token: ")
	want(t, "both", count("--token", alice, "--token-file", made.TokenFiles[1]), ExitUsage, "set only one")

	t.Setenv("PENSTOCK_TOKEN_FILE", made.TokenFiles[0])
	want(t, "the file by variable", count(), ExitOK)
	want(t, "a flag in its place", count("--token-file", filepath.Join(t.TempDir(), "none")), ExitUsage, "token_file")
	t.Setenv("PENSTOCK_TOKEN_FILE", "")
	t.Setenv("PENSTOCK_TOKEN", "nobody-0123456789")
	want(t, "a wrong token by variable", count(), ExitDenied)
	want(t, "for dead letters", run(t, DLQReplay(), "", "list", "--server", o.URL), ExitDenied)
	want(t, "a right one by flag", count("--token", alice), ExitOK)

	// Without a tokens file every token is wrong.
	plain := testkit.StartOrchestrator(t, s.Config())
	testkit.Eventually(t, "told apart", func() (bool, string) {
		r := run(t, Orchestrator(), "", "task", "count", "--server", plain.URL)
		return r.code == ExitDenied && strings.Contains(r.err, "auth.tokens_file"), r.err
	})
}

func TestTokenIsExposed(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]bool{
		"http://127.0.0.1:8080": false, "http://[::1]:8080": false, "http://localhost": false, "http://127.9.9.9": false,
		"https://example.com": false, "http://example.com": true, "http://10.0.0.1:8080": true, "http://localhost.example.com": true,
	} {
		if got := exposed(server); got != want {
			t.Errorf("%s: %v", server, got)
		}
	}
	// The warning comes before the call, which finds nobody.
	const warning = "warning: the token goes to http://me:xxxxx@penstock.invalid unencrypted"
	for _, server := range []string{"http://me:pw@penstock.invalid", "https://penstock.invalid"} {
		root := Orchestrator()
		var out strings.Builder
		root.SetErr(&out)
		root.SetOut(&out)
		root.SetArgs([]string{"task", "count", "--server", server, "--token", "0123456789abcdef"})
		if err := root.ExecuteContext(t.Context()); err == nil {
			t.Error("somebody answered")
		}
		if n := strings.Count(out.String(), warning); n != strings.Count(server, "http:") {
			t.Errorf("%s: %d warnings in %q", server, n, out.String())
		}
	}
}

func TestDeniedExitCode(t *testing.T) {
	t.Parallel()
	for code, want := range map[connect.Code]int{
		connect.CodeUnauthenticated: ExitDenied, connect.CodePermissionDenied: ExitDenied,
		connect.CodeInvalidArgument: ExitUsage, connect.CodeUnavailable: ExitFailed,
	} {
		if got := exitCode(context.Background(), connect.NewError(code, errors.New("x"))); got != want {
			t.Errorf("%v: %d, want %d", code, got, want)
		}
	}
	if !strings.Contains(exitHelp, "5 not authenticated") {
		t.Error("the help does not tell the exit code")
	}
}

func TestTokenLines(t *testing.T) {
	t.Parallel()
	got := tokenLines([]string{"/d/alice.token", "/d/bob.token"}, devPeople)
	want := "Who you are: export PENSTOCK_TOKEN_FILE=/d/alice.token   # producer, operator\n" +
		"         or: export PENSTOCK_TOKEN_FILE=/d/bob.token   # operator, approver, payloads\n"
	if got != want || tokenLines(nil, devPeople) != "" {
		t.Errorf("%q", got)
	}
}
