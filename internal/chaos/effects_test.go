package main

import (
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/task"
)

// posted is a call of an effect of delivery 2.
func posted(slot, how, hold string) *http.Request {
	form := url.Values{"slot": {slot}, "worker": {"w7"}, "delivery": {"2"}, "how": {how}, "hold": {hold}}
	return httptest.NewRequest(http.MethodPost, "/?"+form.Encode(), nil)
}

// A call is counted when it arrives, with who made it; a fault that waits for one
// gets that of its slot and kind alone.
func TestReceiverHolds(t *testing.T) {
	t.Parallel()
	r := &receiver{calls: map[string][]check.Call{}, open: map[string]time.Time{}, held: map[string]held{}}
	hit := r.hold("worker-1", byCheck)
	for name, c := range map[string]struct {
		req  *http.Request
		want time.Duration
	}{
		"another slot": {posted("worker-2", byCheck, "0"), 0},
		"another kind": {posted("worker-1", byPerson, "0"), 0},
		"a slow one":   {posted("worker-1", byPerson, "4500"), 4500 * time.Millisecond},
	} {
		if n, wait := r.take(name, c.req); n != 1 || wait != c.want {
			t.Errorf("%s: call %d waits for %s", name, n, wait)
		}
	}
	select {
	case <-hit:
		t.Fatal("hit by another call")
	default:
	}
	if !r.has("a slow one", time.Minute) || r.has("a slow one", 0) || r.has("another kind", time.Minute) {
		t.Errorf("open calls: %v", r.open)
	}
	if n, wait := r.take("k", posted("worker-1", byCheck, "0")); n != 1 || wait != momentLimit {
		t.Errorf("call %d waits for %s", n, wait)
	}
	<-hit
	if n, wait := r.take("k", posted("worker-1", byCheck, "0")); n != 2 || wait != 0 {
		t.Errorf("call %d, after it was held once, waits for %s", n, wait)
	}
	if c := r.calls["k"][0]; c.Worker != "w7" || c.Delivery != 2 || time.Since(c.At) > time.Minute {
		t.Errorf("%+v", c)
	}
}

// There are effects of each kind, and some whose call outlasts a lease.
func TestEffectKinds(t *testing.T) {
	t.Parallel()
	l := &load{visibility: 3 * time.Second}
	slow := map[string]bool{}
	total := 0
	for _, k := range kinds {
		total += k.weight
		p, req, c := payload{}, &task.Request{}, &check.Task{}
		k.make(l, rand.New(rand.NewPCG(1, 1)), &p, req, c)
		if p.Effect == "" {
			continue
		}
		if req.Queue != queues[effectsQueue] || *req.MaxRetries < 50 || c.Attempt != 0 {
			t.Errorf("%s: queue %s, %d retries", k.name, req.Queue, *req.MaxRetries)
		}
		if time.Duration(p.Hold)*time.Millisecond > l.visibility {
			slow[p.Effect] = true
		}
	}
	if total != 1000 {
		t.Errorf("the weights of all kinds are %d, want 1000", total)
	}
	if !slow[byPerson] || !slow[byCheck] {
		t.Errorf("slow effects: %v", slow)
	}
}
