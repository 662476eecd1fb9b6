// Package once runs side effects by the ledger: what was done before is not done
// again, and what may have been done is not done without being asked. Workers and
// package tasktest put a Ledger into the handler's context; package worker has the
// face that handlers see.
package once

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// Ledger keeps the effects of one execution's task. Its methods may repeat their
// calls until an answer arrives; errors of refusals are *protocol.Error.
type Ledger interface {
	// Reserve asks for an effect. It stops when ctx ends.
	Reserve(ctx context.Context, r *Request) (*Answer, error)
	// Complete records that a reserved effect has happened, and Release that it
	// has not: where the token holds no reservation that changes nothing. Both go
	// on for some seconds after ctx has ended, and may be called after it has.
	Complete(ctx context.Context, name string, token protocol.ID, result json.RawMessage, note string) error
	Release(ctx context.Context, name string, token protocol.ID) error
}

// Request is what an execution asks for.
type Request struct {
	Name  string
	Token protocol.ID
	// Judgement is nil unless the effect was found in doubt.
	Judgement *protocol.EffectJudgement
}

// Answer is what a Request comes to.
type Answer struct {
	Verdict protocol.EffectVerdict
	// Result and Note are those of an effect that is done.
	Result json.RawMessage
	Note   string
	// Scope and Key are the rest of the effect's full key.
	Scope, Key, KeyKind string
	// HolderToken and the fields below tell of the reservation that is in doubt.
	HolderToken    protocol.ID
	HolderTask     string
	HolderDelivery int64
	Since          time.Time
}

type key struct{}

// place is what a context knows.
type place struct {
	ledger Ledger
	why    error // there is no ledger
}

// With returns a context whose effects l keeps.
func With(ctx context.Context, l Ledger) context.Context {
	return context.WithValue(ctx, key{}, place{ledger: l})
}

// Without returns a context that has no ledger, and why.
func Without(ctx context.Context, why error) context.Context {
	return context.WithValue(ctx, key{}, place{why: why})
}

// errNowhere is the error outside of a worker.
var errNowhere = errors.New("worker.Once: the context is not that of a handler that a worker (or tasktest) runs")

// From returns the ledger of ctx; the error says why there is none.
func From(ctx context.Context) (Ledger, error) {
	p, ok := ctx.Value(key{}).(place)
	switch {
	case !ok:
		return nil, errNowhere
	case p.ledger == nil:
		return nil, p.why
	}
	return p.ledger, nil
}

// Options say what becomes of an effect in doubt; by default a person is asked.
type Options struct {
	// Check, if set, finds out whether the effect has happened. Its error is
	// returned, and leaves the effect in doubt.
	Check func(ctx context.Context) (done bool, result json.RawMessage, err error)
	// RunAgain runs an effect in doubt once more.
	RunAgain bool
	// KeepLarge: where a result can't be kept, the run that has it gets it all the
	// same.
	KeepLarge bool
}

const (
	// freshFor is how old a reservation may be when its effect begins. A process
	// that was stopped meanwhile asks again whether its execution still counts.
	freshFor = time.Second
	// An execution that finds another at its effect comes back after these.
	minBusy, maxBusy = time.Second, 5 * time.Second
)

// Do runs fn unless the effect was done before, and returns its result, JSON, or
// that of then. See worker.Once for what errors mean. Marks in an error that it
// returns have done their duty: they do not speak of an effect around this one.
func Do(ctx context.Context, name string, fn func(ctx context.Context) (json.RawMessage, error), o Options) (json.RawMessage, error) {
	result, err := do(ctx, name, fn, o)
	return result, spend(err)
}

