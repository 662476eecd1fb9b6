package devtest

import (
	"crypto/rand"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// owner identifies the holder of a claim: the pid namespace and host where its
// process runs, the process id, when the process started, and a random part
// that tells apart the claims of one process.
type owner string

func thisOwner() owner {
	pid := os.Getpid()
	return owner(strings.Join([]string{place(), strconv.Itoa(pid), startTime(pid), rand.Text()}, " "))
}

// dead reports whether the owner's process is certain to be gone. The owners of
// another host are never certain.
func (o owner) dead() bool {
	parts := strings.Split(string(o), " ")
	if len(parts) != 4 || parts[0] != place() {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	if err != nil || pid <= 0 {
		return false
	}
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	now := startTime(pid)
	return now != "" && parts[2] != "" && now != parts[2]
}

// place names where process ids have a meaning: host, boot and pid namespace.
func place() string {
	host, _ := os.Hostname()
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ns, _ := os.Readlink("/proc/self/ns/pid")
	return strings.ReplaceAll(host+"/"+strings.TrimSpace(string(boot))+"/"+ns, " ", "_")
}

// startTime returns when a process started, in a form only good for comparing,
// or "" when the system does not tell.
func startTime(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The second field, the program's name in parentheses, may hold spaces.
	end := strings.LastIndexByte(string(stat), ')')
	if end < 0 {
		return ""
	}
	fields := strings.Fields(string(stat[end+1:]))
	const startField = 22 - 3 // counted from the third field
	if len(fields) <= startField {
		return ""
	}
	return fields[startField]
}
