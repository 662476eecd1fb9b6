package e2e

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// mortal is the orchestrator with crash points, beside the programs in bin.
const mortal = "orchestrator-mortal"

var buildMortal = sync.OnceValue(func() error {
	build := exec.Command("go", "build", "-tags", "crashpoints", "-o", filepath.Join(bin, mortal), "./cmd/orchestrator")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build with -tags crashpoints: %w\n%s", err, out)
	}
	return nil
})

// crashed is a system with an orchestrator that dies at a point.
type crashed struct {
	system
	*client.Client
	db   *pgx.Conn
	addr string
	env  []string // of every orchestrator
	// dying is the orchestrator with the point.
	dying *process
	// wants is what must be there at the end.
	wants ends
}

// ends is what a system holds once everything has come to its end.
type ends struct {
	// failed and succeeded are numbers of tasks, foreign that of dead letters
	// about no task, requeued and discarded those that were.
	failed, succeeded, foreign, requeued, discarded int
	// events are those of each task that was enqueued, without task.redispatched:
	// a slow machine may take a living orchestrator for dead.
	events string
	// redispatched: the crash kept a task out of its stream.
	redispatched bool
	// entries is the least number of entries of each dead letter in stream:dlq.
	entries int
}

// newCrashed starts an orchestrator that dies at a point, waits until it
// dispatches, and connects to it.
func newCrashed(t *testing.T, at string, visibility time.Duration) *crashed {
	t.Helper()
	if err := buildMortal(); err != nil {
		t.Fatal(err)
	}
	c := &crashed{system: system{Stores: testkit.NewStores(t), t: t, visibility: visibility}, addr: freeAddr(t), wants: ends{entries: 1}}
	c.Client, c.db = testkit.Client(t, "http://"+c.addr), c.SQL(t)
	c.env = []string{
		"PENSTOCK_RECOVERY_INSTANCE_TTL=500ms", "PENSTOCK_RESULT_TAKE_OVER=300ms", "PENSTOCK_RETRY_BASE=10ms", "PENSTOCK_RETRY_JITTER_MAX=0s",
		"PENSTOCK_RECOVERY_RECONCILE_INTERVAL=200ms", "PENSTOCK_RECOVERY_TIMEOUT_GRACE=200ms", "PENSTOCK_RECOVERY_MAX_INTERRUPTIONS=0",
		"PENSTOCK_AUTH_TOKENS_FILE=" + tokensFile(t), "PENSTOCK_AUTH_ANONYMOUS_ROLES=operator,worker",
	}
	c.doom(at)
	waitReady(t, c.addr)
	// Until its sign of life is written it leaves even new tasks to the timer.
	c.eventually("the orchestrator's sign of life", "SELECT count(*) > 0 FROM instances")
	return c
}

// doom starts an orchestrator that dies at a point.
func (c *crashed) doom(at string) {
	c.t.Helper()
	c.dying = c.serve(mortal, c.addr, append(c.env, crashpoint.Env+"="+at)...)
}

// dies waits until the orchestrator has, by SIGKILL and at its point.
func (c *crashed) dies() {
	c.t.Helper()
	c.dying.wait(c.t)
	status := c.dying.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() || status.Signal() != syscall.SIGKILL || !strings.Contains(c.dying.out.String(), "this process dies at ") {
		c.t.Fatalf("the orchestrator ended with %v, want SIGKILL at its point", c.dying.err)
	}
}

// restart starts an orchestrator that lives.
func (c *crashed) restart() {
	c.t.Helper()
	c.orchestrator(c.addr, c.env...)
	waitReady(c.t, c.addr)
}

// eventually waits until an SQL condition holds.
func (c *crashed) eventually(what, sql string, args ...any) {
	c.t.Helper()
	testkit.Eventually(c.t, what, func() (ok bool, saw string) {
		if err := c.db.QueryRow(c.t.Context(), sql, args...).Scan(&ok); err != nil {
			return false, err.Error()
		}
		return ok, "not yet"
	})
}

