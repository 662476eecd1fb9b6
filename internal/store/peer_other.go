//go:build !linux

package store

import (
	"net"
	"time"
)

// setPeerTimeout does nothing: only Linux has such a setting under one name.
func setPeerTimeout(*net.TCPConn, time.Duration) error { return nil }
