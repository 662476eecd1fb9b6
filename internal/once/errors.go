package once

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

type notDone struct{ err error }

func (e *notDone) Error() string { return e.err.Error() }
func (e *notDone) Unwrap() error { return e.err }

// spent is the error of an effect whose marks told the ledger what became of that
// effect: they say nothing about another one around it.
type spent struct{ err error }

func (e *spent) Error() string { return e.err.Error() }
func (e *spent) Unwrap() error { return e.err }

// spend takes the meaning from the marks in an error.
func spend(err error) error {
	nd, isNotDone := errors.AsType[*notDone](err)
	wr, isWithout := errors.AsType[*withoutResult](err)
	if isNotDone && nd != nil || isWithout && wr != nil {
		return &spent{err}
	}
	return err
}

// markedBy returns the mark of type T in err, nil if there is none, or if only a
// part of what err joins has one: the other part does not say what happened.
func markedBy[T error](err error) (mark T, ok bool) {
	switch e := err.(type) {
	case nil, *spent:
		return mark, false
	case T:
		return e, true
	case interface{ Unwrap() error }:
		return markedBy[T](e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, part := range e.Unwrap() {
			if mark, ok = markedBy[T](part); !ok {
				var none T
				return none, false
			}
		}
	}
	return mark, ok
}

// NotDone marks the error of an effect that has certainly not happened. A nil err
// gives nil.
func NotDone(err error) error {
	if err == nil {
		return nil
	}
	return &notDone{err}
}

type withoutResult struct{ err error }

func (e *withoutResult) Error() string { return e.err.Error() }
func (e *withoutResult) Unwrap() error { return e.err }

// WithoutResult marks the error of an effect that has happened, but whose result
// is lost.
func WithoutResult(err error) error { return &withoutResult{err} }

// InDoubt is the error of an effect that an execution which was lost may have run:
// nobody knows. A handler that returns it has its task wait for a person.
type InDoubt struct {
	// Name is the effect's; the others are the rest of its full key. KeyKind is key,
	// for an idempotency key, or task, for the id of a task that has none.
	Name, Scope, Key, KeyKind string
	// TaskID (a UUID) and Delivery are those of the lost execution, which reserved
	// the effect at Since.
	TaskID   string
	Delivery int64
	Since    time.Time
}

// Error says what is in doubt, and what to do.
func (e *InDoubt) Error() string {
	return fmt.Sprintf("effect %q of key %q is in doubt: delivery %d of task %s reserved it at %s and was lost; find out whether it happened, then: orchestrator effect resolve",
		e.Name, e.Key, e.Delivery, e.TaskID, e.Since.UTC().Format(time.RFC3339))
}

// ApprovalRequest is what a person is asked, as JSON.
func (e *InDoubt) ApprovalRequest() json.RawMessage {
	type effect struct {
		Scope    string    `json:"scope"`
		Key      string    `json:"key"`
		KeyKind  string    `json:"key_kind,omitempty"`
		Name     string    `json:"name"`
		TaskID   string    `json:"task_id"`
		Delivery int64     `json:"delivery"`
		Since    time.Time `json:"since"`
	}
	b, err := json.Marshal(struct {
		Kind   string `json:"kind"`
		Name   string `json:"name"`
		Prompt string `json:"prompt"`
		Effect effect `json:"effect"`
	}{
		Kind: "effect", Name: "effect:" + e.Name,
		Prompt: fmt.Sprintf("The side effect %q may have happened: the execution that was at it was lost. Approve to run it again; or, if you can find out, resolve it as done or not done.", e.Name),
		Effect: effect{e.Scope, e.Key, e.KeyKind, e.Name, e.TaskID, e.Delivery, e.Since.UTC()},
	})
	if err != nil { // only strings, a number and a time
		panic(err)
	}
	return b
}
