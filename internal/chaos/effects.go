package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/effect"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Environment of the worker program: where its effects go, and its slot's name.
const (
	envReceiver = "CHAOS_RECEIVER"
	envSlot     = "CHAOS_SLOT"
)

// effectName is the only effect of tasks that have one.
const effectName = "charge"

// doubtAfter is how old a reservation must be to be in doubt.
const doubtAfter = 5 * time.Second

// receiver is what effects happen to: it counts calls by key, and knows nothing of
// the ledger.
type receiver struct {
	server *http.Server
	url    string

	mu    sync.Mutex
	calls map[string][]check.Call
	// open are the calls that are not answered on purpose, by key: since when.
	open map[string]time.Time
	// held are the slots whose next call of a kind is answered only after its
	// process is gone.
	held map[string]held
}

// held is a call that a fault waits for.
type held struct {
	how string
	hit chan struct{}
}

func newReceiver() (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + l.Addr().String(), calls: map[string][]check.Call{}, open: map[string]time.Time{}, held: map[string]held{}}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = r.server.Serve(l) }()
	return r, nil
}

// ServeHTTP takes a POST of an effect, and a GET that asks for it. One call of
// twenty is refused.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	key := req.FormValue("key")
	if req.Method == http.MethodGet {
		_, _ = fmt.Fprint(w, r.count(key))
		return
	}
	if rand.IntN(20) == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	n, wait := r.take(key, req)
	if wait > 0 {
		select {
		case <-req.Context().Done():
		case <-time.After(wait):
		}
		r.mu.Lock()
		delete(r.open, key)
		r.mu.Unlock()
	}
	_, _ = fmt.Fprint(w, n)
}

// take counts a call, and returns how long its answer is to take.
func (r *receiver) take(key string, req *http.Request) (n int, wait time.Duration) {
	delivery, _ := strconv.ParseInt(req.FormValue("delivery"), 10, 64)
	hold, _ := strconv.Atoi(req.FormValue("hold"))
	wait = time.Duration(hold) * time.Millisecond
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls[key] = append(r.calls[key], check.Call{Worker: req.FormValue("worker"), Delivery: delivery, At: time.Now()})
	slot := req.FormValue("slot")
	if f, ok := r.held[slot]; ok && f.how == req.FormValue("how") {
		delete(r.held, slot)
		close(f.hit)
		wait = max(wait, momentLimit)
	}
	if wait > 0 {
		r.open[key] = time.Now()
	}
	return len(r.calls[key]), wait
}

func (r *receiver) count(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls[key])
}

// has reports whether the receiver has a call that it does not answer, since at
// most so long.
func (r *receiver) has(key string, atMost time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, ok := r.open[key]
	return ok && time.Since(since) < atMost
}

// hold has the next call of a slot's process, of an effect whose doubts are ended
// so, be held up once it is counted; the channel is closed then.
func (r *receiver) hold(slot, how string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	hit := make(chan struct{})
	r.held[slot] = held{how, hit}
	return hit
}

func (r *receiver) spare(slot string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, slot)
}

// caller is the worker's side.
type caller struct {
	url, slot, worker string
	// open counts calls without an answer: each has a connection, with perConn
	// goroutines of net/http.
	open *atomic.Int64
}

const perConn = 2

// call makes the effect happen, or asks for it.
func (c caller) call(ctx context.Context, method string, r *task.Raw, p *payload) (int, error) {
	form := url.Values{
		"key": {r.IdempotencyKey}, "slot": {c.slot}, "worker": {c.worker}, "delivery": {strconv.FormatInt(r.Delivery, 10)},
		"how": {p.Effect}, "hold": {strconv.Itoa(p.Hold)},
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+"/?"+form.Encode(), nil)
	if err != nil {
		return 0, worker.NotDone(err)
	}
	c.open.Add(1)
	defer c.open.Add(-1)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return 0, err
	case res.StatusCode != http.StatusOK:
		return 0, worker.NotDone(fmt.Errorf("the receiver answered %s", res.Status))
	}
	return strconv.Atoi(string(b))
}

// once is the handler of a task with an effect.
func (c caller) once(ctx context.Context, r *task.Raw, p *payload) (int, error) {
	var opts []worker.OnceOption
	if p.Effect == byCheck {
		opts = append(opts, worker.WithCheck(func(ctx context.Context) (bool, int, error) {
			n, err := c.call(ctx, http.MethodGet, r, p)
			return n > 0, n, err
		}))
	}
	return worker.Once(ctx, effectName, func(ctx context.Context) (int, error) { return c.call(ctx, http.MethodPost, r, p) }, opts...)
}

