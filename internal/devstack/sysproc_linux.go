package devstack

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// procAttr returns the attributes of a child that gets deathSig when the thread
// that started it ends, and that terminal signals do not reach.
func procAttr(deathSig syscall.Signal, cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: deathSig, Credential: cred}
}

// processesIn returns the ids of the live processes whose working directory is
// dir. Both servers work inside their data directories, so this finds servers,
// and their orphaned workers, that outlived an earlier supervisor. Processes
// that the caller may not inspect are left out.
func processesIn(dir string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if cwd, err := os.Readlink(filepath.Join("/proc", e.Name(), "cwd")); err == nil && cwd == dir {
			pids = append(pids, pid)
		}
	}
	return pids
}
