package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// EffectState is the state of a side effect in the ledger.
type EffectState string

// The states. A reservation whose holder does not run any more is in doubt: the
// effect may have happened.
const (
	// EffectReserved: an execution may be at it.
	EffectReserved EffectState = "reserved"
	// EffectDone: it has happened; its result is kept.
	EffectDone EffectState = "done"
	// EffectFree: it certainly has not happened, or is to be run again.
	EffectFree EffectState = "free"
)

// EffectResolution says who or what ended a doubt, and how.
type EffectResolution string

// The resolutions. Only the first two are a person's.
const (
	ResolvedDone     EffectResolution = "done"
	ResolvedNotDone  EffectResolution = "not_done"
	CheckedDone      EffectResolution = "check_done"
	CheckedNotDone   EffectResolution = "check_not_done"
	ResolvedRunAgain EffectResolution = "run_again"
)

const (
	// MaxEffectName is the most bytes of an effect's name.
	MaxEffectName = 128
	// MaxEffectResult is the most bytes of an effect's result, 256 KiB: what the
	// http handler takes of a response unless it is told otherwise.
	MaxEffectResult = 256 << 10
	// maxEffectHistory is how many notes an effect keeps: the latest.
	maxEffectHistory = 20
	// maxEffectDepth bounds the nesting of a result: Postgres has a bound, too.
	maxEffectDepth = 1000
)

