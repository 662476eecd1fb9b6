package devstack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// maxSocketPath is the longest path in bytes that a unix socket can have.
	maxSocketPath = 107
	// longestSocket is the longest name of a socket in the socket directory.
	longestSocket = ".s.PGSQL.65535"
	redisSocket   = "redis.sock"
	// orphanLimit bounds the wait for servers of a killed supervisor to end.
	orphanLimit = 10 * time.Second
)

// layout names what a data directory holds.
type layout struct {
	dir string // belongs to the caller; the servers own the directories inside

	postgres, postgresInit, postgresLog, initdbLog string

	redis, redisConf, redisLog string

	sockets, state string
}

func layoutOf(dir string) layout {
	in := func(name string) string { return filepath.Join(dir, name) }
	return layout{
		dir:          dir,
		postgres:     in("postgres"),
		postgresInit: in("postgres.init"),
		postgresLog:  in("postgres.log"),
		initdbLog:    in("initdb.log"),
		redis:        in("redis"),
		redisConf:    in("redis.conf"),
		redisLog:     in("redis.log"),
		sockets:      in("run"),
		state:        in("state.json"),
	}
}

// openDir creates and locks the data directory, an empty one below temp. The layout's paths are free of
// symbolic links. cleanup gives up everything acquired and, with a temporary
// directory, removes it.
func openDir(dir, temp string, a *account) (l layout, cleanup func() error, err error) {
	if dir == "" {
		path, lock, err := newTempDir(tempBase(temp, a), dataPrefix)
		if err != nil {
			return l, nil, err
		}
		l = layoutOf(path)
		return l, func() error { return errors.Join(removeTemp(l), lock.Close()) }, nil
	}
	path, err := filepath.Abs(dir)
	if err == nil {
		err = makeParents(filepath.Dir(path))
	}
	if err == nil {
		if err = os.Mkdir(path, 0o700); os.IsExist(err) {
			err = nil
		}
	}
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return l, nil, fmt.Errorf("devstack: creating the data directory: %w", err)
	}
	lock, err := acquireLock(filepath.Join(path, lockName))
	if errors.Is(err, errLocked) {
		return l, nil, fmt.Errorf("devstack: the data directory %s is in use (%w); stop that process or choose another directory", path, err)
	}
	if err != nil {
		return l, nil, err
	}
	return layoutOf(path), lock.Close, nil
}

// makeParents creates dir and its parents, those that are missing searchable by
// everyone whatever the caller's umask.
func makeParents(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeParents(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return os.Chmod(dir, 0o755)
}

// makeReachable lets the account get at the data directory and its parents.
func (l layout) makeReachable(a *account) error {
	if a == nil {
		return nil
	}
	fi, err := os.Stat(l.dir)
	if err != nil {
		return fmt.Errorf("devstack: checking the data directory: %w", err)
	}
	if !a.canSearch(fi) {
		if err := os.Chmod(l.dir, fi.Mode().Perm()|0o011); err != nil {
			return fmt.Errorf("devstack: letting user %s search the data directory: %w", a.name, err)
		}
	}
	return a.reach(l.dir)
}

// openSockets creates the empty directory for the servers' sockets: in the data
// directory, or a short one below /tmp when the sockets' paths would be too
// long for the system.
func (l *layout) openSockets(a *account) (cleanup func() error, err error) {
	cleanup = func() error { return nil }
	if len(filepath.Join(l.sockets, longestSocket)) > maxSocketPath {
		dir, lock, err := newTempDir("/tmp", socketPrefix)
		if err != nil {
			return nil, err
		}
		cleanup = func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }
		if a != nil {
			if err := os.Chmod(dir, 0o711); err != nil {
				return nil, errors.Join(fmt.Errorf("devstack: opening the socket directory: %w", err), cleanup())
			}
		}
		l.sockets = filepath.Join(dir, "s")
	}
	err = os.RemoveAll(l.sockets) // stale sockets of a killed server
	if err == nil {
		err = a.privateDir(l.sockets)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devstack: creating the socket directory: %w", err), cleanup())
	}
	return cleanup, nil
}

// awaitOrphans waits for servers that a killed supervisor left behind: they
// have been told to stop by the kernel but may need a moment.
func (l layout) awaitOrphans(ctx context.Context) error {
	for _, dir := range []string{l.postgres, l.postgresInit, l.redis} {
		if pids := awaitNone(ctx, dir, orphanLimit); len(pids) > 0 {
			return fmt.Errorf("devstack: processes %v still use %s although their supervisor is gone; end them or choose another data directory", pids, dir)
		}
	}
	return nil
}

// awaitNone waits until no process works in dir and returns those that do when
// limit has passed or ctx has ended.
func awaitNone(ctx context.Context, dir string, limit time.Duration) []int {
	pids := processesIn(dir)
	if len(pids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for len(pids) > 0 {
		select {
		case <-ctx.Done():
			return pids
		case <-tick.C:
			pids = processesIn(dir)
		}
	}
	return nil
}

// removeTemp removes a temporary data directory, after the last worker of a
// server that had to be killed has noticed and gone.
func removeTemp(l layout) error {
	awaitNone(context.Background(), l.postgres, killLimit)
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("devstack: removing the temporary data directory: %w", err)
	}
	return nil
}
