package devtest

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// memoryDir is where Linux keeps files in memory.
const memoryDir = "/dev/shm"

// memoryNeeded is the free space, in bytes, that the servers of a test run may
// come to use, with room to spare. Containers often have 64 MiB.
const memoryNeeded = 3 << 30

// MemoryDir returns a directory whose files are kept in memory, "" if there is
// none with room for the servers of a test run. A database is hundreds of small
// files, and on some disks making one costs thirty times as much as in memory.
func MemoryDir() string {
	const tmpfs = 0x01021994 // of statfs(2)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryDir, &fs); err != nil || fs.Type != tmpfs || fs.Bavail*uint64(fs.Bsize) < memoryNeeded {
		return ""
	}
	return memoryDir
}

// freeMemory is how many bytes the system can still give to programs; 0: not
// known.
func freeMemory() (free uint64) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &free); err == nil {
			return free << 10
		}
	}
	return 0
}
