package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/config"
)

const document = "../../../docs/configuration.md"

// TestMain keeps the settings of whoever runs the tests out of them.
func TestMain(m *testing.M) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PENSTOCK_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

func TestDocumentIsUpToDate(t *testing.T) {
	t.Parallel()
	want, err := render()
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if strings.ReplaceAll(string(got), "\r\n", "\n") != want {
		t.Error("docs/configuration.md is out of date; run: go generate ./internal/config")
	}
}

func TestRunWritesTheDocument(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out.md")
	if err := run(out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `server.listen` | string | `127.0.0.1:8080` |  | `PENSTOCK_SERVER_LISTEN` |",
		"| `recovery.visibility_timeout` | duration | `5m` | 300ms to 24h |",
		"| `types` | map | `{}` |  |  |",
		"| `max_retries` | integer | `retry.max_retries` | 0 to 1000 | Additional attempts after the first. |",
		"| `schema` | string |  |  | File with the JSON Schema",
		"\n## Client\n",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the document lacks %q", want)
		}
	}
	if err := run(filepath.Join(t.TempDir(), "missing", "out.md")); err == nil {
		t.Error("run into a missing directory: no error")
	}
}

func TestExamplesLoad(t *testing.T) {
	t.Parallel()
	orchestrator, _, err := config.LoadOrchestrator("example/orchestrator.yaml", nil)
	if err != nil {
		t.Errorf("orchestrator: %v", err)
	}
	if got := orchestrator.DefaultsOf("email.send").Schema; got != filepath.Join("example", "schemas", "email.send.json") {
		t.Errorf("schema of email.send = %q", got)
	}
	worker, _, err := config.LoadWorker("example/worker.yaml", nil)
	if err != nil {
		t.Errorf("worker: %v", err)
	}
	if got := worker.Handlers["email.send"].Headers["Authorization"]; got != "Bearer example" {
		t.Errorf("header of email.send = %q", got)
	}
	if _, _, err := config.LoadClient("example/client.yaml", nil); err != nil {
		t.Errorf("client: %v", err)
	}
}

func TestCells(t *testing.T) {
	t.Parallel()
	if got, want := cell("a|b *.c <d>"), `a\|b \*.c &lt;d>`; got != want {
		t.Errorf("cell = %q, want %q", got, want)
	}
	if got, want := code("a|b"), "`a\\|b`"; got != want {
		t.Errorf("code = %q, want %q", got, want)
	}
	if got := code(""); got != "" {
		t.Errorf("code of nothing = %q", got)
	}
}
