package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// fault is a kind of fault.
type fault struct {
	name string
	// per is how many there are in 30 minutes.
	per   int
	about string
	// fences and reclaims: it makes stale outcomes, or leases run out; a run with
	// enough of it in which there are none has tested nothing.
	fences, reclaims bool
	do               func(h *harness, ctx context.Context, r *rand.Rand) error
}

// faults lists every kind.
func faults() []*fault {
	return []*fault{
		{"kill-worker", 220, "kill -9 of a worker: half of them at any time, or just before or after an outcome or a fetch reaches Redis; half after the call of an effect, before it is recorded", false, true, killWorker},
		{"kill-orchestrator", 100, "kill -9 of an orchestrator: at any time, or just before or after it writes to Redis or commits", false, false, killOrchestrator},
		{"restart-worker", 20, "SIGTERM of a worker, which is started again", false, false, restartWorker},
		{"restart-orchestrator", 20, "SIGTERM of an orchestrator, which is started again", false, false, restartOrchestrator},
		{"pause-worker", 24, "SIGSTOP of a worker for longer than the visibility timeout", true, true, pauseWorker},
		{"pause-orchestrator", 16, "SIGSTOP of an orchestrator for longer than the visibility timeout", false, false, pauseOrchestrator},
		{"flushall", 22, "FLUSHALL", true, false, flushAll},
		{"redis-restart", 12, "Redis stopped and started again with its data", false, false, redisRestart},
		{"pause-redis", 16, "SIGSTOP of Redis for around the visibility timeout", false, false, pauseRedis},
		{"redis-empty", 8, "Redis killed and started again empty", false, false, redisEmpty},
		{"postgres-restart", 22, "Postgres stopped at once (SIGQUIT) and started again", false, false, postgresRestart},
		{"lost-reply", 130, "a command reaches Redis, Postgres or an orchestrator, and its reply is lost: the connection ends, goes silent, or ends in the middle of a pipeline", false, false, loseReply},
		{"cut", 60, "all connections of a process to a store are cut, for up to a second", false, false, cut},
		{"delay", 20, "all replies of a store to a process are late", false, false, delay},
		{"steal", 40, "the lease of a healthy worker is claimed by a stranger: half of them while the receiver of an effect has its call", false, false, steal},
		{"stranger-ack", 15, "a stranger acknowledges entries that workers hold", false, false, strangerAck},
		{"del-stream", 10, "a task stream is deleted", false, false, delStream},
		{"task-group", 10, "the group of a task stream is destroyed; the stream stays", false, false, taskGroup},
		{"result-group", 8, "the group of stream:result is destroyed; the stream stays", false, false, resultGroup},
		{"clock", 10, "what a worker writes comes from a clock that is off by up to two hours", false, false, clockOffset},
	}
}

// quotas: the numbers hold for runs of this length.
const quotas = 30 * time.Minute

// planned is a fault and when it is due, counted from the first.
type planned struct {
	kind *fault
	at   time.Duration
}

// chosen returns the kinds that a run has and how often.
func chosen(o options) (kinds []*fault, counts []int, err error) {
	all := faults()
	if o.faults == "" {
		for _, f := range all {
			kinds, counts = append(kinds, f), append(counts, quota(f, o.duration))
		}
		return kinds, counts, nil
	}
	for _, part := range strings.Split(o.faults, ",") {
		name, number, given := strings.Cut(strings.TrimSpace(part), "=")
		i := slices.IndexFunc(all, func(f *fault) bool { return f.name == name })
		if i < 0 {
			return nil, nil, fmt.Errorf("-faults names %q; -faults list shows what there is", name)
		}
		n := quota(all[i], o.duration)
		if given {
			if n, err = strconv.Atoi(number); err != nil || n < 1 {
				return nil, nil, fmt.Errorf("-faults: %q after %s is no number from 1 on", number, name)
			}
		}
		kinds, counts = append(kinds, all[i]), append(counts, n)
	}
	return kinds, counts, nil
}

// quota is a kind's number in a run: at least its share, and one.
func quota(f *fault, d time.Duration) int {
	return max(int((time.Duration(f.per)*d+quotas-1)/quotas), 1)
}

// schedule spreads each kind evenly over the time that there are faults, with
// a random place of each within its part.
func schedule(o options) (out []planned, err error) {
	kinds, counts, err := chosen(o)
	if err != nil {
		return nil, err
	}
	h := harness{options: o}
	d := o.duration - 2*h.calm()
	r := rand.New(rand.NewPCG(o.seed, 1))
	for i, k := range kinds {
		for n := range counts[i] {
			at := (float64(n) + r.Float64()) / float64(counts[i]) * float64(d)
			out = append(out, planned{k, time.Duration(at)})
		}
	}
	slices.SortStableFunc(out, func(a, b planned) int { return int(a.at - b.at) })
	return out, nil
}

func listFaults(w io.Writer) {
	for _, f := range faults() {
		_, _ = fmt.Fprintf(w, "%-21s %4d in 30 minutes: %s\n", f.name, f.per, f.about)
	}
}
