package worker_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// soon has effects of lost executions be in doubt at once.
func soon(c *config.Orchestrator) { c.Effects.DoubtAfter = 0 }

const workerToken, personToken, producerToken = "the-token-of-the-worker", "the-token-of-ada-in-tests", "the-token-of-bob-in-tests"

// known gives the orchestrator a person and a worker.
func known(t *testing.T) func(c *config.Orchestrator) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	lines := "w " + workerToken + " roles=worker\nada " + personToken + " roles=operator,payloads\nbob " + producerToken + " roles=producer\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(c *config.Orchestrator) { c.Auth.TokensFile = file }
}

// as is a client of a person who is known.
func (b *bundle) as(token string) *client.Client {
	b.t.Helper()
	c, err := client.NewWith(b.orch.URL, client.Options{Token: token})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = c.Close() })
	return c
}

// reached waits until a task is in a state.
func reached(t *testing.T, c *client.Client, id, state string) *client.Task {
	t.Helper()
	var got *client.Task
	testkit.Eventually(t, "the task is "+state, func() (bool, string) {
		var err error
		if got, err = c.Get(context.Background(), "", id); err != nil {
			return false, err.Error()
		}
		return got.State == state, got.State + " " + got.LastErrorReason.GetValue()
	})
	return got
}

var charging = task.Define[int]("charge")

// What was done before a failure is not done again, and its result is there.
func TestOnceOverARetry(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var charged, runs atomic.Int64
	b.worker(worker.Options{OrchestratorURL: b.orch.URL}, func(w *worker.Worker) {
		worker.Handle(w, charging, func(ctx context.Context, j *task.Job[int]) error {
			receipt, err := worker.Once(ctx, "charge", func(context.Context) (string, error) {
				return fmt.Sprintf("receipt %d", charged.Add(1)), nil
			})
			if err != nil {
				return err
			}
			if runs.Add(1) < 3 {
				return errors.New("the mail server is away")
			}
			return j.SetResult(receipt)
		})
	})
	e, err := charging.Enqueue(t.Context(), b.client, 1, task.Key("order-7"))
	if err != nil {
		t.Fatal(err)
	}
	done := reached(t, b.client, e.TaskID, "succeeded")
	if string(done.Result) != `"receipt 1"` || charged.Load() != 1 || runs.Load() != 3 {
		t.Errorf("result %s, charged %d times in %d runs", done.Result, charged.Load(), runs.Load())
	}
	res, err := b.client.Effects().GetEffect(t.Context(), connect.NewRequest(&penstockv1.GetEffectRequest{Key: "order-7", Name: "charge"}))
	if err != nil || res.Msg.Effect.State != "done" || string(res.Msg.Effect.Result) != `"receipt 1"` || res.Msg.Effect.Runs != 1 {
		t.Errorf("%v %v", res, err)
	}
}

// lossy is an orchestrator's address that carries out the first n calls of each
// method of the ledger and loses their replies, and tells when it has done so.
func lossy(t *testing.T, to string, n int, lost ...func()) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(u)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy.Transport = transport
	var mu sync.Mutex
	seen := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.URL.Path]++
		lose := strings.Contains(r.URL.Path, "EffectService") && seen[r.URL.Path] <= n
		mu.Unlock()
		if !lose {
			proxy.ServeHTTP(w, r)
			return
		}
		proxy.ServeHTTP(httptest.NewRecorder(), r)
		for _, f := range lost {
			f()
		}
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A reply that is lost is asked for again: nothing is done twice, and nothing is in
// doubt.
func TestOnceWithLostReplies(t *testing.T) {
	t.Parallel()
	b := setup(t, soon)
	var charged, refused atomic.Int64
	b.worker(worker.Options{OrchestratorURL: lossy(t, b.orch.URL, 3)}, func(w *worker.Worker) {
		worker.Handle(w, charging, func(ctx context.Context, j *task.Job[int]) error {
			n, err := worker.Once(ctx, "charge", func(context.Context) (int64, error) {
				if refused.Add(1) == 1 {
					return 0, worker.NotDone(errors.New("refused"))
				}
				return charged.Add(1), nil
			})
			if err != nil {
				return err
			}
			return j.SetResult(n)
		})
	})
	e, err := charging.Enqueue(t.Context(), b.client, 1)
	if err != nil {
		t.Fatal(err)
	}
	if done := reached(t, b.client, e.TaskID, "succeeded"); string(done.Result) != "1" || charged.Load() != 1 || done.RetryCount != 1 {
		t.Errorf("result %s, charged %d times, %d retries", done.Result, charged.Load(), done.RetryCount)
	}
}

// A reservation that was granted, but whose reply was lost, is given back if the
// execution is over before it is asked for again: nothing was run, so nobody is
// asked.
func TestOnceUnusedReservationIsReleased(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]bool{"its task is cancelled": false, "its context ends": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, soon)
			var ran atomic.Bool
			var over atomic.Pointer[func()]
			b.worker(worker.Options{OrchestratorURL: lossy(t, b.orch.URL, 1, sync.OnceFunc(func() { (*over.Load())() }))}, func(w *worker.Worker) {
				worker.Handle(w, charging, func(ctx context.Context, j *task.Job[int]) error {
					ctx, cancel := context.WithCancel(ctx)
					defer cancel()
					end := func() {
						if _, err := b.client.CancelTask(context.Background(), "", j.TaskID, "no longer wanted"); err != nil {
							t.Error(err)
						}
					}
					if own {
						end = cancel
					}
					over.Store(&end)
					_, err := worker.Once(ctx, "charge", func(context.Context) (int, error) { ran.Store(true); return 0, nil })
					return task.Permanent(err)
				})
			})
			if _, err := charging.Enqueue(t.Context(), b.client, 1, task.Key("order-7")); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the reservation is given back", func() (bool, string) {
				res, err := b.client.Effects().GetEffect(t.Context(), connect.NewRequest(&penstockv1.GetEffectRequest{Key: "order-7", Name: "charge"}))
				if err != nil {
					return false, err.Error()
				}
				return res.Msg.Effect.State == "free" && res.Msg.Effect.Runs == 1, res.Msg.Effect.String()
			})
			if ran.Load() {
				t.Error("the effect was run")
			}
		})
	}
}

