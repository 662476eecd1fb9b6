// Command orchestrator: see its --help.
package main

import (
	"os"
	"runtime/debug"

	"github.com/penstock-dev/penstock/internal/cli"
)

// What an orchestrator keeps is small, and what it makes for each call is soon
// garbage: collecting it when it is three times as much as what is kept, instead of
// as much, takes a third of the time. memoryLimit bounds what that may come to.
const (
	gcPercent   = 300
	memoryLimit = 96 << 20
)

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
	os.Exit(cli.Main(cli.Orchestrator()))
}
