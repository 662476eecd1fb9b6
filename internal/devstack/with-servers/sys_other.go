//go:build !linux

package main

import "syscall"

// dieWithParent has no effect outside Linux.
func dieWithParent() *syscall.SysProcAttr { return nil }

// interruptReachesChildren errs on the side of forwarding.
func interruptReachesChildren() bool { return false }
