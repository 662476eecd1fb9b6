package dispatch_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func requests(n int, delay time.Duration) []*task.Request {
	rs := make([]*task.Request, n)
	for i := range rs {
		rs[i] = &task.Request{Type: "t", Payload: json.RawMessage(`{"marked":"so that a proxy finds it"}`), Delay: delay}
	}
	return rs
}

func enqueue(t *testing.T, c *client.Client, rs []*task.Request) {
	t.Helper()
	out, err := c.EnqueueMany(t.Context(), rs)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range out {
		if r.Err != nil {
			t.Fatalf("enqueue: %v", r.Err)
		}
	}
}

// The connection to Redis breaks around a pipeline of XADDs: before any
// arrived, after some, after all. Whatever happened, no (task, delivery) is in
// the stream twice, no task is lost, none runs twice, and only those that did
// not arrive get another delivery.
func TestAmbiguousXADD(t *testing.T) {
	t.Parallel()
	const n = 20
	for name, c := range map[string]struct {
		forward, arrive int
		delay           time.Duration
	}{
		"enqueue, none arrived": {0, 0, 0}, "enqueue, some arrived": {7, 7, 0}, "enqueue, all arrived": {-1, n, 0},
		"dispatch, none arrived": {0, 0, 50 * time.Millisecond}, "dispatch, some arrived": {7, 7, 50 * time.Millisecond},
		"dispatch, all arrived": {-1, n, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			p := chaosproxy.Redis(t, s.RedisURL)
			cfg := s.Config()
			cfg.Redis.URL = p.URL
			cfg.Retention.TrimGrace = noTrim
			cfg.Recovery.ReconcileInterval = time.Hour // the dispatcher has to see to it itself
			o := testkit.StartOrchestrator(t, cfg)
			r := testkit.NewRig(t, s, cfg)
			lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("xadd", "stream:task", "marked"), Forward: c.forward})
			enqueue(t, testkit.Client(t, o.URL), requests(n, c.delay))
			<-lost
			var y tally
			startWorker(t, s, &y, worker.Options{})
			y.wait(t, n, testkit.Deadline)
			testkit.VerifyLog(t, s)
			y.once(t, n)
			noneTwice(t, r, protocol.StreamTask)
			if c.delay > 0 && len(pairs(t, r, protocol.StreamTask)) != n && c.forward >= 0 {
				t.Logf("%d entries", len(pairs(t, r, protocol.StreamTask)))
			}
			again := r.Count(t, "SELECT count(*) FROM tasks WHERE delivery > 1")
			events := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'task.redispatched'")
			if again != n-c.arrive || events != again {
				t.Errorf("%d tasks got another delivery with %d events, want %d", again, events, n-c.arrive)
			}
		})
	}
}

// A connection that breaks now and then, under load.
func TestXADDRepliesLostAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	p := chaosproxy.Redis(t, s.RedisURL)
	cfg := s.Config()
	cfg.Redis.URL = p.URL
	cfg.Retention.TrimGrace = noTrim
	cfg.Dispatch.Window, cfg.Dispatch.MaxBatch = 300, 40
	o := testkit.StartOrchestrator(t, cfg)
	r := testkit.NewRig(t, s, cfg)
	var y tally
	startWorker(t, s, &y, worker.Options{})
	c := testkit.Client(t, o.URL)
	const rounds, n = 9, 150
	for i := range rounds {
		lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has("xadd", "stream:task"), Forward: []int{-1, 0, 3}[i%3]})
		enqueue(t, c, requests(n, time.Duration(i%2)*10*time.Millisecond))
		<-lost
	}
	y.wait(t, rounds*n, testkit.Deadline)
	testkit.VerifyLog(t, s)
	y.once(t, rounds*n)
	noneTwice(t, r, protocol.StreamTask)
}

