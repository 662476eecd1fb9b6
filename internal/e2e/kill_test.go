package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// killPoints is how often an orchestrator is killed.
const killPoints = 14

// seed returns the seed of the kill points, PENSTOCK_TEST_SEED if it is set.
func seed(t *testing.T) *rand.Rand {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if s := os.Getenv("PENSTOCK_TEST_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("PENSTOCK_TEST_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 0))
}

// kill -9 of an orchestrator at any moment of a load loses no task whose call
// returned, creates none twice, and runs none twice.
func TestKillAnOrchestratorAtAnyMoment(t *testing.T) {
	t.Parallel()
	rnd := seed(t)
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 30 * time.Second}
	addrs := []string{freeAddr(t), freeAddr(t)}
	ps := []*process{s.orchestrator(addrs[0]), s.orchestrator(addrs[1])}
	for _, a := range addrs {
		waitReady(t, a)
	}
	c := s.counter(16)
	l := startLoad(t, addrs, "count", time.Millisecond)
	for k := range killPoints {
		l.more(50)
		// Anywhere within what a batch takes on its way.
		<-time.After(time.Duration(rnd.IntN(15_000)) * time.Microsecond)
		i := rnd.IntN(2)
		ps[i].kill()
		if rnd.IntN(3) == 0 { // a while with one only, or even none
			l.moreOrNone(20)
			if rnd.IntN(2) == 0 {
				ps[1-i].kill()
				ps[1-i] = s.orchestrator(addrs[1-i])
			}
		}
		ps[i] = s.orchestrator(addrs[i])
		waitReady(t, addrs[rnd.IntN(2)])
		if t.Failed() {
			t.Fatalf("at kill point %d", k)
		}
	}
	began := time.Now()
	ids := l.finish(s.Stores)
	tasks, runs := c.total()
	if tasks != len(ids) || runs != len(ids) {
		t.Errorf("%d executions of %d tasks, want one each of %d", runs, tasks, len(ids))
	}
	t.Logf("%d kills, %d tasks (%d of them by repeated calls), slowest call %s, finished %s after the last kill",
		killPoints, len(ids), l.hits.Load(), time.Duration(l.slowest.Load()), time.Since(began))
}

// moreOrNone waits until n further tasks were accepted, but not for long:
// perhaps nobody is there to accept them.
func (l *load) moreOrNone(n int64) {
	from := l.count.Load()
	end := time.After(300 * time.Millisecond)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for l.count.Load() < from+n {
		select {
		case <-tick.C:
		case <-end:
			return
		}
	}
}

// kill -9 of a worker: its tasks run again after the visibility timeout.
func TestKillAWorker(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 2 * time.Second}
	addr := freeAddr(t)
	s.orchestrator(addr)
	waitReady(t, addr)
	dir := t.TempDir()
	config := fmt.Sprintf("concurrency: 20\nhandlers:\n  work: {kind: exec, command: [sh, -c, 'echo run >> $0/$PENSTOCK_TASK_ID; sleep 0.2; echo 1', %q]}\n", dir)
	a, b := s.worker(config), s.worker(config)
	l := startLoad(t, []string{addr}, "work", 25*time.Millisecond)
	l.more(60)
	name, rdb := a.workerID(t), s.Redis(t)
	testkit.Eventually(t, "the worker has several tasks in hand", func() (bool, string) {
		p, err := rdb.XPending(t.Context(), protocol.StreamTask, protocol.GroupWorkers).Result()
		if err != nil {
			t.Fatal(err)
		}
		return p.Consumers[name] >= 3, fmt.Sprint(p.Consumers)
	})
	a.kill()
	l.more(60)
	began := time.Now()
	ids := l.finish(s.Stores)
	t.Logf("%d tasks finished %s after the load", len(ids), time.Since(began))
	var interrupted, others, claims int
	err := s.SQL(t).QueryRow(t.Context(), `
SELECT count(*) FILTER (WHERE type = 'task.interrupted'), count(*) FILTER (WHERE type = 'task.interrupted' AND worker_id <> $1),
       count(*) FILTER (WHERE type = 'task.claimed') FROM event_log`, name).Scan(&interrupted, &others, &claims)
	if err != nil {
		t.Fatal(err)
	}
	// Besides one a slot there may be some whose outcome was about to be sent.
	if interrupted == 0 || interrupted > 40 || others > 0 {
		t.Errorf("%d tasks were interrupted by the kill of a worker with 20 slots, %d of them in another worker", interrupted, others)
	}
	runs := 0
	for _, id := range ids {
		b, err := os.ReadFile(filepath.Join(dir, id))
		if err != nil {
			t.Fatal(err)
		}
		runs += strings.Count(string(b), "run")
	}
	if runs < len(ids) || runs > len(ids)+interrupted {
		t.Errorf("%d executions of %d tasks with %d interruptions", runs, len(ids), interrupted)
	}
	if claims < len(ids) || claims > len(ids)+interrupted {
		t.Errorf("%d claims of %d tasks with %d interruptions", claims, len(ids), interrupted)
	}
	b.stop(t, syscall.SIGTERM)
}

// A rolling restart of both kinds under load, twice: no call fails, nothing is
// delayed beyond seconds, no retry and no interruption is spent.
func TestAddAndStopUnderLoad(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 60 * time.Second}
	addrs := []string{freeAddr(t), freeAddr(t), freeAddr(t)}
	ps := make([]*process, 3)
	for i := range 2 {
		ps[i] = s.orchestrator(addrs[i])
		waitReady(t, addrs[i])
	}
	const config, rollings = "concurrency: 8\n" + echoConfig, 2
	ws := []*process{s.worker(config), s.worker(config), s.worker(config)}
	l := startLoad(t, addrs, "echo", 5*time.Millisecond)
	l.more(200)
	// Orchestrators one by one, a third one first; workers as well.
	ps[2] = s.orchestrator(addrs[2])
	waitReady(t, addrs[2])
	for range rollings {
		for i := range 3 {
			ps[i].stop(t, syscall.SIGTERM)
			l.more(60)
			ps[i] = s.orchestrator(addrs[i])
			waitReady(t, addrs[i])
			ws[i].stop(t, syscall.SIGTERM)
			l.more(60)
			ws[i] = s.worker(config)
			ws[i].says(t, "worker started")
		}
		l.more(150) // the last worker has its share, too
	}
	ids := l.finish(s.Stores)
	var workers, second, spent int
	var longest float64
	err := s.SQL(t).QueryRow(t.Context(), `
SELECT count(DISTINCT worker_id), count(*) FILTER (WHERE delivery > 1), sum(interruptions + attempt - 1),
       max(extract(epoch FROM finished_at - created_at)) FROM tasks`).Scan(&workers, &second, &spent, &longest)
	if err != nil {
		t.Fatal(err)
	}
	if workers != 3*(1+rollings) {
		t.Errorf("%d workers ran tasks, want all %d", workers, 3*(1+rollings))
	}
	if spent > 0 {
		t.Errorf("%d retries and interruptions were spent", spent)
	}
	if longest > 30 { // well below a second on a quiet machine; the visibility timeout is a minute
		t.Errorf("a task took %.1f s from its creation to its end, want no wait for the visibility timeout", longest)
	}
	t.Logf("%d tasks, slowest call %s, longest task %.2f s, %d handed back", len(ids), time.Duration(l.slowest.Load()), longest, second)
}
