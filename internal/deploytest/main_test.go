// Package deploytest checks the files in deploy/ without a container engine:
// against the Compose specification, and against the programs that they run.
package deploytest

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	root        = "../.."
	deploy      = root + "/deploy"
	composeFile = deploy + "/docker-compose.yml"
	envSecrets  = deploy + "/docker-compose.env-secrets.yml"
	secretsDir  = "/run/secrets/"
	ourImage    = "penstock:local"
)

// TestMain keeps the settings of whoever runs the tests out of them.
func TestMain(m *testing.M) {
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "PENSTOCK_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// loadCompose loads Compose files with all profiles, as Compose does: merged,
// with variables from env, validated against the specification's schema.
func loadCompose(env map[string]string, files ...types.ConfigFile) (*types.Project, error) {
	return loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir: deploy, ConfigFiles: files, Environment: env,
	}, loader.WithProfiles([]string{"*"}))
}

// compose loads docker-compose.yml and the files that override it.
func compose(t *testing.T, env map[string]string, overrides ...string) *types.Project {
	t.Helper()
	var files []types.ConfigFile
	for _, name := range append([]string{composeFile}, overrides...) {
		files = append(files, types.ConfigFile{Filename: name, Content: read(t, name)})
	}
	p, err := loadCompose(env, files...)
	if err != nil {
		t.Fatalf("docker-compose.yml: %v", err)
	}
	return p
}

// services returns the services in the order of their names.
func services(p *types.Project) []types.ServiceConfig {
	var list []types.ServiceConfig
	for _, name := range slices.Sorted(maps.Keys(p.Services)) {
		list = append(list, p.Services[name])
	}
	return list
}

func isOrchestrator(s types.ServiceConfig) bool { return strings.HasPrefix(s.Name, "orchestrator-") }

func isStore(s types.ServiceConfig) bool { return s.Name == "postgres" || s.Name == "redis" }

// ours reports whether a service runs the image that deploy/Dockerfile makes.
func ours(s types.ServiceConfig) bool { return s.Image == ourImage }

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// write makes a file in a temporary directory and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
