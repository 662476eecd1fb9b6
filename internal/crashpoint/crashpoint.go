// Package crashpoint lets a test kill a program at a chosen step. Stages name
// the places between two steps with Here. In a normal build that is nothing at
// all; a program built with -tags crashpoints ends itself there by SIGKILL, if
// its environment says so:
//
//	PENSTOCK_CRASH_AT=deadletter.appended     the first time it comes there
//	PENSTOCK_CRASH_AT=dispatch.added:2        the second time
//
// A normal build refuses the variable, as it does every unknown setting.
package crashpoint

import (
	"fmt"
	"strconv"
	"strings"
)

// Env is the environment variable that names the point to die at, alone or with
// the number of the time it is reached: "name" or "name:N".
const Env = "PENSTOCK_CRASH_AT"

// Point is a place between two steps.
type Point struct {
	Name string
	// Between says which step is done and which is not.
	Between string
}

// points lists every point that the code names with Here, as work comes by.
var points = []Point{
	{"result.committed", "a batch of outcomes is committed; nobody was told, and it is not acknowledged"},

	{"deadletter.locked", "dead letters are locked; they are not in stream:dlq"},
	{"deadletter.appended", "dead letters are in stream:dlq; their tasks are still dlq_pending"},
	{"deadletter.decided", "dlq_recorded and failed are written, and not committed"},
	{"deadletter.committed", "failed is committed; nobody was told"},

	{"deadletter.kept_appended", "entries that are no task are in stream:dlq; they are not in Postgres"},
	{"deadletter.kept_inserted", "they are in Postgres; where they came from they are not acknowledged"},
	{"deadletter.ingest_read", "entries of stream:dlq are read; they are not in Postgres"},
	{"deadletter.ingest_recorded", "they are in Postgres; they are not acknowledged"},

	{"dispatch.locked", "due tasks are taken out of Postgres' waiting, and not committed"},
	{"dispatch.committed", "their outbox row is committed; they are not in their stream"},
	{"dispatch.added", "they are in their stream; the outbox row is still there"},

	{"schedule.fired", "tasks of schedules are stored and the schedules moved on; nothing is committed"},
	{"schedule.committed", "they are committed; the dispatcher was not told"},

	{"approval.committed", "what a person decided about a task is committed; nobody was told, and the call is not answered"},

	{"enqueue.graph_committed", "tasks with dependencies are stored; nobody was told, and the call is not answered"},
	{"dependency.counted", "dependants of tasks that ended are decided, and not committed"},
	{"dependency.committed", "dependants of tasks that ended are decided; nobody was told, and the note of the end is still there"},

	{"cancel.committed", "tasks are cancelled; nobody was told, and Redis has no tombstone of them"},
	{"timeout.committed", "executions without an answer are ended; nobody was told"},
	{"reclaim.committed", "tasks of lost workers are decided; nobody was told, and their entries are not acknowledged"},
	{"reconcile.committed", "tasks that Redis lost are decided; nobody was told"},
	{"reconcile.groups_made", "after a loss of Redis the groups are made; nothing else is rebuilt"},
	{"reconcile.restored", "tasks of a restored Postgres have new deliveries; the epoch is not committed"},
	{"reconcile.waited", "workers had time to report; the pass is not made"},
	{"reconcile.put_back", "all is rebuilt; the epoch is not committed"},
	{"reconcile.completed", "the epoch is committed; nobody was told"},

	{"replay.requeue_committed", "single dead letters are requeued; nobody was told, and the call is not answered"},
	{"replay.create_committed", "a batch is stored; nobody was told, and the call is not answered"},
	{"replay.propose_committed", "a discard is proposed; the call is not answered"},
	{"replay.confirm_committed", "a discard is confirmed; nobody was told, and the call is not answered"},
	{"replay.batch_settled", "a chunk is requeued or discarded; its items are not marked, and nothing is committed"},
	{"replay.batch_committed", "a chunk is committed; nobody was told"},
}

// Points lists every point.
func Points() []Point { return append([]Point(nil), points...) }

// find returns the point of a name.
func find(name string) (Point, bool) {
	for _, p := range points {
		if p.Name == name {
			return p, true
		}
	}
	return Point{}, false
}

// parse reads a value of Env: the point, and which time it is reached. The
// error names what is wrong, and the points that there are.
func parse(value string) (p Point, nth int64, err error) {
	name, times, counted := strings.Cut(value, ":")
	p, ok := find(name)
	if !ok {
		names := make([]string, len(points))
		for i, p := range points {
			names[i] = p.Name
		}
		return p, 0, fmt.Errorf("%s: there is no point %q; there are %s", Env, name, strings.Join(names, ", "))
	}
	if !counted {
		return p, 1, nil
	}
	if nth, err = strconv.ParseInt(times, 10, 32); err != nil || nth < 1 {
		return p, 0, fmt.Errorf("%s: %q after %s is no number from 1 on", Env, times, name)
	}
	return p, nth, nil
}
