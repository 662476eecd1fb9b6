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

// receiver is what effects happen to: it counts calls by key, and knows nothing of
// the ledger.
type receiver struct {
	server *http.Server
	url    string

	mu    sync.Mutex
	calls map[string][]time.Time
	// held are the slots whose next call is answered only after its process is
	// gone.
	held map[string]chan struct{}
}

func newReceiver() (*receiver, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &receiver{url: "http://" + l.Addr().String(), calls: map[string][]time.Time{}, held: map[string]chan struct{}{}}
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
	r.mu.Lock()
	r.calls[key] = append(r.calls[key], time.Now())
	n, slot := len(r.calls[key]), req.FormValue("slot")
	hold := r.held[slot]
	delete(r.held, slot)
	r.mu.Unlock()
	if hold != nil {
		close(hold)
		select {
		case <-req.Context().Done():
		case <-time.After(momentLimit):
		}
	}
	_, _ = fmt.Fprint(w, n)
}

func (r *receiver) count(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls[key])
}

// hold has the next call of a slot's process be held up once it is counted; the
// channel is closed then.
func (r *receiver) hold(slot string) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	hit := make(chan struct{})
	r.held[slot] = hit
	return hit
}

func (r *receiver) spare(slot string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, slot)
}

// caller is the worker's side.
type caller struct{ url, slot string }

// call makes the effect happen.
func (c caller) call(ctx context.Context, method, key string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+"/?"+url.Values{"key": {key}, "slot": {c.slot}}.Encode(), nil)
	if err != nil {
		return 0, worker.NotDone(err)
	}
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
func (c caller) once(ctx context.Context, r *task.Raw, how string) (int, error) {
	var opts []worker.OnceOption
	if how == byCheck {
		opts = append(opts, worker.WithCheck(func(ctx context.Context) (bool, int, error) {
			n, err := c.call(ctx, http.MethodGet, r.IdempotencyKey)
			return n > 0, n, err
		}))
	}
	return worker.Once(ctx, effectName, func(ctx context.Context) (int, error) { return c.call(ctx, http.MethodPost, r.IdempotencyKey) }, opts...)
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
		if _, err := stage.Resolve(ctx, r); err == nil {
			h.mu.Lock()
			h.answered++
			h.mu.Unlock()
		}
	}
}

// judgeEffects compares what the receiver counted with what was to happen. It is
// the receiver's count that matters.
func (h *harness) judgeEffects(ctx context.Context, hist *check.History, rep *report) error {
	h.receiver.mu.Lock()
	defer h.receiver.mu.Unlock()
	rows, err := h.db.Query(ctx, `SELECT t.id::text, t.state, t.result->>'receipt' FROM tasks t WHERE t.payload->>'effect' IS NOT NULL`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id, state string
		var receipt *string
		if err := rows.Scan(&id, &state, &receipt); err != nil {
			return err
		}
		calls := h.receiver.calls[id]
		rep.Effects.Tasks++
		rep.Effects.Calls += len(calls)
		text := ""
		rule := check.RuleEffectTwice
		switch {
		case len(calls) > 1 && hist.Tasks[id] != nil && hist.Tasks[id].Kind == checkedKind && hist.StoodStill(calls[0].Add(-5*h.visibility), calls[1]):
			// A process that was stopped in the middle of its effect: no check can know.
			rep.Effects.Excused++
		case len(calls) > 1:
			text = fmt.Sprintf("the receiver was called %d times: %v", len(calls), calls)
		case state == "succeeded" && len(calls) == 0:
			rule, text = check.RuleEffectLost, "it succeeded, and the receiver was never called"
		case state == "succeeded" && (receipt == nil || *receipt != "1"):
			rule, text = check.RuleEffectLost, fmt.Sprintf("it succeeded with the receipt %v, the receiver gave 1", deref(receipt))
		}
		if text != "" {
			rep.Verdict.Fail(check.Violation{Rule: rule, Task: id, Text: text})
		}
	}
	if err := rows.Err(); err != nil {
		return err
	}
	h.mu.Lock()
	rep.Effects.Answered = h.answered
	h.mu.Unlock()
	return h.db.QueryRow(ctx, `SELECT count(*) FILTER (WHERE resolution LIKE 'check%'), count(*) FILTER (WHERE runs > 1) FROM effects`).Scan(&rep.Effects.Checked, &rep.Effects.RunAgain)
}

func deref(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}

// effectsSeen is what a run had of effects.
type effectsSeen struct {
	Tasks int `json:"tasks"`
	Calls int `json:"calls"`
	// Answered are doubts that the person ended, Checked those that a check did,
	// RunAgain effects that were given out more than once.
	Answered int `json:"answered"`
	Checked  int `json:"checked"`
	RunAgain int `json:"given_again"`
	// Excused are those that happened twice under the eyes of a check because a
	// process was stopped in the middle of one.
	Excused int `json:"excused"`
}

// charge is what perform does for a task with an effect.
func (c caller) charge(ctx context.Context, id string, r *task.Raw, p *payload) (json.RawMessage, string, error) {
	n, err := c.once(ctx, r, p.Effect)
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