func do(ctx context.Context, name string, fn func(ctx context.Context) (json.RawMessage, error), o Options) (json.RawMessage, error) {
	if err := protocol.CheckEffectName(name); err != nil {
		return nil, task.Permanent(fmt.Errorf("worker.Once: the effect's name %w", err))
	}
	ledger, err := From(ctx)
	if err != nil {
		return nil, task.Permanent(err)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	r := &Request{Name: name, Token: newToken()}
	for {
		asked := time.Now()
		a, err := ledger.Reserve(ctx, r)
		if err != nil {
			return nil, notReserved(ctx, ledger, r, err)
		}
		switch a.Verdict {
		case protocol.EffectKnown:
			return known(name, a)
		case protocol.EffectBusy:
			return nil, task.Snooze(minBusy + mathrand.N(maxBusy-minBusy))
		case protocol.EffectInDoubt:
			if r.Judgement, err = o.judge(ctx, name, a); err != nil {
				return nil, err
			}
			if ctx.Err() != nil { // the reservation in doubt is not ours
				return nil, context.Cause(ctx)
			}
			continue
		}
		if ctx.Err() != nil {
			return nil, notReserved(ctx, ledger, r, ctx.Err())
		}
		if time.Since(asked) < freshFor {
			return run(ctx, ledger, r, fn, o)
		}
		r.Judgement = nil // it is ours; the same call tells whether it still is
	}
}

// notReserved is the error of an effect that was not run. Its reservation may be
// in the ledger all the same, even if err is a refusal: the reply to an earlier
// call may have been lost, or have come too late. Where it is not, or is another's,
// the release does nothing.
func notReserved(ctx context.Context, l Ledger, r *Request, err error) error {
	_ = l.Release(ctx, r.Name, r.Token) // else a person is asked, in vain
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("effect %q was not run: it can't be reserved: %w", r.Name, err)
}

// known is the result of an effect that was done before.
func known(name string, a *Answer) (json.RawMessage, error) {
	if a.Note != "" {
		return nil, task.Permanent(fmt.Errorf("effect %q has happened before and is not run again, but its result was not kept: %s", name, a.Note))
	}
	return a.Result, nil
}

// judge decides about an effect in doubt.
func (o *Options) judge(ctx context.Context, name string, a *Answer) (*protocol.EffectJudgement, error) {
	j := &protocol.EffectJudgement{Token: a.HolderToken, Resolution: protocol.ResolvedRunAgain}
	switch {
	case o.Check != nil:
		done, result, err := o.Check(ctx)
		if err != nil {
			return nil, err
		}
		if j.Resolution = protocol.CheckedNotDone; done {
			if err := protocol.CheckEffectResult(result); err != nil {
				return nil, task.Permanent(fmt.Errorf("effect %q is done by the word of its check, whose result can't be kept: it %w", name, err))
			}
			j.Resolution, j.Result = protocol.CheckedDone, result
		}
	case !o.RunAgain:
		return nil, &InDoubt{Name: name, Scope: a.Scope, Key: a.Key, KeyKind: a.KeyKind, TaskID: a.HolderTask, Delivery: a.HolderDelivery, Since: a.Since}
	}
	return j, nil
}

// run runs a reserved effect. A panic, and an error that is not marked, leave it
// reserved: once this execution is over it is in doubt.
func run(ctx context.Context, l Ledger, r *Request, fn func(ctx context.Context) (json.RawMessage, error), o Options) (json.RawMessage, error) {
	result, err := fn(ctx)
	if _, ok := markedBy[*notDone](err); ok {
		_ = l.Release(ctx, r.Name, r.Token) // else a person is asked, in vain
		return nil, err
	}
	note := ""
	if lost, ok := markedBy[*withoutResult](err); ok {
		note = noteOf(lost.Error())
	} else if err != nil {
		return nil, err
	}
	if len(result) == 0 {
		result = json.RawMessage("null")
	}
	if note == "" {
		if e := protocol.CheckEffectResult(result); e != nil {
			note = noteOf("it " + e.Error())
		}
	}
	if e := l.Complete(ctx, r.Name, r.Token, result, note); e != nil {
		return nil, fmt.Errorf("effect %q has happened, but the ledger could not be told, so it is in doubt: %w", r.Name, e)
	}
	switch {
	case err != nil:
		return nil, err
	case note != "" && !o.KeepLarge:
		return nil, task.Permanent(fmt.Errorf("effect %q has happened, but its result can't be kept for another run: %s", r.Name, note))
	}
	return result, nil
}

// maxNote is the most bytes of a note.
const maxNote = 1024

func noteOf(text string) string {
	text = protocol.Text(text)
	return strings.ToValidUTF8(text[:min(len(text), maxNote)], "")
}

func newToken() (id protocol.ID) {
	_, _ = rand.Read(id[:]) // never fails
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}