// An effect whose end is not known stops the task for a person, whose answer lets
// it go on.
func TestOnceInDoubtWaitsForAPerson(t *testing.T) {
	t.Parallel()
	b := setup(t, soon, known(t))
	ada, bob := b.as(personToken), b.as(producerToken)
	var charged atomic.Int64
	b.worker(worker.Options{OrchestratorURL: b.orch.URL, OrchestratorToken: workerToken}, func(w *worker.Worker) {
		worker.Handle(w, charging, func(ctx context.Context, j *task.Job[int]) error {
			n, err := worker.Once(ctx, "charge", func(context.Context) (int64, error) {
				if n := charged.Add(1); n > 1 {
					return n, nil
				}
				return 0, errors.New("connection reset")
			})
			if err != nil {
				return fmt.Errorf("charge: %w", err)
			}
			return j.SetResult(n)
		})
	})
	for _, as := range []string{"done", "not_done"} {
		charged.Store(0)
		e, err := charging.Enqueue(t.Context(), bob, 1)
		if err != nil {
			t.Fatal(err)
		}
		waiting := reached(t, ada, e.TaskID, "waiting_approval")
		if charged.Load() != 1 {
			t.Errorf("charged %d times", charged.Load())
		}
		list, err := ada.Effects().ListEffects(t.Context(), connect.NewRequest(&penstockv1.ListEffectsRequest{State: "in_doubt"}))
		if err != nil || len(list.Msg.Effects) != 1 {
			t.Fatalf("in doubt: %v, %v", list, err)
		}
		x := list.Msg.Effects[0]
		req := &penstockv1.ResolveEffectRequest{Scope: x.Scope, Key: x.Key, Name: x.Name, Resolution: as, Reason: "asked the bank"}
		if as == "done" {
			req.Result = []byte("77")
		}
		if _, err := b.client.Effects().ResolveEffect(t.Context(), connect.NewRequest(req)); err == nil {
			t.Error("an anonymous caller resolved an effect")
		}
		res, err := ada.Effects().ResolveEffect(t.Context(), connect.NewRequest(req))
		if err != nil || len(res.Msg.ReleasedTaskIds) != 1 {
			t.Fatalf("resolve: %v, %v (task %s)", res, err, waiting.State)
		}
		want, calls := "77", int64(1)
		if as == "not_done" {
			want, calls = "2", 2
		}
		if done := reached(t, ada, e.TaskID, "succeeded"); string(done.Result) != want || charged.Load() != calls {
			t.Errorf("resolved as %s: result %s, charged %d times", as, done.Result, charged.Load())
		}
	}
	testkit.VerifyLog(t, b.Stores)
}

// The lease of a handler that is at its effect is lost: the next execution waits,
// asks its check, and takes what was done.
func TestOnceAfterALostLease(t *testing.T) {
	t.Parallel()
	b := setup(t, visibility(time.Second), func(c *config.Orchestrator) { c.Effects.DoubtAfter = 3 * time.Second })
	var charged atomic.Int64
	stuck := make(chan struct{})
	handler := func(lost bool) func(w *worker.Worker) {
		return func(w *worker.Worker) {
			worker.Handle(w, charging, func(ctx context.Context, j *task.Job[int]) error {
				n, err := worker.Once(ctx, "charge", func(context.Context) (int64, error) {
					n := charged.Add(1)
					if lost {
						stuck <- struct{}{}
						<-stuck // what it did is told late
					}
					return n, nil
				}, worker.WithCheck(func(context.Context) (bool, int64, error) { return charged.Load() > 0, 100 + charged.Load(), nil }))
				if err != nil {
					return err
				}
				return j.SetResult(n)
			})
		}
	}
	first := b.worker(worker.Options{OrchestratorURL: b.orch.URL}, handler(true))
	e, err := charging.Enqueue(t.Context(), b.client, 1)
	if err != nil {
		t.Fatal(err)
	}
	<-stuck
	thief := testkit.Client(t, b.orch.URL)
	b.worker(worker.Options{OrchestratorURL: b.orch.URL}, handler(false))
	if err := b.redis.Do(t.Context(), "XGROUP", "DESTROY", "stream:task", "cg:workers").Err(); err != nil { // its lease is gone
		t.Fatal(err)
	}
	done := reached(t, thief, e.TaskID, "succeeded")
	close(stuck)
	if string(done.Result) != "101" || charged.Load() != 1 {
		t.Errorf("result %s, charged %d times", done.Result, charged.Load())
	}
	first.Stop(t)
}

func TestOnceNeedsAnOrchestrator(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.worker(worker.Options{}, func(w *worker.Worker) {
		worker.Handle(w, charging, func(ctx context.Context, _ *task.Job[int]) error {
			_, err := worker.Once(ctx, "charge", func(context.Context) (int, error) { return 0, nil })
			return err
		})
	})
	e, err := charging.Enqueue(t.Context(), b.client, 1)
	if err != nil {
		t.Fatal(err)
	}
	if failed := reached(t, b.client, e.TaskID, "failed"); !strings.Contains(failed.LastErrorReason.GetValue(), "PENSTOCK_ORCHESTRATOR_URL") {
		t.Errorf("%s", failed.LastErrorReason.GetValue())
	}
}
