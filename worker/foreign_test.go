package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// deployment is an orchestrator and a worker on one database of a Redis.
type deployment struct {
	testkit.Stores
	url    string
	client *client.Client
	worker *testkit.Worker

	mu   sync.Mutex
	runs map[string]int
}

func deploy(t *testing.T, redisURL string) *deployment {
	t.Helper()
	d := &deployment{Stores: testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: redisURL}, runs: map[string]int{}}
	if _, err := d.SQL(t).Exec(t.Context(), "UPDATE deployment SET id = gen_random_uuid()"); err != nil { // databases of tests are copies of one
		t.Fatal(err)
	}
	o := testkit.StartOrchestrator(t, d.Config())
	d.url, d.client = o.URL, testkit.Client(t, o.URL)
	d.worker = d.StartWorker(t, worker.Options{Concurrency: 4}, func(w *worker.Worker) {
		w.HandleRaw("t", func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.runs[r.TaskID]++
			return nil, nil
		})
	})
	return d
}

func (d *deployment) enqueue(t *testing.T, n int) {
	t.Helper()
	for range n {
		if _, err := d.client.EnqueueTask(t.Context(), &task.Request{Type: "t"}); err != nil {
			t.Fatal(err)
		}
	}
}

// ran waits until n tasks are done, and checks that each ran once.
func (d *deployment) ran(t *testing.T, n int) {
	t.Helper()
	db := d.SQL(t)
	testkit.Eventually(t, "the tasks are done", func() (bool, string) {
		var done int
		err := db.QueryRow(t.Context(), "SELECT count(*) FROM tasks WHERE state = 'succeeded' AND type = 't'").Scan(&done)
		return done == n, fmt.Sprint(done, err)
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, runs := range d.runs {
		if runs != 1 {
			t.Errorf("task %s ran %d times", id, runs)
		}
	}
	if len(d.runs) != n {
		t.Errorf("%d tasks ran here, want %d", len(d.runs), n)
	}
}

// Two deployments find themselves on each other's Redis: SWAPDB stands for a
// change of DNS or a failover. From the first look that finds it nobody does
// anything there, and all go on once they have their own back.
func TestAnotherDeploymentsRedis(t *testing.T) {
	t.Parallel()
	base := testkit.StartRedis(t) + "?db="
	a, b := deploy(t, base+"0"), deploy(t, base+"1")
	all := []*deployment{a, b}
	const n = 10
	for _, d := range all {
		d.enqueue(t, n)
	}
	for _, d := range all {
		d.ran(t, n)
	}
	raw := a.Redis(t)
	swap := func() {
		t.Helper()
		if err := raw.Do(t.Context(), "SWAPDB", 0, 1).Err(); err != nil {
			t.Fatal(err)
		}
	}
	swap()
	for _, d := range all {
		testkit.Eventually(t, "it is not ready, and says why", func() (bool, string) {
			res, err := http.Get(d.url + "/readyz")
			if err != nil {
				return false, err.Error()
			}
			defer func() { _ = res.Body.Close() }()
			body, _ := io.ReadAll(res.Body)
			return res.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(body), "belongs to deployment"), string(body)
		})
		testkit.Eventually(t, "its worker says it, too", func() (bool, string) {
			err := d.worker.Check()
			return err != nil && strings.Contains(err.Error(), "belongs to deployment"), fmt.Sprint(err)
		})
	}
	ends := func() (ids []string) {
		for _, d := range all {
			c := d.Redis(t)
			for _, stream := range []string{protocol.StreamTask, protocol.StreamResult, protocol.StreamDLQ} {
				info, err := c.XInfoStream(t.Context(), stream).Result()
				ids = append(ids, fmt.Sprint(info.LastGeneratedID, err))
			}
		}
		return ids
	}
	before := ends()
	for _, d := range all {
		d.enqueue(t, n) // they wait in Postgres
	}
	if after := ends(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("a stranger's streams were changed: %v, before %v", after, before)
	}
	swap()
	for _, d := range all {
		d.ran(t, 2*n)
		testkit.VerifyLog(t, d.Stores)
	}
}
