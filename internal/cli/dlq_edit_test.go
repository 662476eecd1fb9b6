package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// sent are the payloads that were stored.
func sent(f *fakeServer) (out []string) {
	for _, q := range asked[*penstockv1.EditDeadLetterRequest](f) {
		out = append(out, string(q.Payload))
	}
	return out
}

func TestEditSet(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(2)...)
	id := letter(1).DlqId
	r := script(t, f, "edit", id, "--set", "n=2", "--set", "to.name=Bob", "--unset", "to.name", "--set", "to.email=b@example.com", "--reason", "typo")
	want(t, "edit", r, ExitOK, "dlq-replay requeue "+id)
	says(t, r, "is at revision 1", "  ~ /n: 1 → 2\n", "  + /x: ", "  - /y: null\n")
	if got := sent(f); len(got) != 1 || got[0] != `{"z":1.50,"n":2,"to":{"email":"b@example.com"}}` {
		t.Errorf("sent %q", got)
	}
	if q := asked[*penstockv1.EditDeadLetterRequest](f)[0]; q.Revision != 0 || q.Reason != "typo" {
		t.Errorf("asked for %v", q)
	}
	r = script(t, f, "edit", id, "--set", "n=2")
	if want(t, "the same again", r, ExitOK, "unchanged: nothing was stored"); len(sent(f)) != 1 || r.out != "" {
		t.Errorf("stored: %q, %q", sent(f), r.out)
	}
	r = script(t, f, "edit", id, "--set", "n=2", "-o", "json")
	if m := decode(t, r.out); m["changed"] != false || m["requeue"] != nil || m["dead_letter"].(map[string]any)["revision"] != 1.0 {
		t.Errorf("unchanged, as JSON: %s", r.out)
	}
	r = script(t, f, "edit", id, "--original", "--set", "n=5", "--requeue", "-o", "json")
	want(t, "from the original", r, ExitOK)
	m := decode(t, r.out)
	if got := sent(f)[1]; got != `{"z":1.50,"n":5,"to":{"name": "Ann"}}` && got != `{"z":1.50,"n":5,"to":{"name":"Ann"}}` {
		t.Errorf("sent %q", got)
	}
	if m["changed"] != true || len(m["diff"].([]any)) != 3 || m["requeue"].(map[string]any)["task_id"] != "new-task-1" {
		t.Errorf("as JSON: %s", r.out)
	}
	want(t, "requeued before", script(t, f, "edit", id, "--set", "n=6", "--requeue"), ExitConflict, "--again")
	r = script(t, f, "edit", id, "--set", "n=6", "--requeue", "--again")
	want(t, "again", r, ExitOK)
	says(t, r, "requeued as task new-task-1")
	r = script(t, f, "edit", id, "--set", "n=7", "--revision", "1")
	want(t, "another revision", r, ExitConflict, "somebody edited it meanwhile")

	for line, text := range map[string]string{
		"--set n": "PATH=VALUE", "--set to[0]=1": "to is an object", "--unset nothing": "there is no nothing", "--set n=1 --file x": "exclude", "--file /nonexistent": "no such file",
		"": "there is no editor",
	} {
		want(t, line, script(t, f, append([]string{"edit", id}, strings.Fields(line)...)...), ExitUsage, text)
	}
	want(t, "unknown", script(t, f, "edit", "0199eeee-0000-7000-8000-000000000000", "--set", "a=1"), ExitNotFound)
	if len(sent(f)) != 4 {
		t.Errorf("sent %q", sent(f))
	}
}

func TestEditRefused(t *testing.T) {
	t.Parallel()
	gone, entry := letter(1), letter(2)
	gone.Status, entry.TaskId = "discarded", ""
	f := newFake(t, gone, entry, letter(3))
	want(t, "discarded", script(t, f, "edit", gone.DlqId, "--set", "n=2"), ExitConflict, "discarded")
	want(t, "no task", script(t, f, "edit", entry.DlqId, "--set", "n=2"), ExitUsage, "was no task")
	none(t, "refused", f)
	f.before = func(m proto.Message) error {
		if _, ok := m.(*penstockv1.RequeueDeadLettersRequest); ok {
			return protocol.Errorf(protocol.CodeInvalidTransition, "dlq_id", "it is not in stream:dlq yet")
		}
		return nil
	}
	r := script(t, f, "edit", letter(3).DlqId, "--set", "n=2", "--requeue")
	want(t, "edited, not requeued", r, ExitConflict, "the edit is stored, but the dead letter was not requeued", "not in stream:dlq")
}

func TestEditFile(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(1)...)
	id := letter(1).DlqId
	file := filepath.Join(t.TempDir(), "p.json")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("{\n \"n\" : 1.10,\n}\n")
	want(t, "not JSON", script(t, f, "edit", id, "--file", file), ExitUsage, "line 3", file)
	write(" \n")
	want(t, "empty", script(t, f, "edit", id, "--file", file), ExitUsage, "empty")
	write("{\n \"n\" : 1.10\n}\n")
	want(t, "a file", script(t, f, "edit", id, "--file", file), ExitOK)
	want(t, "standard input", operator{stdin: "[1,\n 2]"}.run(t, f, "edit", id, "--file", "-"), ExitOK)
	if got := sent(f); len(got) != 2 || got[0] != `{"n":1.10}` || got[1] != `[1,2]` {
		t.Errorf("sent %q", got)
	}
}

