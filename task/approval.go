package task

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"
)

// Grant is an approval that people gave to a task.
type Grant struct {
	// ApprovalID is the request that they approved.
	ApprovalID string
	// Kind is "guard" (a rule had stopped the task), "handler" (its handler had
	// asked) or "effect" (they said what became of a side effect).
	Kind string
	// Name is the rule's, or what the handler asked for.
	Name string
	// ApprovedBy are the people, and Reasons what each said, in the same order.
	ApprovedBy, Reasons []string
	// At is when the last of them approved.
	At time.Time
}

// approvalsKey is that of the grants in a context.
type approvalsKey struct{}

// WithApprovals returns a context in which Approvals returns the grants and
// RequireApproval finds them. Workers and package tasktest do this; a program that
// calls handlers by itself may.
func WithApprovals(ctx context.Context, grants []Grant) context.Context {
	return context.WithValue(ctx, approvalsKey{}, slices.Clip(grants))
}

// Approvals returns what people have approved of the task whose handler has the
// context ctx, oldest first: rules that had stopped it, and what it asked for.
func Approvals(ctx context.Context) []Grant {
	grants, _ := ctx.Value(approvalsKey{}).([]Grant)
	return slices.Clone(grants)
}

// approvalRequest is the JSON of a request.
type approvalRequest struct {
	Kind      string   `json:"kind"`
	Name      string   `json:"name"`
	Prompt    string   `json:"prompt,omitempty"`
	Required  int      `json:"required,omitempty"`
	Approvers []string `json:"approvers,omitempty"`
	TimeoutMS int64    `json:"timeout_ms,omitempty"`
}

// ApprovalOption says whom RequireApproval asks, and how.
type ApprovalOption func(*approvalRequest)

// ApprovalPrompt is what people are told, at most 4 KiB.
func ApprovalPrompt(text string) ApprovalOption {
	return func(r *approvalRequest) { r.Prompt = text }
}

// Approvers are those who may approve: principals, and role:NAME. Default:
// role:approver.
func Approvers(who ...string) ApprovalOption {
	return func(r *approvalRequest) { r.Approvers = who }
}

// ApprovalsNeeded is how many different people must approve, 1 or 2. Default: 1.
func ApprovalsNeeded(people int) ApprovalOption {
	return func(r *approvalRequest) { r.Required = people }
}

// ApprovalTimeout is how long people have; then the task is cancelled. 1 second to
// 366 days, default 24 hours.
func ApprovalTimeout(d time.Duration) ApprovalOption {
	return func(r *approvalRequest) { r.TimeoutMS = max(d.Milliseconds(), 1) }
}

// approvalNeeded ends an execution until people have decided.
type approvalNeeded struct {
	name    string
	request json.RawMessage
}

func (e *approvalNeeded) Error() string { return "approval needed: " + e.name }

// ApprovalRequest is what people are asked.
func (e *approvalNeeded) ApprovalRequest() json.RawMessage { return e.request }

// RequireApproval returns the grant if people have approved name for the task
// whose handler has the context ctx. Otherwise the error says that approval is
// needed: return it, and the execution ends; the task waits as waiting_approval,
// and its handler is called again, from its start, once the people who are asked
// have approved. What it did before runs again then: ask first, or use Once.
// Rejected, or not decided in time, the task is cancelled with
// TASK_APPROVAL_REJECTED. Whoever asked for the task can't approve.
//
// name is 1 to 255 bytes and says what is approved; a grant holds for all
// executions of the task. The task has no failure, and spends no retry.
func RequireApproval(ctx context.Context, name string, opts ...ApprovalOption) (*Grant, error) {
	grants, ok := ctx.Value(approvalsKey{}).([]Grant)
	if !ok {
		return nil, errors.New("task: RequireApproval works in a handler that a worker runs")
	}
	for _, g := range grants {
		if g.Kind == "handler" && g.Name == name {
			return &g, nil
		}
	}
	r := approvalRequest{Kind: "handler", Name: name}
	for _, o := range opts {
		o(&r)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, InvalidInput(err)
	}
	return nil, &approvalNeeded{name, b}
}

// IsApprovalNeeded reports whether err is, or wraps, that of RequireApproval.
func IsApprovalNeeded(err error) bool {
	_, ok := errors.AsType[*approvalNeeded](err)
	return ok
}
