package dispatch

import (
	"syscall"
	"time"
)

// waitUntil returns at a moment a few milliseconds ahead, not earlier and
// hardly later: a timer of the runtime may be late by a millisecond, which is
// as long as all the rest of a dispatch.
func waitUntil(at time.Time) {
	for d := time.Until(at); d > 0; d = time.Until(at) { // a signal ends it early
		ts := syscall.NsecToTimespec(int64(d))
		_ = syscall.Nanosleep(&ts, nil)
	}
}