// inEditor edits the first dead letter with a script as the editor; $2 is the
// file.
func inEditor(t *testing.T, f *fakeServer, tty bool, stdin, script string, args ...string) ran {
	t.Helper()
	file := filepath.Join(t.TempDir(), "my editor.sh")
	if err := os.WriteFile(file, []byte("set -e\n"+script+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := operator{con: console{interactive: tty, getenv: func(name string) string {
		return map[string]string{"EDITOR": "false", "VISUAL": "sh '" + file + "' --wait"}[name]
	}}, stdin: stdin}
	return o.run(t, f, append([]string{"edit", letter(1).DlqId}, args...)...)
}

// kept returns what a command says it kept of the user's text, and removes it.
func kept(t *testing.T, r ran) string {
	t.Helper()
	m := regexp.MustCompile(`kept in (\S+)`).FindStringSubmatch(r.err)
	if m == nil {
		t.Fatalf("nothing is kept: %s", r.err)
	}
	text, err := os.ReadFile(m[1])
	if err != nil {
		t.Errorf("the text is lost: %v", err)
	}
	_ = os.Remove(m[1])
	return string(text)
}

func TestEditor(t *testing.T) {
	t.Parallel()
	f := newFake(t, letter(1))
	note := filepath.Join(t.TempDir(), "note")
	r := inEditor(t, f, false, "", fmt.Sprintf(`test "$1" = --wait; cat "$2" > %[1]s; echo "$2" >> %[1]s; stat -c %%a "$2" >> %[1]s; sed -i 's/"Ann"/"Eve"/' "$2"`, note), "--requeue")
	want(t, "edit", r, ExitOK)
	says(t, r, "is at revision 1", "requeued as task new-task-1")
	saw, err := os.ReadFile(note)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(saw)), "\n")
	if lines[0] != "{" || lines[1] != `  "z": 1.50,` || lines[len(lines)-1] != "600" {
		t.Errorf("the editor saw %s", saw)
	}
	if got := sent(f); len(got) != 1 || got[0] != `{"z":1.50,"n":1,"to":{"name":"Eve"}}` {
		t.Errorf("sent %q", got)
	}
	if _, err := os.Stat(lines[len(lines)-2]); !os.IsNotExist(err) {
		t.Errorf("the file was left behind: %v", err)
	}

	f = newFake(t, letter(1))
	r = inEditor(t, f, false, "", `echo "$2" > `+note, "--requeue")
	want(t, "left as it was", r, ExitOK, "unchanged: nothing was stored, and nothing requeued")
	none(t, "unchanged", f)
	if name, _ := os.ReadFile(note); len(name) == 0 {
		t.Error("the editor did not run")
	} else if _, err := os.Stat(strings.TrimSpace(string(name))); !os.IsNotExist(err) {
		t.Errorf("the file was left behind: %v", err)
	}
}

// TestEditorFails: what the user wrote is never lost.
func TestEditorFails(t *testing.T) {
	t.Parallel()
	f := newFake(t, letter(1))
	r := inEditor(t, f, false, "", `echo '{"n":' > "$2"`)
	want(t, "not JSON", r, ExitUsage, "line 2: not JSON", "nothing was stored")
	if text := kept(t, r); text != "{\"n\":\n" {
		t.Errorf("kept %q", text)
	}

	count := filepath.Join(t.TempDir(), "count")
	fixes := fmt.Sprintf(`if test -e %[1]s; then echo '{"n":2}' > "$2"; else touch %[1]s; echo '{' > "$2"; fi`, count)
	r = inEditor(t, f, true, "y\n", fixes)
	want(t, "edited again", r, ExitOK, "not JSON", "Edit it again? [y/N]")
	if got := sent(f); len(got) != 1 || got[0] != `{"n":2}` {
		t.Errorf("sent %q", got)
	}

	r = inEditor(t, f, false, "", `kill -INT $PPID; echo '{"n":3}' > "$2"`)
	want(t, "Ctrl-C in the editor", r, ExitOK)
	if got := sent(f); len(got) != 2 || got[1] != `{"n":3}` {
		t.Errorf("sent %q", got)
	}

	r = inEditor(t, f, true, "n\n", `echo '{' > "$2"`)
	want(t, "given up", r, ExitUsage, "kept in")
	kept(t, r)
	r = inEditor(t, f, false, "", `exit 3`)
	want(t, "the editor fails", r, ExitFailed, "exit status 3", "kept in")
	kept(t, r)

	f.before = func(m proto.Message) error {
		if _, ok := m.(*penstockv1.EditDeadLetterRequest); ok {
			return protocol.Errorf(protocol.CodeInputInvalid, "payload", "does not match the schema")
		}
		return nil
	}
	r = inEditor(t, f, false, "", `echo '{"n":"x"}' > "$2"`)
	want(t, "refused by the server", r, ExitUsage, "does not match the schema", "kept in")
	if text := kept(t, r); text != "{\"n\":\"x\"}\n" {
		t.Errorf("kept %q", text)
	}
}
