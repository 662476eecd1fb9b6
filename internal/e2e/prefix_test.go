package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// tenantOf is one of the deployments that share a Redis database.
type tenantOf struct {
	testkit.Stores
	client *client.Client
}

func deployment(t *testing.T, redisURL, prefix string) tenantOf {
	t.Helper()
	d := tenantOf{Stores: testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: redisURL, Prefix: prefix}.Restricted(t)}
	cfg := d.Config()
	cfg.Recovery.VisibilityTimeout = time.Second
	d.client = testkit.Client(t, testkit.StartOrchestrator(t, cfg).URL)
	return d
}

func (d tenantOf) enqueue(t *testing.T, typ string, opts ...func(*task.Request)) string {
	t.Helper()
	r := &task.Request{Type: typ, Payload: []byte(`{}`)}
	for _, o := range opts {
		o(r)
	}
	res, err := d.client.EnqueueTask(t.Context(), r)
	if err != nil {
		t.Fatalf("%q: enqueue %s: %v", d.Prefix, typ, err)
	}
	return res.TaskID
}

func (d tenantOf) ends(t *testing.T, id, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
	defer cancel()
	got, err := d.client.Wait(ctx, "default", id)
	if err != nil {
		t.Fatalf("%q: wait for %s: %v", d.Prefix, id, err)
	}
	if got.State != want {
		t.Errorf("%q: task %s ended %s, want %s (%s)", d.Prefix, id, got.State, want, got.LastErrorReason.GetValue())
	}
}

// Two deployments with key prefixes, and one without, share one Redis database:
// each runs, retries, cancels, reclaims and gives up its own tasks, and no other
// deployment's worker sees any of them.
func TestDeploymentsWithKeyPrefixesShareARedis(t *testing.T) {
	t.Parallel()
	redisURL := devtest.Redis(t)
	all := []tenantOf{deployment(t, redisURL, "shop:"), deployment(t, redisURL, "shop:eu:"), deployment(t, redisURL, "")}
	raw := all[0].Redis(t)
	for _, d := range all {
		// A worker of this deployment that dies with an entry in its hands.
		lost := d.enqueue(t, "ok")
		testkit.Eventually(t, "the entry is in its stream", func() (bool, string) {
			res, err := raw.XReadGroup(t.Context(), &redis.XReadGroupArgs{
				Group: protocol.GroupWorkers, Consumer: "dies", Streams: []string{d.Prefix + protocol.StreamTask, ">"}, Count: 1, Block: -1,
			}).Result()
			return err == nil && len(res) == 1, ""
		})
		ran := make(chan string, 100)
		begun := make(chan struct{}, 1)
		d.StartWorker(t, worker.Options{VisibilityTimeout: time.Second}, func(w *worker.Worker) {
			w.HandleRaw("ok", func(_ context.Context, j *task.Raw) (json.RawMessage, error) { ran <- j.TaskID; return nil, nil })
			w.HandleRaw("bad", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, errors.New("no luck") })
			w.HandleRaw("long", func(ctx context.Context, _ *task.Raw) (json.RawMessage, error) {
				begun <- struct{}{}
				<-ctx.Done()
				return nil, ctx.Err()
			})
		})
		own := []string{lost}
		for range 20 {
			own = append(own, d.enqueue(t, "ok"))
		}
		bad := d.enqueue(t, "bad", func(r *task.Request) { one := 1; r.MaxRetries = &one })
		long := d.enqueue(t, "long")
		queued := d.enqueue(t, "ok", func(r *task.Request) { r.Queue = "nobody" })
		<-begun
		for _, id := range []string{long, queued} {
			if _, err := d.client.CancelTask(t.Context(), "default", id, "test"); err != nil {
				t.Fatal(err)
			}
			d.ends(t, id, "cancelled")
		}
		for _, id := range own {
			d.ends(t, id, "succeeded")
		}
		d.ends(t, bad, "failed")
		for len(ran) > 0 {
			if id := <-ran; !slices.Contains(own, id) {
				t.Errorf("%q: its worker ran %s, which is not its deployment's", d.Prefix, id)
			}
		}
		if n := countOf(t, d, "SELECT count(*) FROM tasks"); n != len(own)+3 {
			t.Errorf("%q: %d tasks in its Postgres, want %d", d.Prefix, n, len(own)+3)
		}
		if n := countOf(t, d, "SELECT count(*) FROM dlq_items"); n != 1 {
			t.Errorf("%q: %d dead letters, want 1", d.Prefix, n)
		}
		if n := countOf(t, d, "SELECT count(*) FROM event_log WHERE type = 'task.reclaimed'"); n != 1 {
			t.Errorf("%q: %d tasks reclaimed, want that of the worker that died", d.Prefix, n)
		}
	}
	for _, d := range all {
		d.StartWorker(t, worker.Options{Queues: []string{"nobody"}}, func(w *worker.Worker) {
			w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) {
				t.Error("a cancelled task ran")
				return nil, nil
			})
		})
		testkit.VerifyLog(t, d.Stores)
	}
}

