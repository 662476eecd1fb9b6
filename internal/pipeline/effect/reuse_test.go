package effect_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/pipeline/retention"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/onceindb"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// days moves everything that has happened to all tasks into the past.
func (r rig) days(t *testing.T, n int) {
	t.Helper()
	for _, sql := range []string{
		`UPDATE tasks SET created_at = created_at - $1 * interval '1 day', updated_at = updated_at - $1 * interval '1 day',
			claimed_at = claimed_at - $1 * interval '1 day', started_at = started_at - $1 * interval '1 day', finished_at = finished_at - $1 * interval '1 day' WHERE finished_at IS NOT NULL`,
		`UPDATE event_log SET occurred_at = occurred_at - $1 * interval '1 day',
			data = CASE WHEN COALESCE(data->>'started_at', data->>'finished_at') IS NULL THEN data ELSE (data::jsonb || jsonb_strip_nulls(jsonb_build_object(
				'started_at', (data->>'started_at')::timestamptz - $1 * interval '1 day', 'finished_at', (data->>'finished_at')::timestamptz - $1 * interval '1 day')))::json END`,
		"UPDATE idempotency_keys SET created_at = created_at - $1 * interval '1 day'",
	} {
		if _, err := r.DB.Exec(t.Context(), sql, n); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// janitor removes keys after an hour and tasks after two days; effects are kept.
func (r rig) janitor(t *testing.T) *retention.Janitor {
	t.Helper()
	return retention.New(retention.Options{Store: r.Store, Redis: r.Client, Trim: time.Hour, Tasks: 48 * time.Hour, Keys: time.Hour, Effects: 1000 * 24 * time.Hour, Log: testkit.Log(t)})
}

// expire lets the keys of finished tasks expire.
func (r rig) expire(t *testing.T) {
	t.Helper()
	r.days(t, 1)
	if err := r.janitor(t).ExpireKeys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := r.Count(t, "SELECT count(*) FROM idempotency_keys k JOIN tasks t ON t.id = k.task_id WHERE t.finished_at IS NOT NULL"); n != 0 {
		t.Fatalf("%d keys of finished tasks are left", n)
	}
}

// done has an execution run an effect.
func (r rig) done(t *testing.T, h testkit.Held, result string) {
	t.Helper()
	q := reservation(h, "charge")
	r.reserve(t, q, protocol.EffectGranted)
	if err := r.Complete(t.Context(), holder(h), "charge", q.Token, []byte(result), ""); err != nil {
		t.Fatal(err)
	}
}

// knows checks that an execution is given what another has done.
func (r rig) knows(t *testing.T, h testkit.Held, result string) {
	t.Helper()
	if a := r.reserve(t, reservation(h, "charge"), protocol.EffectKnown); string(a.Effect.Result) != result {
		t.Errorf("the result of %s is %s, want %s", a.ID, a.Effect.Result, result)
	}
}

// dead ends a task as a dead letter.
func (r rig) dead(t *testing.T, h testkit.Held) {
	t.Helper()
	o := h.Outcome(protocol.OutcomeFailed)
	o.Code, o.Error = protocol.CodeExecutionFailed, "no"
	r.Report(t, o)
	r.Ack(t, h)
	r.WaitState(t, protocol.StateFailed, h.ID)
}

// again requeues the dead letter of a task.
func (r rig) again(t *testing.T, h testkit.Held) testkit.Held {
	t.Helper()
	res, err := r.Replay.Requeue(t.Context(), []protocol.ID{protocol.DLQID(h.ID)}, replay.RequeueOptions{Principal: "zoe", Again: true})
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
	return r.Fetch(t, "hand", 1)[0]
}

// inDB is the key of the effects in the caller's own database.
func inDB(h testkit.Held) string {
	return onceindb.Key(task.Info{Tenant: h.Tenant, IdempotencyScope: h.IdempotencyScope, IdempotencyKey: h.IdempotencyKey, IdempotencyKeyOwn: h.KeyOwn})
}

// A key that has expired and is used again is another act: its effect happens, and
// is kept, for itself; receivers and the caller's own database can tell the two
// apart. All executions of either act, and what is requeued from it, are the same.
func TestAKeyUsedAgainIsAnotherAct(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"short": "order-42", "as long as can be": strings.Repeat("ü", 127) + "x", "one byte too long to be kept as it is": strings.Repeat("k", 242)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.Start(t, r.DeadLetter.Run)
			var acts []testkit.Held
			seen := map[string]bool{}
			for n := range 3 {
				h := r.one(t, enqueue.Request{IdempotencyKey: key})
				if h.KeyOwn || len(h.IdempotencyKey) > 255 || (h.IdempotencyKey == key) != (n == 0) || seen[h.IdempotencyKey] || seen[inDB(h)] {
					t.Errorf("act %d: handlers see the key %q (own: %v)", n, h.IdempotencyKey, h.KeyOwn)
				}
				seen[h.IdempotencyKey], seen[inDB(h)] = true, true
				r.done(t, h, fmt.Sprint(n))
				acts = append(acts, h)
				next := r.lose(t, h)
				if next.IdempotencyKey != h.IdempotencyKey || inDB(next) != inDB(h) {
					t.Errorf("act %d: the next execution sees the key %q, not %q", n, next.IdempotencyKey, h.IdempotencyKey)
				}
				r.knows(t, next, fmt.Sprint(n))
				r.Ack(t, h)
				r.dead(t, next)
				hit, err := r.Enqueuer.EnqueueAll(t.Context(), []*enqueue.Request{{Type: "t", Payload: []byte("{}"), IdempotencyKey: key}})
				if err != nil || !hit[0].Value.Hit || protocol.ID(hit[0].Value.Task().ID) != h.ID {
					t.Errorf("act %d: a repeat: %+v, %v", n, hit, err)
				}
				r.expire(t)
			}
			for n, h := range acts {
				next := r.again(t, h)
				if next.IdempotencyKey != h.IdempotencyKey || inDB(next) != inDB(h) {
					t.Errorf("act %d: what is requeued sees the key %q, not %q", n, next.IdempotencyKey, h.IdempotencyKey)
				}
				r.knows(t, next, fmt.Sprint(n))
				r.dead(t, next)
				r.knows(t, r.again(t, next), fmt.Sprint(n))
			}
			if n := r.Count(t, "SELECT count(*) FROM effects WHERE runs = 1 AND conflicts = 0"); n != 3 {
				t.Errorf("%d effects, want 3", n)
			}
			testkit.VerifyEvents(t, r.Stores)
		})
	}
}

