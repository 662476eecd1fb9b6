package devstack

import (
	"fmt"
	"io"
	"os"
	"strings"
)

const (
	// maxLogSize is the size in bytes at which a log is set aside before the
	// next start of its server. One older log is kept.
	maxLogSize = 16 << 20
	// Errors quote at most this much of a log.
	tailLines = 20
	tailBytes = 8 << 10
)

// openLog opens a server's log for appending and returns the offset at which
// this run's output begins.
func openLog(path string) (*os.File, int64, error) {
	if fi, err := os.Stat(path); err == nil && fi.Size() > maxLogSize {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, fmt.Errorf("devstack: setting aside the log %s: %w", path, err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("devstack: opening a server log: %w", err)
	}
	fi, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("devstack: opening a server log: %w", err)
	}
	return f, fi.Size(), nil
}

// logTail returns the last lines written to path after offset from, without a
// trailing newline. It returns "" when there is nothing to read.
func logTail(path string, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return ""
	}
	cut := fi.Size()-tailBytes > from
	if cut {
		from = fi.Size() - tailBytes
	}
	data, err := io.ReadAll(io.NewSectionReader(f, from, tailBytes))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if cut {
		lines = lines[1:] // most likely half a line
	}
	if len(lines) > tailLines {
		lines = lines[len(lines)-tailLines:]
	}
	return strings.Join(lines, "\n")
}