// Redis is unreachable, or accepts connections and never answers, while tasks
// are enqueued. They are accepted at once, and run when it is back.
func TestRedisAwayDuringEnqueue(t *testing.T) {
	t.Parallel()
	for name, away := range map[string]func(p *chaosproxy.Proxy, away bool){
		"down": (*chaosproxy.Proxy).Down, "hanging": (*chaosproxy.Proxy).Hang,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			p := chaosproxy.Redis(t, s.RedisURL)
			cfg := s.Config()
			cfg.Redis.URL = p.URL
			o := testkit.StartOrchestrator(t, cfg)
			c := testkit.Client(t, o.URL)
			var y tally
			startWorker(t, s, &y, worker.Options{})
			enqueue(t, c, requests(10, 0))
			y.wait(t, 10, testkit.Deadline)
			away(p, true)
			var took []time.Duration
			for range 20 {
				start := time.Now()
				enqueue(t, c, requests(5, 0))
				took = append(took, time.Since(start))
			}
			// The first to meet a Redis that hangs waits for its timeout (5 s,
			// measuring the window or adding); nobody does after that.
			first, rest := took[0], quantile(took[1:], 1)
			t.Logf("%s: first enqueue %s, slowest after that %s", name, first, rest)
			if first > 11*time.Second || rest > 2*time.Second {
				t.Errorf("enqueue took %s, then up to %s", first, rest)
			}
			if name == "down" && first > 2*time.Second {
				t.Errorf("enqueue took %s although the connection is refused", first)
			}
			away(p, false)
			y.wait(t, 110, testkit.Deadline)
			testkit.VerifyLog(t, s)
		})
	}
}

// Redis answers but refuses entries. The tasks wait without spending a delivery
// at each attempt.
func TestRedisOutOfMemory(t *testing.T) {
	t.Parallel()
	stack := devtest.Stack(t, devstack.Options{Redis: true})
	s := testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: stack.RedisURL}
	cfg := s.Config()
	o := testkit.StartOrchestrator(t, cfg)
	r := testkit.NewRig(t, s, cfg)
	testkit.Eventually(t, "the stores have been compared, until which dispatch is held", func() (bool, string) {
		return r.Count(t, "SELECT confirmed FROM redis_epoch") > 0, ""
	})
	if err := r.Raw.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	c := testkit.Client(t, o.URL)
	enqueue(t, c, requests(10, 0))
	enqueue(t, c, requests(10, 10*time.Millisecond))
	testkit.Eventually(t, "Redis refuses again and again", func() (bool, string) {
		stats := r.Raw.InfoMap(t.Context(), "commandstats").Item("Commandstats", "cmdstat_xadd")
		var calls, rejected int
		var usec int
		var per float64
		_, _ = fmt.Sscanf(stats, "calls=%d,usec=%d,usec_per_call=%f,rejected_calls=%d", &calls, &usec, &per, &rejected)
		return rejected >= 16, stats
	})
	if most := r.Count(t, "SELECT max(delivery) FROM tasks"); most > 3 {
		t.Errorf("a task is at delivery %d: each refused attempt spends one", most)
	}
	if err := r.Raw.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	var y tally
	startWorker(t, s, &y, worker.Options{})
	y.wait(t, 20, testkit.Deadline)
	testkit.VerifyLog(t, s)
	y.once(t, 20)
}

// The connection to Postgres breaks at a commit, before or after it was
// carried out. The client repeats the call; no task is lost or doubled.
func TestAmbiguousCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		match   []string
		forward int
		key     bool
	}{
		"insert carried out":     {[]string{"marked"}, -1, false},
		"insert not carried out": {[]string{"marked"}, 0, false},
		"commit carried out":     {[]string{"commit"}, -1, true},
		"commit not carried out": {[]string{"commit"}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			p := chaosproxy.Postgres(t, s.PostgresURL)
			cfg := s.Config()
			cfg.Postgres.URL, cfg.Postgres.AutoMigrate = p.URL, false
			cfg.Retention.TrimGrace = noTrim
			cfg.Recovery.ReconcileInterval = time.Hour // it would find them too
			o := testkit.StartOrchestrator(t, cfg)
			r := testkit.NewRig(t, s, cfg)
			cl := testkit.Client(t, o.URL)
			var y tally
			startWorker(t, s, &y, worker.Options{})
			enqueue(t, cl, requests(1, 0)) // statements are prepared
			y.wait(t, 1, testkit.Deadline)
			lost := p.Lose(chaosproxy.Rule{Match: chaosproxy.Has(c.match...), Forward: c.forward, Times: 3})
			total := 1
			for i := 0; ; i++ {
				rs := requests(5, 0)
				if c.key {
					for j, q := range rs {
						q.Key = fmt.Sprintf("key-%d-%d", i, j)
					}
				}
				enqueue(t, cl, rs)
				total += len(rs)
				select {
				case <-lost:
				default:
					continue
				}
				break
			}
			y.wait(t, total, testkit.Deadline)
			testkit.VerifyLog(t, s)
			y.once(t, total)
			noneTwice(t, r, protocol.StreamTask)
		})
	}
}
