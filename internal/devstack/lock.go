package devstack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// lockName is the file in a data directory whose lock a live stack holds.
const lockName = "lock"

// errLocked reports a lock that a live process holds.
var errLocked = errors.New("locked by another process")

// acquireLock locks the file at path, creating it if need be, and writes the
// caller's process id into it. The lock ends when the file is closed or the
// process dies; the file is opened close-on-exec, so children do not hold it.
// The error wraps errLocked when a live process, perhaps this one, has it.
func acquireLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("devstack: opening a lock file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := "another process"
		if data, readErr := io.ReadAll(io.LimitReader(f, 32)); readErr == nil && len(data) > 0 {
			holder = "process " + strings.TrimSpace(string(data))
		}
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("held by %s: %w", holder, errLocked)
		}
		return nil, fmt.Errorf("devstack: locking %s: %w", path, err)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("devstack: writing the lock file %s: %w", path, err)
	}
	return f, nil
}
