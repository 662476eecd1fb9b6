package verify_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// handlers end their tasks in every way there is.
func handlers(w *worker.Worker) {
	for typ, fn := range map[string]func(raw *task.Raw) error{
		"works": func(*task.Raw) error { return nil },
		"slow":  func(raw *task.Raw) error { <-time.After(300 * time.Millisecond); return nil }, // reports its claim
		"once": func(raw *task.Raw) error {
			if raw.Attempt == 1 {
				return errors.New("no luck")
			}
			return nil
		},
		"never":    func(*task.Raw) error { return task.Permanent(errors.New("never")) },
		"hopeless": func(*task.Raw) error { return errors.New("no luck") },
		"snoozes": func(raw *task.Raw) error {
			if raw.Delivery < 3 {
				return task.Snooze(3 * time.Millisecond)
			}
			return nil
		},
	} {
		w.HandleRaw(typ, func(_ context.Context, raw *task.Raw) (json.RawMessage, error) { return json.RawMessage(`{}`), fn(raw) })
	}
}

// A verification may run at any moment: what moves on while it reads is no
// difference.
func TestWhileTheSystemWorks(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = time.Second
	cfg.Dispatch.Window = 300
	o := testkit.StartOrchestrator(t, cfg)
	testkit.StartOrchestrator(t, cfg)
	c := testkit.Client(t, o.URL)
	r := testkit.NewRig(t, s, cfg)
	again := replay.New(replay.Options{Store: r.Store, Redis: r.Client, Wake: func(time.Time) {}, Log: testkit.Log(t), DraftTTL: time.Hour, ProposalTTL: time.Hour})
	const n = 200
	types := []string{"works", "slow", "once", "never", "hopeless", "snoozes", "works"}
	var reqs []*task.Request
	for i := range n * len(types) {
		req := &task.Request{Type: types[i%len(types)], Payload: json.RawMessage(`{}`)}
		if i%10 == 0 {
			req.Key = fmt.Sprint("k", i)
		}
		if i%15 == 0 {
			req.TaskID = fmt.Sprint("named ", i)
		}
		reqs = append(reqs, req)
	}
	out, err := c.EnqueueMany(t.Context(), reqs)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range out {
		if x.Err != nil {
			t.Fatal(x.Err)
		}
	}
	r.Fetch(t, "dies at once", 3)
	s.StartWorker(t, worker.Options{Concurrency: 20, VisibilityTimeout: cfg.Recovery.VisibilityTimeout}, handlers)
	rounds, requeued := 0, false
	testkit.Eventually(t, "all is done", func() (bool, string) {
		rounds++
		clean(t, s, verify.Options{})
		if !requeued && r.Count(t, "SELECT count(*) FROM dlq_items WHERE status = 'open' AND type = 'never' AND recorded_at IS NOT NULL") > n/2 {
			requeued = true
			if _, err := again.Create(t.Context(), replay.BatchRequest{Filter: &replay.Filter{Type: "never"}, Principal: "ann", Reason: "once more"}); err != nil {
				return false, err.Error()
			}
			for more := true; more; {
				if more, err = again.Step(context.WithoutCancel(t.Context())); err != nil {
					return false, err.Error()
				}
			}
		}
		left := r.Count(t, "SELECT count(*) FROM tasks WHERE state NOT IN ('succeeded', 'failed')")
		return t.Failed() || left == 0 && requeued, fmt.Sprint(left)
	})
	sum := clean(t, s, verify.Options{})
	t.Logf("%d rounds; %+v", rounds, sum)
	if rounds < 2 || sum.Retries < 4*n/2 || sum.DeadLetters < 2*n {
		t.Errorf("%d rounds, %+v", rounds, sum)
	}
}
