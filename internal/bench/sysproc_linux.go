package main

import "syscall"

// procAttr has the kernel end a child with the thread that started it.
func procAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
