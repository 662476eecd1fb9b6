// Package e2e tests the programs as processes: they are built once, started,
// killed and restarted under load.
package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
)

// bin is the directory of the built programs.
var bin string

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == stubborn {
		os.Exit(runStubborn())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "penstock-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	bin = dir
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(dir, stubborn))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var out bytes.Buffer
	build := exec.CommandContext(context.Background(), "go", "build", "-o", dir, "./cmd/orchestrator", "./cmd/worker")
	build.Dir, build.Stdout, build.Stderr = filepath.Join("..", ".."), &out, &out
	if err := build.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out.Bytes())
		return 1
	}
	return devtest.Runner{M: m}.Run()
}
