package handlers

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// groupAttr puts a child into a process group of its own, and has the kernel
// kill it if the worker dies without having stopped it. The latter holds for
// the child alone, not for its children.
func groupAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// await waits for the child's exit, calls exited, kills what is left of its
// group and returns what exec.Cmd.Wait does.
//
// It waits without reaping the child at first: as long as that is a zombie its
// id is not given to another process, so a signal to the group reaches no
// stranger.
func (c *child) await(exited func()) error {
	var err error
	for {
		err = unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil { // not to be expected; the child may still run
		err = c.cmd.Wait()
		exited()
		return err
	}
	exited()
	c.signal(unix.SIGKILL)
	return c.cmd.Wait()
}