// The same holds for a name that is free again: without a key it is what effects
// are known by.
func TestANameUsedAgainIsAnotherAct(t *testing.T) {
	t.Parallel()
	old := uuid.Must(uuid.NewV7())
	copy(old[:], []byte{0x01, 0x8c}) // of 2023: used as a name
	for name, id := range map[string]string{"name": "order-42", "an old UUID": old.String()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.Start(t, r.DeadLetter.Run)
			first := r.one(t, enqueue.Request{TaskID: id})
			r.done(t, first, "1")
			r.Report(t, first.Outcome(protocol.OutcomeSucceeded))
			r.WaitState(t, protocol.StateSucceeded, first.ID)
			r.Ack(t, first)
			r.days(t, 5)
			testkit.Eventually(t, "the first task is removed", func() (bool, string) {
				_, err := r.DB.Exec(t.Context(), "SELECT penstock_remove_tasks(ARRAY[$1::uuid], '48 hours')", pgid.ID(first.ID))
				return r.Count(t, "SELECT count(*) FROM tasks") == 0, fmt.Sprint(err)
			})
			second := r.one(t, enqueue.Request{TaskID: id})
			if second.ID != first.ID || !second.KeyOwn || second.TaskID != id || second.IdempotencyKey == first.IdempotencyKey || inDB(second) == inDB(first) {
				t.Errorf("handlers see %q, then %q (own: %v)", first.IdempotencyKey, second.IdempotencyKey, second.KeyOwn)
			}
			r.done(t, second, "2")
			r.dead(t, second)
			third := r.again(t, second)
			if third.IdempotencyKey != second.IdempotencyKey || !third.KeyOwn {
				t.Errorf("what is requeued sees %q (own: %v), not %q", third.IdempotencyKey, third.KeyOwn, second.IdempotencyKey)
			}
			r.knows(t, third, "2")
			testkit.VerifyEvents(t, r.Stores)
		})
	}
}

