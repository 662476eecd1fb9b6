//go:build !linux

package devtest

// MemoryDir returns "": there is no directory whose files are kept in memory.
func MemoryDir() string { return "" }

func freeMemory() uint64 { return 0 }
