package devstack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is the user that the servers run as when the caller is root, whom
// Postgres refuses to run as. A nil account means the caller's own user.
type account struct {
	name     string
	uid, gid uint32
}

// serverAccount returns the account for the servers.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr != nil || gidErr != nil || uid == 0 {
			continue
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("devstack: the servers cannot run as root and there is no user postgres or nobody to run them as; create one of them or start as another user")
}

func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own makes path, and with a directory everything below it, belong to the
// account. It costs one look when path belongs to the account already; path
// itself changes hands last, so an interrupted change is taken up again.
func (a *account) own(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("devstack: looking at %s: %w", path, err)
	}
	if a == nil {
		if owner := ownerOf(fi); owner != uint32(os.Geteuid()) {
			return fmt.Errorf("devstack: %s belongs to user id %d, not to the current user; start as that user or choose another data directory", path, owner)
		}
		return nil
	}
	if ownerOf(fi) == a.uid {
		return nil
	}
	err = filepath.WalkDir(path, func(p string, _ fs.DirEntry, err error) error {
		if err != nil || p == path {
			return err
		}
		return os.Lchown(p, int(a.uid), int(a.gid))
	})
	if err == nil {
		err = os.Lchown(path, int(a.uid), int(a.gid))
	}
	if err != nil {
		return fmt.Errorf("devstack: giving %s to user %s: %w", path, a.name, err)
	}
	return nil
}

// privateDir makes dir a directory that only the account can enter.
func (a *account) privateDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("devstack: creating a server directory: %w", err)
	}
	return a.own(dir)
}

// reach makes sure that the account can get to dir, which exists. Directories
// of ours below the system's temporary directory are made searchable, as those
// are created private for no reason of the user's; others are left alone.
func (a *account) reach(dir string) error {
	if a == nil {
		return nil
	}
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		tmp = "/tmp"
	}
	for p := dir; ; p = filepath.Dir(p) {
		fi, err := os.Stat(p)
		if err != nil {
			return fmt.Errorf("devstack: checking the parents of the data directory: %w", err)
		}
		if !a.canSearch(fi) {
			if ownerOf(fi) != 0 || !strings.HasPrefix(p, tmp+"/") {
				return fmt.Errorf("devstack: user %s, who runs the servers, cannot search the directory %s above the data; choose a data directory elsewhere or run: chmod o+x %s", a.name, p, p)
			}
			if err := os.Chmod(p, fi.Mode().Perm()|0o001); err != nil {
				return fmt.Errorf("devstack: making the data directory reachable: %w", err)
			}
		}
		if p == filepath.Dir(p) {
			return nil
		}
	}
}

func (a *account) canSearch(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	switch mode := fi.Mode(); {
	case !ok:
		return true
	case st.Uid == a.uid:
		return mode&0o100 != 0
	case st.Gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// ownerOf returns the user id that owns a file.
func ownerOf(fi fs.FileInfo) uint32 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return st.Uid
	}
	return 0
}
