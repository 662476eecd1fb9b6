package tasktest

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/penstock-dev/penstock/internal/once"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// Effects is the ledger of worker.Once of one task. Each Run has one of its own
// unless WithEffects gives it one; give the same to several to test what a retry, a
// lost worker or a requeue does. It decides by the code of the real one. It is safe
// for concurrent use.
type Effects struct {
	mu      sync.Mutex
	run     int64
	effects map[string]*protocol.Effect
	busy    map[string]bool
}

// NewEffects makes an empty ledger.
func NewEffects() *Effects {
	return &Effects{effects: map[string]*protocol.Effect{}, busy: map[string]bool{}}
}

// WithEffects has the execution use a ledger.
func WithEffects(e *Effects) Option { return func(s *settings) { s.effects = e } }

// SetDone has an effect be done, with a result that has a JSON form.
func (e *Effects) SetDone(name string, result any) {
	b, err := json.Marshal(result)
	if err != nil {
		panic("tasktest: result of effect " + name + ": " + err.Error())
	}
	e.reserve(name, false)
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.effects[name]
	x.Complete(x.Holder, x.Token, b, "", time.Now())
}

// SetInDoubt has an effect be one that a lost execution may have run.
func (e *Effects) SetInDoubt(name string) { e.reserve(name, false) }

// SetBusy has an effect be one that another execution is at.
func (e *Effects) SetBusy(name string) { e.reserve(name, true) }

// reserve gives an effect anew to an execution of which nothing else is known.
func (e *Effects) reserve(name string, busy bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := &protocol.Effect{}
	x.Reserve(protocol.EffectHolder{TaskID: protocol.ID{1}, WorkerID: "lost"}, protocol.ID{1}, false, nil, time.Now())
	e.effects[name], e.busy[name] = x, busy
}

// Result returns the result of an effect that is done; false if it is not.
func (e *Effects) Result(name string) (json.RawMessage, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.effects[name]
	if x == nil || x.State != protocol.EffectDone {
		return nil, false
	}
	return x.Result, true
}

// Runs returns how often an effect was run.
func (e *Effects) Runs(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.effects[name]; x != nil {
		return x.Runs
	}
	return 0
}

// InDoubt reports whether an effect may have happened: the next execution will
// find it in doubt.
func (e *Effects) InDoubt(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.effects[name]
	return x != nil && x.State == protocol.EffectReserved && !e.busy[name]
}

// begin returns the ledger as a new execution sees it. The ones before are over.
func (e *Effects) begin(entry *protocol.TaskEntry) *executionLedger {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.run++
	return &executionLedger{e: e, entry: entry, by: protocol.EffectHolder{TaskID: entry.ID, Delivery: e.run, WorkerID: "tasktest"}}
}

var errReplaced = errors.New("tasktest: the reservation was replaced")

type executionLedger struct {
	e     *Effects
	entry *protocol.TaskEntry
	by    protocol.EffectHolder
}

// Reserve implements once.Ledger.
func (l *executionLedger) Reserve(_ context.Context, r *once.Request) (*once.Answer, error) {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	x := l.e.effects[r.Name]
	if x == nil {
		x = &protocol.Effect{}
		l.e.effects[r.Name] = x
	}
	a := &once.Answer{Verdict: x.Reserve(l.by, r.Token, l.e.busy[r.Name], r.Judgement, time.Now()), Scope: l.entry.IdempotencyScope, Key: l.entry.IdempotencyKey, KeyKind: protocol.KeyGiven}
	if l.entry.KeyOwn {
		a.KeyKind = protocol.KeyOfTask
	}
	a.Result, a.Note, a.HolderToken = x.Result, x.ResultNote, x.Token
	a.HolderTask, a.HolderDelivery, a.Since = x.Holder.TaskID.String(), x.Holder.Delivery, x.ReservedAt
	return a, nil
}

// Complete implements once.Ledger.
func (l *executionLedger) Complete(_ context.Context, name string, token protocol.ID, result json.RawMessage, note string) error {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if note != "" {
		result = nil
	}
	if x := l.e.effects[name]; x.Complete(l.by, token, result, note, time.Now()) == protocol.Rejected {
		return task.Permanent(errReplaced)
	}
	return nil
}

// Release implements once.Ledger.
func (l *executionLedger) Release(_ context.Context, name string, token protocol.ID) error {
	l.e.mu.Lock()
	defer l.e.mu.Unlock()
	if x := l.e.effects[name]; x == nil || x.Release(token) == protocol.Rejected {
		return errReplaced
	}
	return nil
}
