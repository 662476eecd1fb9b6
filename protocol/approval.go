package protocol

import (
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Kinds of approvals.
const (
	// ApprovalGuard: a rule stopped the task.
	ApprovalGuard = "guard"
	// ApprovalHandler: the task's handler asks.
	ApprovalHandler = "handler"
	// ApprovalEffect: a person is to say whether a side effect happened.
	ApprovalEffect = "effect"
)

// Actors of approvals besides people.
const (
	// ActorGuard stops tasks.
	ActorGuard = "guard"
	// ActorEffects releases tasks whose effects are not in doubt any more.
	ActorEffects = "effects"
	// ActorApprovalTimeout rejects what nobody decided in time.
	ActorApprovalTimeout = "approval-timeout"
)

// ApprovalID is the id of the request that one execution of a task made: an
// outcome that is applied twice asks once.
func ApprovalID(id ID, delivery int64) ID {
	return hashID(approvalIDByte, "approval", Pair{id, delivery}.String(), "")
}

// approvalIDByte is the first byte of ApprovalID's.
const approvalIDByte = 0xfb

// Bounds of what an approval asks for.
const (
	MaxApprovers           = 100
	MaxApprovalTimeout     = 366 * 24 * time.Hour
	MinApprovalTimeout     = time.Second
	DefaultApprovalTimeout = 24 * time.Hour
	// DefaultApprover stands where no approvers are named.
	DefaultApprover = RolePrefix + "approver"
	// RolePrefix comes before a role in a list of approvers.
	RolePrefix = "role:"
)

// ApprovalRequest is what a handler asks people for, as the JSON in field
// approval of the outcome approval_needed.
type ApprovalRequest struct {
	// Kind is handler (the default) or effect.
	Kind string `json:"kind,omitempty"`
	// Name says what is asked: 1 to 255 bytes without control characters.
	Name   string `json:"name"`
	Prompt string `json:"prompt,omitempty"`
	// Required is how many different people must approve: 1 (the default) or 2; of
	// kind effect always 1.
	Required int `json:"required,omitempty"`
	// Approvers are principals, and role:NAME; of kind effect always the roles
	// approver and operator.
	Approvers []string `json:"approvers,omitempty"`
	// TimeoutMS is how long they have; 0: 24 hours, of kind effect 366 days.
	TimeoutMS int64      `json:"timeout_ms,omitempty"`
	Effect    *EffectRef `json:"effect,omitempty"`
}

// EffectRef names a side effect.
type EffectRef struct {
	Scope string `json:"scope"`
	Key   string `json:"key"`
	// KeyKind is KeyGiven or KeyOfTask. In a request it may be left out: it is that
	// of the task that asks.
	KeyKind string `json:"key_kind,omitempty"`
	Name    string `json:"name"`
}

// Timeout is how long people have to decide.
func (r *ApprovalRequest) Timeout() time.Duration {
	return time.Duration(r.TimeoutMS) * time.Millisecond
}

// ParseApproval reads and checks what a handler asks for, and fills in what it
// leaves out. The error is an *Error with code TASK_INPUT_INVALID and the field.
func ParseApproval(b []byte) (*ApprovalRequest, error) {
	r := &ApprovalRequest{}
	if len(b) > 64<<10 {
		return nil, Errorf(CodeInputInvalid, FieldApproval, "has %d bytes, at most %d are allowed", len(b), 64<<10)
	}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, Errorf(CodeInputInvalid, FieldApproval, "is not the JSON of a request: %v", err)
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	return r, nil
}

// Check fills in what is left out. The error is an *Error with code
// TASK_INPUT_INVALID and the field.
func (r *ApprovalRequest) Check() error {
	if r.Kind == "" {
		r.Kind = ApprovalHandler
	}
	switch {
	case r.Kind != ApprovalHandler && r.Kind != ApprovalEffect:
		return Errorf(CodeInputInvalid, "approval.kind", "is %q, want %s or %s", Clip(r.Kind, 32), ApprovalHandler, ApprovalEffect)
	case len(r.Name) < 1 || len(r.Name) > maxName || Text(r.Name) != r.Name || strings.ContainsFunc(r.Name, unicode.IsControl):
		return Errorf(CodeInputInvalid, "approval.name", "must be 1 to %d bytes without control characters", maxName)
	case Text(r.Prompt) != r.Prompt:
		return Errorf(CodeInputInvalid, "approval.prompt", "must be at most %d bytes of UTF-8 without NUL", maxText)
	case (r.Kind == ApprovalEffect) != (r.Effect != nil):
		return Errorf(CodeInputInvalid, "approval.effect", "goes with kind %s, and only with it", ApprovalEffect)
	case r.TimeoutMS < 0 || r.TimeoutMS > MaxApprovalTimeout.Milliseconds():
		return Errorf(CodeInputInvalid, "approval.timeout_ms", "is %d, want 0 to %d", r.TimeoutMS, MaxApprovalTimeout.Milliseconds())
	}
	if e := r.Effect; e != nil {
		for _, s := range []string{e.Scope, e.Key, e.Name} {
			if s == "" || len(s) > maxName || Text(s) != s {
				return Errorf(CodeInputInvalid, "approval.effect", "needs a scope, a key and a name of 1 to %d bytes each", maxName)
			}
		}
		if e.KeyKind != "" && e.KeyKind != KeyGiven && e.KeyKind != KeyOfTask {
			return Errorf(CodeInputInvalid, "approval.effect.key_kind", "is %q, want %s or %s", Clip(e.KeyKind, 32), KeyGiven, KeyOfTask)
		}
		// Whoever may resolve effects may decide, and alone: the two ways to end a
		// doubt ask for the same.
		r.Required, r.Approvers = 1, []string{DefaultApprover, RolePrefix + "operator"}
		if r.TimeoutMS == 0 { // the effect may have happened: the task can't just be cancelled
			r.TimeoutMS = MaxApprovalTimeout.Milliseconds()
		}
	}
	required, approvers, timeout, err := CheckApprovers(r.Required, r.Approvers, r.Timeout())
	r.Required, r.Approvers, r.TimeoutMS = required, approvers, timeout.Milliseconds()
	return err
}

// CheckApprovers fills in and checks who must approve, how many of them, and
// in what time. Names come back in lower case, sorted. The error is an *Error
// with code TASK_INPUT_INVALID and the field.
func CheckApprovers(required int, approvers []string, timeout time.Duration) (int, []string, time.Duration, error) {
	if required == 0 {
		required = 1
	}
	if timeout == 0 {
		timeout = DefaultApprovalTimeout
	}
	if len(approvers) == 0 {
		approvers = []string{DefaultApprover}
	}
	if required != 1 && required != 2 {
		return 0, nil, 0, Errorf(CodeInputInvalid, "required", "is %d, want 1 or 2", required)
	}
	if timeout < MinApprovalTimeout || timeout > MaxApprovalTimeout || timeout%time.Millisecond != 0 {
		return 0, nil, 0, Errorf(CodeInputInvalid, "timeout_ms", "is %s, want whole milliseconds from %s to %s", timeout, MinApprovalTimeout, MaxApprovalTimeout)
	}
	if len(approvers) > MaxApprovers {
		return 0, nil, 0, Errorf(CodeInputInvalid, "approvers", "has %d entries, at most %d are allowed", len(approvers), MaxApprovers)
	}
	out := make([]string, len(approvers))
	people, roles := 0, 0
	for i, a := range approvers {
		out[i] = Person(a)
		name, role := strings.CutPrefix(out[i], RolePrefix)
		if !principal(name) {
			return 0, nil, 0, Errorf(CodeInputInvalid, "approvers", "has %q, want a principal (A-Z a-z 0-9 . _ -), or %sNAME", Clip(a, 64), RolePrefix)
		}
		if role {
			roles++
		} else {
			people++
		}
	}
	slices.Sort(out)
	if out = slices.Compact(out); roles == 0 && len(out) < required {
		return 0, nil, 0, Errorf(CodeInputInvalid, "approvers", "names %d person, but %d must approve", len(out), required)
	}
	return required, out, timeout, nil
}

func principal(s string) bool {
	return s != "" && s != Anonymous && len(s) <= maxName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}

// Person is a principal as approvals compare it: spellings that differ in case
// are one person.
func Person(principal string) string { return strings.ToLower(strings.TrimSpace(principal)) }

// ApprovalRequestedData is the data of approval.requested.
type ApprovalRequestedData struct {
	ApprovalID string `json:"approval_id"`
	Kind       string `json:"kind"`
	// Rule and Revision are those of kind guard, Name is what a handler asks.
	Rule      string   `json:"rule,omitempty"`
	Revision  int64    `json:"revision,omitempty"`
	Name      string   `json:"name,omitempty"`
	Digest    string   `json:"digest,omitempty"`
	Required  int      `json:"required"`
	Approvers []string `json:"approvers"`
	TimeoutMS int64    `json:"timeout_ms"`
	// RuleError says why the rule could not be evaluated.
	RuleError string `json:"rule_error,omitempty"`
	// Effect is what kind effect is about.
	Effect *EffectRef `json:"effect,omitempty"`
	// Renews is the request that this one replaces.
	Renews string `json:"renews,omitempty"`
}

// data is that of the event by which a handler's execution asks.
func (r *ApprovalRequest) data(id ID, delivery int64) ApprovalRequestedData {
	return ApprovalRequestedData{
		ApprovalID: ApprovalID(id, delivery).String(), Kind: r.Kind, Name: r.Name, Required: r.Required, Approvers: r.Approvers,
		TimeoutMS: r.TimeoutMS, Effect: r.Effect,
	}
}

// ApprovalDecidedData is the data of approval.approved and approval.rejected.
type ApprovalDecidedData struct {
	ApprovalID string `json:"approval_id"`
	Kind       string `json:"kind"`
	Rule       string `json:"rule,omitempty"`
	Revision   int64  `json:"revision,omitempty"`
	Name       string `json:"name,omitempty"`
	Digest     string `json:"digest"`
	// Principal is who decided; empty: nobody did in time.
	Principal string `json:"principal,omitempty"`
	// Approvals is how many of the Required people have approved.
	Approvals int `json:"approvals,omitempty"`
	Required  int `json:"required"`
}

// Grant tells a handler of an approval that was given: an element of field
// approvals of the task's entry.
type Grant struct {
	ApprovalID string `json:"approval_id"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	// Rule and Revision are those of kind guard.
	Rule       string    `json:"rule,omitempty"`
	Revision   int64     `json:"revision,omitempty"`
	ApprovedBy []string  `json:"approved_by"`
	Reasons    []string  `json:"reasons,omitempty"`
	At         time.Time `json:"at"`
}

// RequestApproval stops a task until people decide: a pending one waits from now
// on; beside a wait that there is already it is one request more. ok is false in
// other states.
func (t *Task) RequestApproval(env Env, actor, reason string, d ApprovalRequestedData) (e *Event, ok bool) {
	switch t.State {
	case StatePending:
		t.DueAt = time.Time{}
		e = t.move(StateWaitingApproval, EventApprovalRequested, env, actor)
	case StateWaitingApproval:
		e = t.event(t.State, EventApprovalRequested, env, actor)
	default:
		return nil, false
	}
	e.Reason, e.Data = Text(reason), data(d)
	return e, true
}

// Approve records one person's approval; the last one that is needed releases
// the task: it is due at once, or waits for its time or its dependencies. ok is
// false if the task does not wait for approval.
func (t *Task) Approve(env Env, actor, reason string, release bool, d ApprovalDecidedData) (e *Event, ok bool) {
	switch {
	case t.State != StateWaitingApproval:
		return nil, false
	case !release:
		e = t.event(t.State, EventApprovalApproved, env, actor)
	case t.OpenDependencies > 0:
		e = t.move(StatePending, EventApprovalApproved, env, actor)
	case t.StartAt.After(env.Now):
		t.DueAt = t.StartAt
		e = t.move(StatePending, EventApprovalApproved, env, actor)
	default:
		t.DueAt = env.Now
		e = t.move(StateQueued, EventApprovalApproved, env, actor)
	}
	e.Reason, e.Data = Text(reason), data(d)
	return e, true
}

// RejectApproval cancels a task that waits for approval. ok is false if it does
// not.
func (t *Task) RejectApproval(env Env, actor, reason string, d ApprovalDecidedData) (e *Event, ok bool) {
	if t.State != StateWaitingApproval {
		return nil, false
	}
	t.Delivery++
	t.DueAt = time.Time{}
	t.Code, t.Reason = CodeApprovalRejected, Text(reason)
	e = t.move(StateCancelled, EventApprovalRejected, env, actor)
	e.Code, e.Reason, e.Data = t.Code, t.Reason, data(d)
	return e, true
}
