package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Redis is killed and comes back empty, or as it was when it was last saved,
// while two orchestrators and a worker run.
func TestRedisComesBackWithout(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		save  bool
		found string
	}{
		"its data": {false, "epoch_missing"}, "its last writes": {true, "generation_behind"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stack := devtest.Stack(t, devstack.Options{Redis: true})
			s := testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: stack.RedisURL}
			cfg := s.Config()
			cfg.Recovery.VisibilityTimeout = 1500 * time.Millisecond
			cfg.Recovery.ReconcileInterval = 300 * time.Millisecond
			o := testkit.StartOrchestrator(t, cfg)
			second := testkit.StartOrchestrator(t, cfg)
			c := testkit.Client(t, o.URL)
			s.StartWorker(t, worker.Options{Concurrency: 5, VisibilityTimeout: cfg.Recovery.VisibilityTimeout}, func(w *worker.Worker) {
				w.HandleRaw("t", func(context.Context, *task.Raw) (json.RawMessage, error) {
					<-time.After(5 * time.Millisecond) // the work
					return nil, nil
				})
				w.HandleRaw("bad", func(context.Context, *task.Raw) (json.RawMessage, error) {
					return nil, task.Permanent(errors.New("never"))
				})
			})
			r := testkit.NewRig(t, s, cfg)
			complete(t, r)
			enqueueAll(t, c, "bad", 3)
			finished(t, r, 3)
			if tt.save {
				if err := r.Raw.Save(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			generation := r.Count(t, "SELECT confirmed FROM redis_epoch")
			enqueueAll(t, c, "bad", 2)
			enqueueAll(t, c, "t", 200)
			testkit.Eventually(t, "Redis is told another generation", func() (bool, string) {
				n := r.Count(t, "SELECT confirmed FROM redis_epoch")
				return n > generation+3, fmt.Sprint(n) // those that Redis had been told when it was saved may be confirmed later
			})
			testkit.Eventually(t, "some are done", func() (bool, string) {
				n := r.Count(t, "SELECT count(*) FROM tasks WHERE state = 'succeeded'")
				return n > 20, fmt.Sprint(n)
			})
			if err := stack.StopRedis(true); err != nil {
				t.Fatal(err)
			}
			if err := stack.StartRedis(t.Context()); err != nil {
				t.Fatal(err)
			}
			enqueueAll(t, c, "t", 100)
			// All may be done before anybody looks.
			testkit.Eventually(t, "the loss is told", func() (bool, string) {
				got := told(t, r)
				return len(got) > 0, fmt.Sprint(got)
			})
			finished(t, r, 305)
			complete(t, r)
			got := told(t, r)
			if len(got) != 2 || got[0] != "found "+tt.found {
				t.Errorf("told %q, want %s found and rebuilt", got, tt.found)
			}
			counted := regexp.MustCompile(`penstock_redis_losses_total\{kind="` + tt.found + `"\} (\d+)`)
			one, two := counted.FindStringSubmatch(metrics(t, o.URL)), counted.FindStringSubmatch(metrics(t, second.URL))
			if one == nil || two == nil || one[1]+"+"+two[1] != "1+0" && one[1]+"+"+two[1] != "0+1" {
				t.Errorf("the orchestrators count %q and %q losses, want one between them", one, two)
			}
			once(t, r, 1)
		})
	}
}

func metrics(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func enqueueAll(t *testing.T, c *client.Client, typ string, n int) {
	t.Helper()
	rs := make([]*task.Request, n)
	for i := range rs {
		rs[i] = &task.Request{Type: typ, Payload: json.RawMessage(`{}`)}
	}
	out, err := c.EnqueueMany(t.Context(), rs)
	for _, x := range out {
		err = errors.Join(err, x.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func finished(t *testing.T, r *testkit.Rig, n int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d tasks are finished", n), func() (bool, string) {
		k := r.Count(t, "SELECT count(*) FROM tasks WHERE state IN ('succeeded', 'failed')")
		left := r.Count(t, "SELECT count(*) FROM tasks WHERE state NOT IN ('succeeded', 'failed')")
		return k == n && left == 0, fmt.Sprintf("%d, %d left", k, left)
	})
}
