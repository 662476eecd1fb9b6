//go:build !linux

package dispatch

import "time"

// waitUntil returns at a moment a few milliseconds ahead, not earlier.
func waitUntil(at time.Time) { time.Sleep(time.Until(at)) }
