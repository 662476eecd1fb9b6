package devstack

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const (
	dataPrefix   = "penstock-dev-"
	socketPrefix = "penstock-run-"
	// abandonedAfter is the age at which a temporary directory without a lock
	// file counts as left over from a start that was cut short.
	abandonedAfter = time.Hour
)

// newTempDir creates a locked temporary directory in base. It first removes
// those of dead processes, which could not remove them themselves.
func newTempDir(base, prefix string) (string, *os.File, error) {
	sweep(base, prefix)
	dir, err := os.MkdirTemp(base, prefix)
	if err != nil {
		return "", nil, fmt.Errorf("devstack: creating a temporary directory: %w", err)
	}
	// A lock file appears under its final name locked, lest a sweep take the
	// directory for an abandoned one.
	fresh := filepath.Join(dir, lockName+".new")
	lock, err := acquireLock(fresh)
	if err == nil {
		if err = os.Rename(fresh, filepath.Join(dir, lockName)); err == nil {
			return dir, lock, nil
		}
		_ = lock.Close()
	}
	_ = os.RemoveAll(dir)
	return "", nil, err
}

// sweep removes the caller's temporary directories that no live process holds.
// It is best effort: what cannot be removed now is left to a later sweep.
func sweep(base, prefix string) {
	dirs, err := filepath.Glob(filepath.Join(base, prefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		fi, err := os.Lstat(dir)
		if err != nil || !fi.IsDir() || ownerOf(fi) != uint32(os.Geteuid()) {
			continue
		}
		path := filepath.Join(dir, lockName)
		if _, err := os.Lstat(path); err != nil {
			if os.IsNotExist(err) && time.Since(fi.ModTime()) > abandonedAfter {
				_ = os.RemoveAll(dir)
			}
			continue
		}
		lock, err := acquireLock(path)
		if err != nil {
			continue
		}
		l := layoutOf(dir)
		if len(processesIn(l.postgres)) == 0 && len(processesIn(l.redis)) == 0 {
			_ = os.RemoveAll(dir)
		}
		_ = lock.Close()
	}
}

// tempBase returns the directory for temporary data: the one wanted, else the
// system's, or /tmp when the account cannot get there.
func tempBase(wanted string, a *account) string {
	base, err := filepath.EvalSymlinks(cmp.Or(wanted, os.TempDir()))
	if err != nil || a.reach(base) != nil {
		return "/tmp"
	}
	return base
}
