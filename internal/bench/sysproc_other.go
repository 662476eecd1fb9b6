//go:build !linux

package main

import "syscall"

// procAttr: elsewhere, processes that the bench started outlive it if it is
// killed.
func procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
