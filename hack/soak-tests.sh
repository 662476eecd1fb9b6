#!/usr/bin/env bash
# Runs the test suite again and again, each time under other conditions, and
# says after each run how it ended and how to repeat it:
#
#   plain     nothing but the tests
#   busy      beside four busy loops
#   single    GOMAXPROCS=1, one package at a time
#   midnight  the clocks of programs and servers pass 31 December, 24:00 UTC
#   month     they pass 29 February, 24:00 UTC
#
# Every run has its tests in another order (-shuffle); the seed is printed.
# SOAK_KINDS are the kinds to run ("plain busy single midnight month"),
# SOAK_ROUNDS how often (1), PKGS which packages (./...), SOAK_LEAD how many
# seconds before midnight a run begins (90), SOAK_SEED the seed of all runs.
set -euo pipefail
cd "$(dirname "$0")/.."
kinds=${SOAK_KINDS:-plain busy single midnight month}
rounds=${SOAK_ROUNDS:-1}
lead=${SOAK_LEAD:-90}
out=$PWD/.cache/soak
mkdir -p "$out"
loops=()
failed=0

stop_loops() {
	[ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true
	loops=()
}
trap stop_loops EXIT

# busy starts four processes that use all the time they get, at most for an hour.
busy() {
	for _ in 1 2 3 4; do
		timeout 3600 sh -c 'while :; do :; done' &
		loops+=($!)
	done
}

# clock has programs and servers take the moment given for now. Go's programs
# must be built for it.
clock() {
	if ! command -v cc >/dev/null; then
		if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
			echo "soak-tests: another clock for the servers takes a C compiler: apt-get install gcc libc6-dev" >&2
			exit 1
		fi
		apt-get install -y --no-install-recommends gcc libc6-dev >/dev/null
	fi
	lib=$(mktemp /tmp/penstock-clock-XXXXXX.so) || return 1 # the servers' user may not get at this directory
	cc -O2 -shared -fPIC -o "$lib" hack/clock-shim.c || return 1
	chmod 755 "$lib"
	trap 'rm -f "$lib"' EXIT
	overlay=$(hack/clock-overlay.sh "$out/overlay") || return 1 # set -e does not hold here
	export GOFLAGS="-overlay=$overlay"
	go test -vet=off -run '^$' ${PKGS:-./...} >/dev/null # built before the clock is set
	go build -o /dev/null ./cmd/orchestrator
	go build -tags crashpoints -o /dev/null ./cmd/orchestrator
	offset=$(($(date -d "$1" +%s) - lead - $(date +%s)))
	export TEST_CLOCK_OFFSET=$offset TEST_CLOCK_LIB=$lib
}

run() (
	kind=$1 seed=$2 flags="-shuffle=$2"
	case $kind in
	plain | busy) ;;
	single)
		export GOMAXPROCS=1
		flags="$flags -p 1"
		;;
	midnight) clock '2028-01-01 00:00:00 UTC' || exit 2 ;;
	month) clock '2028-03-01 00:00:00 UTC' || exit 2 ;;
	*)
		echo "soak-tests: no such kind: $kind" >&2
		exit 2
		;;
	esac
	make --no-print-directory test PKGS="${PKGS:-./...}" TESTFLAGS="$flags" >"$out/$kind-$seed.log" 2>&1
)

for round in $(seq "$rounds"); do
	for kind in $kinds; do
		seed=${SOAK_SEED:-$RANDOM$RANDOM}
		[ "$kind" = busy ] && busy
		begun=$SECONDS
		end=green
		run "$kind" "$seed" || end=FAILED
		stop_loops
		took=$((SECONDS - begun))
		echo "round $round $kind: $end in $((took / 60)) min $((took % 60)) s (SOAK_KINDS=$kind SOAK_SEED=$seed make soak-tests); $(grep -E '^DONE' "$out/$kind-$seed.log" | tail -n 1)"
		if [ $end = FAILED ]; then
			failed=1
			grep -E -A 30 '^=== (Failed|Errors)' "$out/$kind-$seed.log" || tail -n 40 "$out/$kind-$seed.log"
		fi
	done
done
exit $failed
