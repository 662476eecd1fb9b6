package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/auth"
)

// tells checks that a command succeeded and printed each of the texts.
func tells(t *testing.T, got ran, texts ...string) {
	t.Helper()
	want(t, "a command", got, ExitOK)
	for _, s := range texts {
		if !strings.Contains(got.out, s) {
			t.Errorf("%q is not in %s", s, got.out)
		}
	}
}

func TestTokenCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made := run(t, Orchestrator(), "", "token", "create", "alice", "--roles", "viewer,producer", "--expires", "2999-01-01T00:00:00+02:00")
	tells(t, made, "token:", "line:", "alice sha256:", "roles=producer,viewer expires=2999-01-01T00:00:00+02:00")
	fields := strings.Fields(made.out)
	token := fields[1]
	if strings.Count(made.out, token) != 1 || auth.CheckToken(token) != nil {
		t.Errorf("the token %q in %s", token, made.out)
	}
	hashed := run(t, Orchestrator(), token+"\n", "token", "hash")
	tells(t, hashed, fields[4])

	own := filepath.Join(dir, "bob.token")
	line := run(t, Orchestrator(), "", "token", "create", "bob", "--roles", "admin", "--token-out", own)
	tells(t, line, "bob sha256:", "roles=admin")
	text, err := os.ReadFile(own)
	if err != nil || strings.Contains(line.out, strings.TrimSpace(string(text))) {
		t.Errorf("%v: %s", err, line.out)
	}
	if fi, err := os.Stat(own); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	want(t, "the file again", run(t, Orchestrator(), "", "token", "create", "bob", "--roles", "admin", "--token-out", own), ExitFailed, "exists")

	file := filepath.Join(dir, "tokens")
	lines := line.out + "carol carol-0123456789abcdef\ndave dave-0123456789abcdef roles=viewer expires=2001-01-01T00:00:00Z\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	checked := run(t, Orchestrator(), "", "token", "check", file)
	tells(t, checked, "bob", "admin", "MAY CALL NOTHING", "EXPIRED", "3 tokens")
	if strings.Contains(checked.out, "0123456789") {
		t.Errorf("it shows a token: %s", checked.out)
	}
	if err := os.WriteFile(file, []byte("carol carol-0123456789abcdef roles=root\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, "check a bad file", run(t, Orchestrator(), "", "token", "check", file), ExitUsage, "line 1: word 3")

	for what, a := range map[string][]string{
		"--roles is required": {"create", "alice"}, "--roles: role 1": {"create", "alice", "--roles", "root"},
		"--expires: expires= must": {"create", "alice", "--roles", "viewer", "--expires", "tomorrow"},
		"which is over":            {"create", "alice", "--roles", "viewer", "--expires", "2001-01-01T00:00:00Z"},
		"a name must be":           {"create", "a b", "--roles", "viewer"}, "got 5": {"hash"},
	} {
		want(t, what, run(t, Orchestrator(), "short\n", append([]string{"token"}, a...)...), ExitUsage, what)
	}
}
