package demo

import "syscall"

// procAttr makes a child die with the thread that started it.
func procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
