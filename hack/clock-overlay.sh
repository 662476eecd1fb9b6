#!/bin/sh
# Writes a file for `go build -overlay` to DIR, and prints its name: programs
# built with it add TEST_CLOCK_OFFSET, in seconds, to what time.Now tells.
# clock-shim.c does the same for other programs; it can't for Go's, which do not
# ask the C library. Timers are not touched. Usage: clock-overlay.sh DIR
set -eu
dir=${1:?usage: clock-overlay.sh DIR}
mkdir -p "$dir"
src=$(go env GOROOT)/src/time/time.go
awk '
	{ print }
	/^func Now\(\) Time \{$/ { now = 1 }
	now && /^\tsec, nsec, mono := runtimeNow\(\)$/ {
		print "\tif !runtimeIsBubbled() {\n\t\tsec += fakeOffset\n\t}"
		now = 0; done = 1
	}
	END {
		if (!done) exit 1
		print "\nvar fakeOffset = func() int64 {"
		print "\ts, _ := syscall.Getenv(\"TEST_CLOCK_OFFSET\")"
		print "\tn, _ := atoi(s)"
		print "\treturn int64(n)"
		print "}()"
	}
' "$src" >"$dir/time.go" || {
	echo "clock-overlay: time.Now of this Go looks unlike that of Go 1.26: $src" >&2
	exit 1
}
sed -i 's|^import (|import (\n\t"syscall"|' "$dir/time.go"
printf '{"Replace": {"%s": "%s/time.go"}}\n' "$src" "$dir" >"$dir/overlay.json"
echo "$dir/overlay.json"