// After a full run no key is without the prefix, and nothing was refused to users
// who have no other rights than those that are listed.
func TestEveryKeyHasThePrefix(t *testing.T) {
	t.Parallel()
	redisURL := testkit.StartRedis(t)
	d := deployment(t, redisURL, "a.b-c:")
	w := d.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
		w.HandleRaw("bad", func(context.Context, *task.Raw) (json.RawMessage, error) {
			return nil, task.Permanent(errors.New("no"))
		})
	})
	d.ends(t, d.enqueue(t, "ok"), "succeeded")
	d.ends(t, d.enqueue(t, "bad"), "failed")
	unknown, cancelled := d.enqueue(t, "nobody-knows"), d.enqueue(t, "ok", func(r *task.Request) { r.Queue = "quiet" })
	testkit.Eventually(t, "a task of no known type is handed back", func() (bool, string) {
		got, err := d.client.Get(t.Context(), "default", unknown)
		return err == nil && got.State == "interrupted", got.GetState()
	})
	if _, err := d.client.CancelTask(t.Context(), "default", cancelled, "test"); err != nil {
		t.Fatal(err)
	}
	raw := d.Redis(t)
	// An epoch that is lost is rebuilt, which looks for all streams.
	if n, err := raw.Del(t.Context(), d.Prefix+"penstock:epoch").Result(); err != nil || n != 1 {
		t.Fatalf("DEL of the epoch: %d, %v", n, err)
	}
	testkit.Eventually(t, "the epoch is made again", func() (bool, string) {
		n, err := raw.Exists(t.Context(), d.Prefix+"penstock:epoch").Result()
		return err == nil && n == 1, ""
	})
	d.ends(t, d.enqueue(t, "ok"), "succeeded")
	seen := func() {
		keys, err := raw.Keys(t.Context(), "*").Result()
		if err != nil || len(keys) < 4 {
			t.Fatalf("keys: %q, %v", keys, err)
		}
		for _, k := range keys {
			if !strings.HasPrefix(k, d.Prefix) {
				t.Errorf("key %q is without the prefix", k)
			}
		}
	}
	seen()
	w.Stop(t)
	seen()
	refused(t, raw)
}

// refused fails the test for what Redis has refused for want of a right.
func refused(t *testing.T, raw *redis.Client) {
	t.Helper()
	log, err := raw.ACLLog(t.Context(), 100).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range log {
		t.Errorf("refused to %s: %s, %s (%d times)", e.Username, e.Reason, e.Object, e.Count)
	}
}

// A worker whose prefix is not its orchestrators' gets nothing, and says why.
func TestWorkerOfAnotherKeyPrefix(t *testing.T) {
	t.Parallel()
	d := deployment(t, devtest.Redis(t), "mine:")
	ok := func(w *worker.Worker) {
		w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	}
	other := d
	other.Prefix = "thine:"
	other.Stores = other.Restricted(t)
	w := other.StartWorker(t, worker.Options{}, ok)
	testkit.Eventually(t, "the worker says why it has nothing", func() (bool, string) {
		err := w.Check()
		return err != nil && strings.Contains(err.Error(), "no orchestrator has made its group for thine:stream:task; key prefixes must be the same"), ""
	})
	id := d.enqueue(t, "ok")
	d.StartWorker(t, worker.Options{}, ok)
	d.ends(t, id, "succeeded")
}

func countOf(t *testing.T, d tenantOf, sql string) (n int) {
	t.Helper()
	if err := d.SQL(t).QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
