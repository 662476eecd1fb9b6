//go:build !linux

package devstack

import "syscall"

// procAttr returns the attributes of a child that terminal signals do not
// reach. Only Linux can also signal it when its parent dies.
func procAttr(_ syscall.Signal, cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: cred}
}

// processesIn reports nothing: only Linux tells where a process works.
func processesIn(string) []int { return nil }
