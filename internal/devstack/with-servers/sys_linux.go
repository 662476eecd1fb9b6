package main

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the command end when with-servers is killed.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}

// interruptReachesChildren reports whether the terminal sends an interrupt to
// the command as well, which is the case when this process group has the
// terminal.
func interruptReachesChildren() bool {
	group, err := unix.IoctlGetInt(int(os.Stdin.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