// While retention removes a key, others take it anew, and its dead letter is
// requeued: every act has its own effects, also those of the moment in which a key
// is removed for the first time, and what is requeued has those of its first task.
func TestAKeyIsUsedAgainWhileItExpires(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Start(t, r.DeadLetter.Run)
	const rounds = 20
	ctx, anew := t.Context(), 0
	for n := range rounds {
		key := fmt.Sprint("order-", n)
		if _, err := r.DB.Exec(ctx, "UPDATE key_reuse SET since = NULL"); err != nil {
			t.Fatal(err)
		}
		r.dead(t, r.one(t, enqueue.Request{IdempotencyKey: key}))
		var first pgid.ID
		if err := r.DB.QueryRow(ctx, "SELECT task_id FROM idempotency_keys WHERE key = $1", key).Scan(&first); err != nil {
			t.Fatal(err)
		}
		r.days(t, 1)
		var wg sync.WaitGroup
		removed := make(chan struct{})
		wg.Go(func() {
			defer close(removed)
			if err := r.janitor(t).ExpireKeys(ctx); err != nil {
				t.Error(err)
			}
		})
		for range 3 {
			wg.Go(func() {
				for last := false; ; {
					res, err := r.Enqueuer.EnqueueAll(ctx, []*enqueue.Request{{Type: "t", Payload: []byte("{}"), IdempotencyKey: key}})
					if err != nil || res[0].Err != nil && res[0].Err != enqueue.ErrGone {
						t.Error(err, res)
						return
					}
					if last {
						return
					}
					select {
					case <-removed:
						last = true
					default:
					}
				}
			})
		}
		wg.Go(func() {
			res, err := r.Replay.Requeue(ctx, []protocol.ID{protocol.DLQID(protocol.ID(first))}, replay.RequeueOptions{Principal: "zoe"})
			if err != nil || res[0].Err != nil {
				t.Error(err, res)
			}
		})
		wg.Wait()
		// A requeue that comes first is a change of the first task, whose key is kept
		// for longer then.
		taken := r.Count(t, "SELECT count(*) FROM idempotency_keys WHERE key = $1 AND task_id <> $2", key, first)
		anew += taken
		for _, h := range r.Fetch(t, "hand", 1+taken) {
			if fresh := r.Count(t, "SELECT count(*) FROM tasks WHERE id = $1 AND origin_dlq_id IS NULL", pgid.ID(h.ID)) == 1; (h.IdempotencyKey == key) == fresh {
				t.Errorf("round %d: a task that is new (%v) has the key %q", n, fresh, h.IdempotencyKey)
			}
			r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
			r.Ack(t, h)
			r.WaitState(t, protocol.StateSucceeded, h.ID)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM tasks"); n != 2*rounds+anew {
		t.Errorf("%d tasks, want %d", n, 3*rounds)
	}
	testkit.VerifyEvents(t, r.Stores)
}

// A key that is given back because its task was there already had no act: keys
// stay as they are.
func TestAKeyThatIsGivenBackIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.Enqueue(t, &enqueue.Request{Type: "t", Payload: []byte("{}"), TaskID: "a"})
	res, err := r.Enqueuer.EnqueueAll(t.Context(), []*enqueue.Request{{Type: "t", Payload: []byte("{}"), TaskID: "a", IdempotencyKey: "order-42"}})
	if err != nil || protocol.CodeOf(res[0].Err) != protocol.CodeDuplicate {
		t.Fatal(err, res)
	}
	r.Fetch(t, "hand", 1)
	if h := r.one(t, enqueue.Request{IdempotencyKey: "order-42"}); h.IdempotencyKey != "order-42" {
		t.Errorf("handlers see %q", h.IdempotencyKey)
	}
	if n := r.Count(t, "SELECT count(*) FROM key_reuse WHERE since IS NULL"); n != 1 {
		t.Error("keys count as used again")
	}
}