// count returns a number from the database.
func (c *crashed) count(sql string, args ...any) (n int) {
	c.t.Helper()
	if err := c.db.QueryRow(c.t.Context(), sql, args...).Scan(&n); err != nil {
		c.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// whole waits until everything has come to its end and checks it.
func (c *crashed) whole() {
	c.t.Helper()
	w := c.wants
	c.eventually(fmt.Sprintf("%d tasks have failed, %d succeeded, %d entries are kept", w.failed, w.succeeded, w.foreign), `
SELECT (SELECT count(*) FROM tasks WHERE state = 'failed') >= $1 AND (SELECT count(*) FROM tasks WHERE state = 'succeeded') >= $2
   AND (SELECT count(*) FROM dlq_items WHERE task_id IS NULL) >= $3 AND NOT EXISTS (SELECT FROM dlq_batches WHERE status = 'running')
   AND NOT EXISTS (SELECT FROM tasks WHERE state NOT IN ('failed', 'succeeded'))`, w.failed, w.succeeded, w.foreign)
	testkit.VerifyLog(c.t, c.Stores)
	for what, n := range map[string]struct {
		want int
		sql  string
	}{
		"failed tasks":                  {w.failed, "SELECT count(*) FROM tasks WHERE state = 'failed'"},
		"succeeded tasks":               {w.succeeded, "SELECT count(*) FROM tasks WHERE state = 'succeeded'"},
		"recorded dead letters of them": {w.failed, "SELECT count(*) FROM dlq_items d JOIN tasks t ON t.id = d.task_id WHERE t.state = 'failed' AND d.recorded_at IS NOT NULL"},
		"dead letters":                  {w.failed + w.foreign, "SELECT count(*) FROM dlq_items"},
		"requeued dead letters":         {w.requeued, "SELECT count(*) FROM dlq_items WHERE status = 'requeued' AND requeues = 1"},
		"requeues":                      {w.requeued, "SELECT count(*) FROM dlq_requeues"},
		"tasks of requeues":             {w.requeued, "SELECT count(*) FROM tasks WHERE origin_dlq_id IS NOT NULL"},
		"discarded dead letters":        {w.discarded, "SELECT count(*) FROM dlq_items WHERE status = 'discarded'"},
	} {
		if got := c.count(n.sql); got != n.want {
			c.t.Errorf("%d %s, want %d", got, what, n.want)
		}
	}
	c.streamed()
	c.told()
}

// streamed checks that each dead letter is in stream:dlq, and that all entries
// about a task have one dlq_id.
func (c *crashed) streamed() {
	c.t.Helper()
	ms, err := c.Redis(c.t).XRange(c.t.Context(), protocol.StreamDLQ, "-", "+").Result()
	if err != nil {
		c.t.Fatal(err)
	}
	entries, letters := map[string]int{}, map[string]any{}
	for _, m := range ms {
		id := m.Values[protocol.FieldDLQID]
		if id == nil { // not written by us
			continue
		}
		entries[id.(string)]++
		task, _ := m.Values[protocol.FieldTaskID].(string)
		if old, ok := letters[task]; ok && task != "" && old != id {
			c.t.Errorf("task %s has the dead letters %s and %s in stream:dlq", task, old, id)
		}
		letters[task] = id
	}
	rows, err := c.db.Query(c.t.Context(), "SELECT dlq_id FROM dlq_items WHERE stream IS DISTINCT FROM 'stream:dlq'")
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var id pgid.ID
		if err := rows.Scan(&id); err != nil {
			c.t.Fatal(err)
		}
		n++
		if got := entries[protocol.ID(id).String()]; got < c.wants.entries {
			c.t.Errorf("dead letter %s has %d entries in stream:dlq, want at least %d", protocol.ID(id), got, c.wants.entries)
		}
	}
	must(c.t, rows.Err())
	if n != len(entries) {
		c.t.Errorf("%d dead letters in stream:dlq, %d in Postgres", len(entries), n)
	}
}

// told checks the events of the tasks that were enqueued.
func (c *crashed) told() {
	c.t.Helper()
	rows, err := c.db.Query(c.t.Context(), `SELECT string_agg(e.type, ' ' ORDER BY e.seq) FILTER (WHERE e.type <> 'task.redispatched'),
		count(*) FILTER (WHERE e.type = 'task.redispatched') FROM event_log e JOIN tasks t ON t.id = e.task_id WHERE t.origin_dlq_id IS NULL GROUP BY t.id`)
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	redispatched := 0
	for rows.Next() {
		var events string
		var again int
		if err := rows.Scan(&events, &again); err != nil {
			c.t.Fatal(err)
		}
		redispatched += again
		if events != c.wants.events {
			c.t.Errorf("events %s; want %s", events, c.wants.events)
		}
	}
	must(c.t, rows.Err())
	if c.wants.redispatched && redispatched == 0 {
		c.t.Errorf("no task was dispatched anew")
	}
}

// At every point between two steps of what happens when a task fails, and
// when its dead letter is requeued or discarded, kill -9 loses and doubles
// nothing.
func TestKillBetweenSteps(t *testing.T) {
	t.Parallel()
	covered := map[string]bool{"cancel.committed": true} // TestKillBetweenCancelAndTombstone
	for _, tt := range crashes {
		name, _, _ := strings.Cut(tt.at, ":")
		covered[name] = true
		t.Run(strings.TrimSuffix(tt.at+" "+tt.what, " "), func(t *testing.T) {
			t.Parallel()
			c := newCrashed(t, tt.at, cmp.Or(tt.visibility, 30*time.Second))
			again := tt.cause(c)
			c.dies()
			c.restart()
			if again != nil {
				again()
			}
			c.whole()
		})
	}
	for _, p := range crashpoint.Points() {
		if !covered[p.Name] {
			t.Errorf("nothing dies at %s", p.Name)
		}
	}
}

// One of two orchestrators dies at a point; the other one finishes what it
// left, and what comes after.
func TestKillOneOfTwoBetweenSteps(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"deadletter.appended", "deadletter.committed", "dispatch.committed", "result.committed"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			c := newCrashed(t, at, 30*time.Second)
			other := freeAddr(t)
			living := c.orchestrator(other, c.env...)
			waitReady(t, other)
			both := testkit.Client(t, "http://"+other+",http://"+c.addr)
			c.worker(injectConfig)
			testkit.Eventually(t, "the first orchestrator comes to its point", func() (bool, string) {
				c.injected(both, passing, task.MaxRetries(1))
				c.wants.failed++
				return c.dying.ended(), ""
			})
			c.dies()
			c.injected(both, passing, task.MaxRetries(1))
			c.wants.failed++
			c.wants.events = eventsRetry
			c.whole()
			if living.ended() {
				t.Errorf("the other orchestrator ended: %v", living.err)
			}
		})
	}
}
