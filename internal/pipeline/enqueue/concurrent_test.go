package enqueue_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// TestOneKeyConcurrently: a thousand enqueues of one key over two
// orchestrators make one task; those with other fields are told so.
func TestOneKeyConcurrently(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	for name, c := range map[string]struct {
		req      func(i int) *penstockv1.EnqueueRequest
		payloads int
		keys     int
	}{
		"one key":               {func(int) *penstockv1.EnqueueRequest { return req(key("one")) }, 1, 1},
		"one name":              {func(int) *penstockv1.EnqueueRequest { return req(id("one")) }, 1, 0},
		"one key, two payloads": {func(i int) *penstockv1.EnqueueRequest { return req(key("two"), payload(fmt.Sprint(i%2))) }, 2, 1},
		"one id, two payloads": {func(i int) *penstockv1.EnqueueRequest {
			return req(id("0b9f2a4e-3a55-4b7c-9d55-5a5a5a5a5a5a"), payload(fmt.Sprint(i%2)))
		}, 2, 0},
	} {
		tasks, keys := e.count(t, "tasks"), e.count(t, "idempotency_keys")
		const calls = 1000
		var mu sync.Mutex
		var created, hits, duplicates int
		ids := map[string]bool{}
		var wg sync.WaitGroup
		for i := range calls {
			wg.Go(func() {
				// Neighbours differ in their payload and orchestrators mix both.
				res, err := e.orch[i/2%2].Enqueue(t.Context(), connect.NewRequest(c.req(i)))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil && rpc.InfoOf(err).GetCode() == string(protocol.CodeDuplicate) && rpc.InfoOf(err).Field == "payload":
					duplicates++
				case err != nil:
					t.Errorf("%s: %v", name, err)
				case res.Msg.IdempotentHit:
					hits++
					ids[res.Msg.Task.TaskId] = true
				default:
					created++
					ids[res.Msg.Task.TaskId] = true
				}
			})
		}
		wg.Wait()
		wantDuplicates := 0
		if c.payloads == 2 {
			wantDuplicates = calls / 2
		}
		if created != 1 || duplicates != wantDuplicates || hits != calls-1-wantDuplicates || len(ids) != 1 {
			t.Errorf("%s: %d created, %d hits, %d duplicates, ids %v", name, created, hits, duplicates, ids)
		}
		e.wantCounts(t, tasks+1, keys+c.keys)
	}
}

// TestOverlappingBatches: batches that hold the same keys and ids in other
// orders, over two orchestrators, end in one task each and never in a deadlock.
func TestOverlappingBatches(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	const workers, rounds, width, things = 24, 6, 60, 40
	start := time.Now()
	var mu sync.Mutex
	created := 0
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1)) //nolint:gosec // a test's order
			for round := range rounds {
				var rs []*penstockv1.EnqueueRequest
				for range width {
					n := fmt.Sprintf("%d-%d", round, rnd.IntN(things))
					switch rnd.IntN(4) {
					case 0:
						rs = append(rs, req(key("k"+n)))
					case 1:
						rs = append(rs, req(key("k"+n), id("i"+n)))
					case 2:
						rs = append(rs, req(id("n"+n)))
					default:
						rs = append(rs, req(key("other"+n), scope("s")))
					}
				}
				res, err := e.orch[w%2].EnqueueBatch(t.Context(), connect.NewRequest(&penstockv1.EnqueueBatchRequest{Tasks: rs}))
				if err != nil {
					t.Errorf("batch: %v", err)
					return
				}
				mu.Lock()
				for i, r := range res.Msg.Results {
					if s := short(r); s != "new" && s != "hit" {
						t.Errorf("%v: %s %v", rs[i], s, r.Error)
					} else if s == "new" {
						created++
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if d := time.Since(start); d > 2*time.Minute {
		t.Errorf("took %s: something waited for a lock", d)
	}
	e.wantCounts(t, created, e.count(t, "idempotency_keys"))
	if n := e.count(t, "tasks WHERE name LIKE 'n%'"); n != rounds*things {
		t.Errorf("%d named tasks, want %d", n, rounds*things)
	}
}

// TestMixedBatchesKeepOrder: results come in the order of the items, whatever
// became of them, and each names its own task.
func TestMixedBatchesKeepOrder(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	const n = 500
	var rs []*penstockv1.EnqueueRequest
	for i := range n {
		r := req(payload(fmt.Sprint(i)), id(uuid.Must(uuid.NewV7()).String()))
		switch i % 5 {
		case 1:
			r.IdempotencyKey = fmt.Sprint("k", i)
		case 2:
			r.TaskId = fmt.Sprint("name ", i)
		case 3:
			r.TaskId = ""
		case 4:
			r.Type = ""
		}
		rs = append(rs, r)
	}
	check := func(want string) {
		t.Helper()
		for i, r := range e.batch(t, rs...) {
			switch {
			case i%5 == 4:
				if short(r) != string(protocol.CodeInputInvalid)+" type" {
					t.Errorf("item %d: %s", i, short(r))
				}
			case i%5 == 3:
				if short(r) != "new" || string(r.Task.GetPayload()) != fmt.Sprint(i) {
					t.Errorf("item %d: %v", i, r)
				}
			case short(r) != want || r.TaskId != rs[i].TaskId || string(r.Task.GetPayload()) != fmt.Sprint(i):
				t.Errorf("item %d: %v", i, r)
			}
		}
	}
	check("new")
	check("hit")
	e.wantCounts(t, n, n/5)
}
