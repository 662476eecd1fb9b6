package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
)

var (
	shellBlock = regexp.MustCompile("(?s)```(?:sh|console)\n(.*?)```")
	docAddress = regexp.MustCompile(`(localhost|127\.0\.0\.1):8080`)
	httpStatus = regexp.MustCompile(`<status (\d+)>`)
)

// curls returns the calls of an orchestrator in a document, each as one command.
func curls(text string) (calls []string) {
	for _, block := range shellBlock.FindAllStringSubmatch(text, -1) {
		command := ""
		for line := range strings.SplitSeq(block[1], "\n") {
			if command == "" && !strings.HasPrefix(line, "curl ") {
				continue
			}
			command += line + "\n"
			if strings.HasSuffix(line, `\`) || strings.Count(command, "'")%2 == 1 {
				continue
			}
			if docAddress.MatchString(command) {
				calls = append(calls, strings.TrimSpace(command))
			}
			command = ""
		}
	}
	return calls
}

// Every call in the documents is taken: it may find nothing, or what it is about in
// another state, as nothing of what surrounds it in the text was done.
func TestDocumentedCalls(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: time.Minute}
	tokens := tokensFile(t)
	addr := freeAddr(t)
	s.orchestrator(addr, "PENSTOCK_AUTH_TOKENS_FILE="+tokens, "PENSTOCK_AUTH_ANONYMOUS_ROLES=operator,producer")
	waitReady(t, addr)
	s.worker(echoConfig)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "alice.token"), []byte(token("alice")), 0o600))
	files, err := filepath.Glob("../../docs/*.md")
	must(t, err)
	c, n := testkit.Client(t, "http://"+addr), 0
	// The last one: its rule stops what the others enqueue, even before it is dispatched.
	const last = "../../docs/approvals.md"
	files = slices.DeleteFunc(files, func(f string) bool { return f == last })
	for _, file := range append(files, "../../README.md", "../../deploy/README.md", last) {
		text, err := os.ReadFile(file)
		must(t, err)
		if file == last {
			for _, id := range []string{"fetch-42", "join-42"} { // of docs/dependencies.md
				if got, err := c.Wait(t.Context(), "", id); err != nil || got.State != "succeeded" {
					t.Errorf("%s: %v, %v", id, got, err)
				}
			}
		}
		for _, call := range curls(string(text)) {
			n++
			command := strings.Replace(docAddress.ReplaceAllString(call, addr), "curl ", "curl -s -m 20 -w '<status %{http_code}>' ", 1)
			cmd := exec.CommandContext(t.Context(), "bash", "-c", command)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "TOKEN="+token("alice"))
			out, err := cmd.CombinedOutput()
			status := httpStatus.FindSubmatch(out)
			if err != nil || status == nil {
				t.Errorf("%s: %s: %v: %s", file, call, err, out)
				continue
			}
			switch code := string(status[1]); code {
			case "200", "404", "409":
			default:
				t.Errorf("%s: %s: %s", file, call, out)
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d calls", n)
	}
}