// CheckEffectName returns an error if no effect can have the name: it is 1 to
// 128 bytes of UTF-8 without control characters.
func CheckEffectName(name string) error {
	switch {
	case name == "" || len(name) > MaxEffectName:
		return fmt.Errorf("has %d bytes, want 1 to %d", len(name), MaxEffectName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("is not UTF-8 without control characters")
	}
	return nil
}

// CheckEffectResult returns an error if an effect's result can't be kept: it is
// one JSON value in UTF-8 of at most MaxEffectResult bytes, nested at most 1,000
// levels deep, without the character NUL.
func CheckEffectResult(result []byte) error {
	switch {
	case len(result) > MaxEffectResult:
		return fmt.Errorf("has %d bytes, at most %d are kept: store large data elsewhere and return a reference", len(result), MaxEffectResult)
	case !utf8.Valid(result) || !json.Valid(result):
		return errors.New("is not JSON in UTF-8")
	case jsonDepth(result) > maxEffectDepth:
		return fmt.Errorf("is nested deeper than %d levels", maxEffectDepth)
	}
	if err := CheckEscapes(result); err != nil {
		return fmt.Errorf("%w, which can't be stored", err)
	}
	return nil
}

// jsonDepth is how deep valid JSON is nested.
func jsonDepth(doc []byte) (deepest int) {
	depth, inString := 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// Kinds of an effect's key.
const (
	// KeyGiven: an idempotency key.
	KeyGiven = "key"
	// KeyOfTask: the id of a task that has no idempotency key.
	KeyOfTask = "task"
)

// LedgerKey is a key as the ledger holds it: those of the two kinds are never the
// same. An empty kind is KeyGiven.
func LedgerKey(kind, key string) string {
	if kind == KeyOfTask {
		return "t:" + key
	}
	return "k:" + key
}

// ParseLedgerKey is the reverse of LedgerKey.
func ParseLedgerKey(s string) (kind, key string) {
	if key, ok := strings.CutPrefix(s, "t:"); ok {
		return KeyOfTask, key
	}
	return KeyGiven, strings.TrimPrefix(s, "k:")
}

// EffectHolder is the execution that reserves an effect.
type EffectHolder struct {
	TaskID   ID
	Delivery int64
	WorkerID string
}

// EffectNote is one line of an effect's history.
type EffectNote struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
	// By is a person, or empty where the pipeline or a handler decided.
	By       string `json:"by,omitempty"`
	TaskID   string `json:"task_id,omitempty"`
	Delivery int64  `json:"delivery,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Effect is one row of the side-effect ledger. Its methods decide; a row must be
// locked while they do.
type Effect struct {
	// State is empty before the first reservation.
	State EffectState
	// Token is the client's name for the last reservation, so that a repeat whose
	// reply was lost is recognised.
	Token  ID
	Holder EffectHolder
	// Users are the tasks that were given the effect or its result.
	Users []ID
	// Runs counts reservations.
	Runs               int
	ReservedAt, DoneAt time.Time
	Result             []byte
	// ResultNote says why a done effect has no result.
	ResultNote string
	// The last end of a doubt, and by whom.
	Resolution             EffectResolution
	ResolvedBy, ResolvedOn string
	ResolvedAt             time.Time
	// Conflicts counts reports that contradict what the ledger holds.
	Conflicts int
	History   []EffectNote
}

// EffectVerdict says what a reservation comes to.
type EffectVerdict int

const (
	// EffectGranted: the caller holds the effect, and is to run it.
	EffectGranted EffectVerdict = iota + 1
	// EffectKnown: it is done; the result is there.
	EffectKnown
	// EffectInDoubt: a lost execution may have run it.
	EffectInDoubt
	// EffectBusy: another execution, or another call of this one, is at it.
	EffectBusy
)

// String returns the verdict's name as metrics show it.
func (v EffectVerdict) String() string {
	return [...]string{"none", "reserved", "done", "in_doubt", "busy"}[v]
}

// EffectJudgement is what an execution that found an effect in doubt makes of it.
type EffectJudgement struct {
	// Token is that of the reservation that was judged; any other is not meant.
	Token      ID
	Resolution EffectResolution // CheckedDone, CheckedNotDone or ResolvedRunAgain
	// Result is that of CheckedDone.
	Result []byte
	Note   string
}

// Reserve decides about a reservation by an execution that is current and runs.
// holderLive tells whether the present holder is, too; it does not matter where
// that is the caller. j is nil unless the caller has found it in doubt before.
func (e *Effect) Reserve(by EffectHolder, token ID, holderLive bool, j *EffectJudgement, now time.Time) EffectVerdict {
	if !slices.Contains(e.Users, by.TaskID) {
		e.Users = append(e.Users, by.TaskID)
	}
	switch e.State {
	case EffectDone:
		return EffectKnown
	case EffectReserved:
	default:
		e.grant(by, token, now)
		return EffectGranted
	}
	mine := e.Holder.TaskID == by.TaskID && e.Holder.Delivery == by.Delivery
	switch {
	case mine && e.Token == token: // its reply was lost, or came too late: the effect begins after this one
		e.ReservedAt = now
		return EffectGranted
	case mine || holderLive:
		return EffectBusy
	case j == nil || j.Token != e.Token:
		return EffectInDoubt
	}
	e.resolve(j.Resolution, "", "", now)
	e.note(EffectNote{At: now, What: string(j.Resolution), TaskID: by.TaskID.String(), Delivery: by.Delivery})
	if j.Resolution == CheckedDone {
		e.done(j.Result, j.Note, now)
		return EffectKnown
	}
	e.grant(by, token, now)
	return EffectGranted
}

func (e *Effect) grant(by EffectHolder, token ID, now time.Time) {
	e.State, e.Token, e.Holder, e.ReservedAt = EffectReserved, token, by, now
	e.Runs++
}

func (e *Effect) done(result []byte, note string, now time.Time) {
	e.State, e.DoneAt, e.Result, e.ResultNote = EffectDone, now, result, note
}

func (e *Effect) resolve(r EffectResolution, by, reason string, now time.Time) {
	e.Resolution, e.ResolvedBy, e.ResolvedOn, e.ResolvedAt = r, by, reason, now
}

// note adds to the history.
func (e *Effect) note(n EffectNote) {
	e.History = append(e.History, n)
	if extra := len(e.History) - maxEffectHistory; extra > 0 {
		e.History = e.History[extra:]
	}
}

// Complete records that the effect of a reservation has happened, even if the
// execution that held it is over. Rejected: the reservation was replaced by
// another, so that the effect may happen twice; that is noted. note says why
// there is no result.
func (e *Effect) Complete(by EffectHolder, token ID, result []byte, note string, now time.Time) Verdict {
	conflict := func(what string) {
		e.Conflicts++
		e.note(EffectNote{At: now, What: what, TaskID: by.TaskID.String(), Delivery: by.Delivery})
	}
	switch {
	case e.Token != token:
		conflict("conflict: a run whose reservation was replaced reports that the effect has happened")
		return Rejected
	case e.State == EffectDone:
		return Repeated
	case e.State == EffectFree && e.Resolution == ResolvedNotDone:
		// What happened counts, not what somebody thought; nobody has run it since.
		conflict("conflict: resolved as not done, but its run reports that the effect has happened")
	}
	e.done(result, note, now)
	return Applied
}

// Release records that the effect of a reservation has certainly not happened.
// Rejected: it is done, or the reservation was replaced; nothing changes.
func (e *Effect) Release(token ID) Verdict {
	switch {
	case e.Token != token || e.State == EffectDone:
		return Rejected
	case e.State == EffectFree:
		return Repeated
	}
	e.State = EffectFree
	return Applied
}

// Resolve records a person's answer to a doubt: ResolvedDone with a result, or
// ResolvedNotDone. Repeated: it was answered so before. The error says why the
// effect is not in doubt.
func (e *Effect) Resolve(r EffectResolution, by, reason string, result []byte, holderLive bool, now time.Time) (Verdict, error) {
	settled := map[EffectState]EffectResolution{EffectDone: ResolvedDone, EffectFree: ResolvedNotDone}[e.State]
	switch {
	case e.State != EffectReserved && settled == r:
		return Repeated, nil
	case e.State == EffectDone:
		return Rejected, errors.New("is done already, so it can't be resolved as not done")
	case e.State == EffectFree:
		return Rejected, errors.New("is free: it has not happened and will be run by its task's next execution; there is no doubt to resolve")
	case holderLive:
		return Rejected, fmt.Errorf("is not in doubt: worker %s is running it (delivery %d of task %s)", e.Holder.WorkerID, e.Holder.Delivery, e.Holder.TaskID)
	}
	e.resolve(r, by, reason, now)
	e.note(EffectNote{At: now, What: "resolved: " + string(r), By: by, Reason: reason})
	if r == ResolvedDone {
		e.done(result, "", now)
	} else {
		e.State = EffectFree
	}
	return Applied, nil
}