// How doubts about an effect are ended.
const (
	byPerson = "person"
	byCheck  = "check"
)

// doubtAge is how old a reservation must be before the person answers for it, in
// visibility timeouts: a worker that is only stopped goes on sooner.
const doubtAge = 4

// person answers for effects in doubt by what the receiver has, until ctx ends.
func (h *harness) person(ctx context.Context) error {
	st, err := store.Open(ctx, store.Options{URL: h.stack.PostgresURL, Role: "penstock_app", MaxConns: 2})
	if err != nil {
		return err
	}
	defer st.Close()
	quiet := slog.New(slog.DiscardHandler)
	stage := effect.New(effect.Options{Store: st, Waiting: approval.New(approval.Options{Store: st, Rules: guard.NewRules(), Log: quiet}), Log: quiet})
	for ctx.Err() == nil {
		h.answer(ctx, stage)
		_ = pause(ctx, 300*time.Millisecond)
	}
	return nil
}

// answer resolves what waits. What fails, for a store is away or somebody was
// faster, is tried again.
func (h *harness) answer(ctx context.Context, stage *effect.Stage) {
	rows, err := h.db.Query(ctx, `SELECT e.scope, e.key, e.name FROM effects e WHERE e.state = 'reserved' AND e.reserved_at < now() - $1::bigint * interval '1 millisecond'
		AND EXISTS (SELECT FROM tasks t WHERE t.id = e.task_id AND t.state = 'waiting_approval')`, (doubtAge * h.visibility).Milliseconds())
	if err != nil {
		return
	}
	var ids []effect.ID
	for rows.Next() {
		var id effect.ID
		if rows.Scan(&id.Scope, &id.Key, &id.Name) == nil {
			ids = append(ids, id)
		}
	}
	for _, id := range ids {
		r := &effect.Resolution{ID: id, As: protocol.ResolvedNotDone, Principal: "person", Reason: "looked at the receiver"}
		_, key := protocol.ParseLedgerKey(id.Key)
		if n := h.receiver.count(key); n > 0 {
			r.As, r.Result = protocol.ResolvedDone, strconv.AppendInt(nil, int64(n), 10)
		}
		_, _ = stage.Resolve(ctx, r)
	}
}

// judgeEffects compares what the receiver counted with what was to happen.
func (h *harness) judgeEffects(ctx context.Context, hist *check.History, rep *report) error {
	rows, err := h.db.Query(ctx, `SELECT t.id::text, t.state, COALESCE(t.result->>'receipt', ''), t.payload->>'effect',
		ARRAY(SELECT e.occurred_at FROM event_log e WHERE e.task_id = t.id AND e.type = 'task.reclaimed') FROM tasks t WHERE t.payload->>'effect' IS NOT NULL`)
	if err != nil {
		return err
	}
	defer rows.Close()
	tasks := map[string]*check.EffectTask{}
	for rows.Next() {
		var id, how string
		t := &check.EffectTask{}
		if err := rows.Scan(&id, &t.State, &t.Receipt, &how, &t.Reclaims); err != nil {
			return err
		}
		t.Checked = how == byCheck
		tasks[id] = t
	}
	if err := rows.Err(); err != nil {
		return err
	}
	h.receiver.mu.Lock()
	defer h.receiver.mu.Unlock()
	seen, found := check.JudgeEffects(hist, tasks, h.receiver.calls)
	for _, v := range found {
		rep.Verdict.Fail(v)
	}
	rep.Effects = seen
	return h.db.QueryRow(ctx, `SELECT count(*) FILTER (WHERE resolution IN ('done', 'not_done')), count(*) FILTER (WHERE resolution LIKE 'check%'),
		count(*) FILTER (WHERE runs > 1) FROM effects`).Scan(&seen.Answered, &seen.Checked, &seen.RunAgain)
}

// charge is what perform does for a task with an effect.
func (c caller) charge(ctx context.Context, id string, r *task.Raw, p *payload) (json.RawMessage, string, error) {
	n, err := c.once(ctx, r, p)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, check.EndCancelled, err
	case err != nil:
		return nil, check.EndFailed, err
	case r.Delivery == 1 && p.N%3 == 0: // what was done before is not done again
		return nil, check.EndFailed, errors.New("after the effect")
	}
	res, err := json.Marshal(answer{Sum: p.sum(), Delivery: r.Delivery, Worker: id, Receipt: n})
	return res, check.EndOK, err
}
