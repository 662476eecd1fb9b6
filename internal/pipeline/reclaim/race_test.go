package reclaim_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Executions whose lease is over, or whose entry a stranger acknowledged, and of
// each half also whose timeout is over: two replicas' reclaimers, backstops and reconcilers
// meet at the same tasks at the same moment. Each execution ends once.
func TestReclaimTimeoutAndReconcileMeet(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := short(s)
	cfg.Recovery.TimeoutGrace = 50 * time.Millisecond
	r := testkit.NewRig(t, s, cfg)
	stopDispatch := r.StartDispatch(t)
	r.Start(t, r.Results.Run)
	const n = 600
	reqs := testkit.Requests(n, "t")
	limit := int32(50)
	for i := range n / 2 {
		reqs[2*i].TimeoutMS = &limit
	}
	ids := r.Enqueue(t, reqs...)
	hs := r.Fetch(t, "dead", n)
	claims := make([]*protocol.Outcome, n)
	for i, h := range hs {
		claims[i] = h.Outcome(protocol.OutcomeClaimed)
	}
	r.Report(t, claims...)
	r.WaitState(t, protocol.StateRunning, ids...)
	stopDispatch() // what ends stays ended
	r.Ack(t, hs[:n/3]...)
	age(t, r, time.Hour, hs[n/3:]...)
	var stop atomic.Bool
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range 2 {
		o := testkit.NewRig(t, s, cfg)
		for what, step := range map[string]func(context.Context) error{
			"reclaim":   o.Reclaim.Scan,
			"timeout":   func(ctx context.Context) error { _, err := o.Timeout.Look(ctx); return err },
			"reconcile": func(ctx context.Context) error { return o.Reconcile.Pass(ctx, nil) },
		} {
			wg.Go(func() {
				<-begin
				for !stop.Load() {
					if err := step(t.Context()); err != nil {
						t.Errorf("%s: %v", what, err)
						return
					}
				}
			})
		}
	}
	close(begin)
	testkit.Eventually(t, "every execution has ended, and its entry is acknowledged", func() (bool, string) {
		left := r.Count(t, "SELECT count(*) FROM tasks WHERE delivery = 1")
		return left == 0 && pending(t, r) == 0, fmt.Sprint(left, " tasks, ", pending(t, r), " entries")
	})
	stop.Store(true)
	wg.Wait()
	if bad := r.Count(t, "SELECT count(*) FROM tasks WHERE delivery <> 2 OR interruptions + attempt <> 2"); bad != 0 {
		t.Errorf("%d tasks were ended more than once", bad)
	}
	ended := func(typ string) int {
		return r.Count(t, "SELECT count(*) FROM event_log WHERE type = $1", typ)
	}
	interrupted, timedOut, reclaimed := ended("task.interrupted"), ended("task.retry_scheduled"), ended("task.reclaimed")
	t.Logf("%d interrupted, %d of them reclaimed; %d timed out", interrupted, reclaimed, timedOut)
	if interrupted+timedOut != n || reclaimed == 0 || interrupted == reclaimed || timedOut == 0 {
		t.Errorf("%d interrupted, %d of them reclaimed, and %d timed out; want some of each kind and %d in all", interrupted, reclaimed, timedOut, n)
	}
	testkit.VerifyEvents(t, s)
}

// A store is away for longer than the visibility timeout and comes back.
// Nothing is reclaimed until a visibility timeout after that, so that workers can
// catch up with their renewals; what is still idle then is.
func TestReclaimWaitsAfterAnOutage(t *testing.T) {
	t.Parallel()
	for _, away := range []string{"Redis", "Postgres"} {
		t.Run(away, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			cfg := short(s)
			cfg.Recovery.VisibilityTimeout = 2 * time.Second
			direct := testkit.NewRig(t, s, cfg)
			direct.StartDispatch(t)
			direct.Start(t, direct.Results.Run)
			direct.Enqueue(t, testkit.Requests(2, "t")...)
			hs := direct.Fetch(t, "w", 2)
			age(t, direct, time.Hour, hs...)
			var p *chaosproxy.Proxy
			through := s
			if away == "Redis" {
				p = chaosproxy.Redis(t, s.RedisURL)
				through.RedisURL = p.URL
			} else {
				p = chaosproxy.Postgres(t, s.PostgresURL)
				through.PostgresURL = p.URL
			}
			r := testkit.NewRig(t, through, cfg)
			p.Down(true)
			r.Start(t, r.Reclaim.Run)
			down := time.Now()
			testkit.Eventually(t, "the outage is long", func() (bool, string) { return time.Since(down) > 3*time.Second, "" })
			back := time.Now()
			p.Down(false)
			testkit.Eventually(t, "what is not renewed is reclaimed", func() (bool, string) {
				age(t, direct, 0, hs[0]) // its worker renews it
				row := direct.Row(t, hs[1].ID)
				return row.Interruptions == 1, fmt.Sprintf("%+v", row)
			})
			if took := time.Since(back); took < cfg.Recovery.VisibilityTimeout-100*time.Millisecond {
				t.Errorf("reclaimed %s after %s was back, want a visibility timeout", took, away)
			}
			if row := direct.Row(t, hs[0].ID); row.Interruptions != 0 {
				t.Errorf("what was renewed: %+v", row)
			}
			testkit.VerifyEvents(t, s)
		})
	}
}
