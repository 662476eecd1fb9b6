package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Ask is a request to people to decide about a task: a row of approvals to be.
type Ask struct {
	// ID is a new one if it is zero.
	ID   protocol.ID
	Task protocol.ID
	// Kind is guard, handler or effect; Name the rule's or what a handler asks.
	Kind, Name string
	// Revision is the rule's; 0 where there is none.
	Revision  int64
	Digest    string
	Required  int
	Approvers []string
	Timeout   time.Duration
	Prompt    string
	// RuleError says why the rule could not be evaluated.
	RuleError string
	Effect    *protocol.EffectRef
	// Renews is the request that this one replaces.
	Renews protocol.ID
}

// Event has the task wait for the answer and returns the event that says so. ok
// is false if the task can't wait in its state.
func (a *Ask) Event(t *protocol.Task, env protocol.Env, actor string) (*protocol.Event, bool) {
	if a.ID.IsZero() {
		a.ID = protocol.ID(uuid.Must(uuid.NewV7()))
	}
	reason := a.Prompt
	switch {
	case a.Kind == protocol.ApprovalGuard && a.RuleError != "":
		reason = fmt.Sprintf("rule %s could not be evaluated: %s", a.Name, a.RuleError)
	case a.Kind == protocol.ApprovalGuard:
		reason = "stopped by rule " + a.Name
	}
	return t.RequestApproval(env, actor, reason, a.Data())
}

// Data is that of the event approval.requested.
func (a *Ask) Data() protocol.ApprovalRequestedData {
	d := protocol.ApprovalRequestedData{
		ApprovalID: a.ID.String(), Kind: a.Kind, Name: a.Name, Digest: a.Digest, Required: a.Required, Approvers: a.Approvers,
		TimeoutMS: a.Timeout.Milliseconds(), RuleError: a.RuleError, Effect: a.Effect,
	}
	if a.Kind == protocol.ApprovalGuard {
		d.Rule, d.Revision, d.Name = a.Name, a.Revision, ""
	}
	if !a.Renews.IsZero() {
		d.Renews = a.Renews.String()
	}
	return d
}

// AskAll stores requests about tasks that this transaction stored or holds. One
// that is stored already, or of which the same is pending about the task, is left
// as it is.
func AskAll(ctx context.Context, q *dbsqlc.Queries, asks []*Ask) error {
	if len(asks) == 0 {
		return nil
	}
	var p dbsqlc.InsertApprovalsParams
	for _, a := range asks {
		effect := protocol.EffectRef{}
		if a.Effect != nil {
			effect = *a.Effect
		}
		p.Ids = append(p.Ids, pgid.ID(a.ID))
		p.TaskIds = append(p.TaskIds, pgid.ID(a.Task))
		p.Kinds = append(p.Kinds, a.Kind)
		p.Names = append(p.Names, a.Name)
		p.RuleRevisions = append(p.RuleRevisions, a.Revision)
		p.Digests = append(p.Digests, a.Digest)
		p.Requireds = append(p.Requireds, int32(a.Required))
		p.Approvers = append(p.Approvers, strings.Join(a.Approvers, "\n"))
		p.Prompts = append(p.Prompts, a.Prompt)
		p.RuleErrors = append(p.RuleErrors, a.RuleError)
		p.EffectScopes = append(p.EffectScopes, effect.Scope)
		p.EffectKeys = append(p.EffectKeys, protocol.LedgerKey(effect.KeyKind, effect.Key))
		p.EffectNames = append(p.EffectNames, effect.Name)
		p.TimeoutMss = append(p.TimeoutMss, a.Timeout.Milliseconds())
	}
	if err := q.InsertApprovals(ctx, p); err != nil {
		return fmt.Errorf("store %d approval requests: %w", len(asks), err)
	}
	return nil
}
