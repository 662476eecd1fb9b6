//go:build unix && !linux

package handlers

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// groupAttr puts a child into a process group of its own. There is no
// parent-death signal: a worker that is killed leaves its children.
func groupAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// await waits for the child's exit, calls exited and kills what is left of its
// group. Between the wait and the kill an empty group's id might be given to
// another process; only Linux rules that out here.
func (c *child) await(exited func()) error {
	err := c.cmd.Wait()
	exited()
	c.signal(unix.SIGKILL)
	return err
}
