package auth

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func content(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMakeFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	made, err := MakeFiles(dir, "alice", "bob")
	if err != nil {
		t.Fatal(err)
	}
	if made.TokensFile != filepath.Join(dir, "tokens") || len(made.TokenFiles) != 2 || made.TokenFiles[1] != filepath.Join(dir, "bob.token") {
		t.Errorf("%+v", made)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if fi, err := e.Info(); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), fi.Mode(), err)
		}
	}
	text := content(t, made.TokensFile)
	tokens, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i, name := range []string{"alice", "bob"} {
		token := strings.TrimSpace(content(t, made.TokenFiles[i]))
		if owner, ok := tokens.Principal(token); !ok || owner != name || strings.Contains(text, token) {
			t.Errorf("the token of %s is %s's, in\n%s", name, owner, text)
		}
		all = append(all, token)
	}
	if all[0] == all[1] || len(all[0]) != 48 {
		t.Errorf("tokens %q", all)
	}
	// What somebody added stays, also without a line break at its end.
	put(t, made.TokensFile, text+"carol "+hashed("carol's-long-token"))
	again, err := MakeFiles(dir, "alice", "bob", "dave")
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, made.TokensFile); !strings.HasPrefix(got, text+"carol ") || !strings.Contains(got, "\ndave ") {
		t.Errorf("the tokens file is now\n%s", got)
	}
	if got := strings.TrimSpace(content(t, again.TokenFiles[0])); got != all[0] {
		t.Error("alice has another token")
	}
	// A token whose line was lost gets it back.
	put(t, made.TokensFile, "")
	if _, err := MakeFiles(dir, "alice", "bob"); err != nil || content(t, made.TokensFile) != text {
		t.Errorf("%v\n%s", err, content(t, made.TokensFile))
	}
	before := []byte(content(t, made.TokensFile))
	if _, err := MakeFiles(dir, "alice"); err != nil || !bytes.Equal(before, []byte(content(t, made.TokensFile))) {
		t.Errorf("%v: the file changed", err)
	}
}

// Files of before there were roles get them, and nobody else's line changes.
// The directory is private, those above it are not: servers of another account
// may have to get through them.
func TestMakeFilesLeavesParentsOpen(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	if _, err := MakeFiles(filepath.Join(top, "above", "tokens"), "alice roles=producer"); err != nil {
		t.Fatal(err)
	}
	usual := filepath.Join(top, "usual")
	if err := os.Mkdir(usual, 0o755); err != nil {
		t.Fatal(err)
	}
	mode := func(path string) fs.FileMode {
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Mode().Perm()
	}
	if got, want := mode(filepath.Join(top, "above")), mode(usual); got != want {
		t.Errorf("mode of the parent is %v, want %v", got, want)
	}
	if got := mode(filepath.Join(top, "above", "tokens")); got != 0o700 {
		t.Errorf("mode of the directory is %v, want 0700", got)
	}
}

func TestMakeFilesAddsRoles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, err := MakeFiles(dir, "alice", "bob")
	if err != nil {
		t.Fatal(err)
	}
	put(t, old.TokensFile, "# mine\n"+content(t, old.TokensFile)+"carol "+hashed("carol's-long-token")+"\n")
	for range 2 {
		if _, err := MakeFiles(dir, "alice roles=producer,operator", "bob"); err != nil {
			t.Fatal(err)
		}
		text := content(t, old.TokensFile)
		tokens, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		alice := tokens.find(strings.TrimSpace(content(t, old.TokenFiles[0])))
		noRoles, _ := tokens.unusable(time.Now())
		if alice == nil || strings.Join(alice.roles, ",") != "operator,producer" || len(noRoles) != 2 || !strings.HasPrefix(text, "# mine\n") {
			t.Errorf("%+v in\n%s", alice, text)
		}
	}
	if _, err := MakeFiles(dir, "dave roles=root"); err == nil || !strings.Contains(err.Error(), "none of") {
		t.Errorf("%v", err)
	}
}

func TestMakeFilesRefuses(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(dir string){
		"line 1":     func(dir string) { put(t, filepath.Join(dir, "tokens"), "nonsense") },
		"remove the": func(dir string) { put(t, filepath.Join(dir, "bob.token"), "short") },
		"another name": func(dir string) {
			put(t, filepath.Join(dir, "tokens"), "eve "+bobToken)
			put(t, filepath.Join(dir, "bob.token"), bobToken)
		},
		"directory": func(dir string) { _ = os.Mkdir(filepath.Join(dir, "bob.token"), 0o700) },
	} {
		dir := t.TempDir()
		prepare(dir)
		if _, err := MakeFiles(dir, "bob"); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
	if _, err := MakeFiles(t.TempDir(), "a/b"); err == nil {
		t.Error("the name a/b was accepted")
	}
}
