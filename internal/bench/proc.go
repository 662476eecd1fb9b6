package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ticks is the unit of the times in /proc, on every Linux.
const ticks = 100

// stat returns a process' parent, and the CPU seconds of itself and of its children
// that have ended; nothing where there is no /proc.
func stat(pid int) (parent int, own, ended float64) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, 0
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the name before it may hold anything
	if len(f) < 15 {
		return 0, 0, 0
	}
	n := func(i int) float64 { v, _ := strconv.ParseFloat(f[i], 64); return v }
	return int(n(1)), (n(11) + n(12)) / ticks, (n(13) + n(14)) / ticks
}

// ownCPU is the CPU seconds of a process.
func ownCPU(pid int) float64 { _, own, _ := stat(pid); return own }

// treeCPU is the CPU seconds of a process and of its children, those that have
// ended too.
func treeCPU(pid int) float64 {
	_, own, ended := stat(pid)
	sum := own + ended
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		child, _ := strconv.Atoi(filepath.Base(d))
		if parent, own, _ := stat(child); parent == pid {
			sum += own
		}
	}
	return sum
}

// usedCPU is the CPU seconds of this process, or of its children that have ended
// (RUSAGE_SELF, RUSAGE_CHILDREN).
func usedCPU(who int) float64 {
	var u syscall.Rusage
	if syscall.Getrusage(who, &u) != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// busyCPU is the CPU seconds that the machine's processors were not idle.
func busyCPU() float64 {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	sum := 0.0
	for i, f := range strings.Fields(line) {
		if i > 0 && i < 9 && i != 4 && i != 5 { // idle, iowait; guests are in user
			v, _ := strconv.ParseFloat(f, 64)
			sum += v
		}
	}
	return sum / ticks
}

// peakRSS is the most memory that a process has had, in MB.
func peakRSS(pid int) float64 { return status(pid, "VmHWM:") }

// nowRSS is what it has.
func nowRSS(pid int) float64 { return status(pid, "VmRSS:") }

func status(pid int, field string) float64 {
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	_, rest, _ := strings.Cut(string(b), "\n"+field)
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	kb, _ := strconv.ParseFloat(f[0], 64)
	return kb * 1024 / 1e6
}
