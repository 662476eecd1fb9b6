package devstack

import (
	"context"
	"os/exec"
	"regexp"
	"time"
)

var versionNumber = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// askVersion runs `program --version` and returns the major version it prints,
// or "unknown".
func askVersion(program string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "unknown"
	}
	if m := versionNumber.FindSubmatch(out); m != nil {
		return string(m[1])
	}
	return "unknown"
}
