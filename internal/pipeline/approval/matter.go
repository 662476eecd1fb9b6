package approval

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Status of a request.
const (
	statusPending   = "pending"
	statusApproved  = "approved"
	statusRejected  = "rejected"
	statusExpired   = "expired"
	statusWithdrawn = "withdrawn"
)

// votes are the approvals of one request, oldest first.
type votes []*dbsqlc.VotesOfRow

func (v votes) has(who Person) bool {
	return slices.ContainsFunc(v, func(r *dbsqlc.VotesOfRow) bool { return who.is(r.Principal) })
}

// matter is a task with all requests about it, locked, and what is decided.
type matter struct {
	stage    *Stage
	q        *dbsqlc.Queries
	task     *store.Locked // nil: it is gone
	env      protocol.Env
	requests []*dbsqlc.Approval
	votes    map[pgid.ID]votes
	subject  *guard.Task
	rules    *guard.Set

	events []*protocol.Event
	asks   []*store.Ask
	grants []protocol.Grant
}

// open locks a task, then the requests about it, then the rules as they are.
func (s *Stage) open(ctx context.Context, q *dbsqlc.Queries, id protocol.ID) (*matter, error) {
	tasks, now, err := s.o.Store.Lock(ctx, q, []protocol.ID{id})
	if err != nil {
		return nil, err
	}
	return s.openLocked(ctx, q, id, tasks[id], now)
}

func (s *Stage) openLocked(ctx context.Context, q *dbsqlc.Queries, id protocol.ID, task *store.Locked, now time.Time) (*matter, error) {
	m := &matter{stage: s, q: q, task: task, env: protocol.Env{Now: now}, votes: map[pgid.ID]votes{}}
	var err error
	if m.requests, err = q.LockApprovals(ctx, []pgid.ID{pgid.ID(id)}); err != nil {
		return nil, fmt.Errorf("lock the approval requests of task %s: %w", id, err)
	}
	ids := make([]pgid.ID, len(m.requests))
	for i, a := range m.requests {
		ids[i] = a.ID
	}
	rows, err := q.VotesOf(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read the approvals of task %s: %w", id, err)
	}
	for _, v := range rows {
		m.votes[v.ApprovalID] = append(m.votes[v.ApprovalID], v)
	}
	if m.task == nil {
		return m, nil
	}
	subjects, err := guard.Subjects(ctx, q, []protocol.ID{id})
	if err != nil {
		return nil, err
	}
	m.subject = subjects[id]
	if _, err := q.HoldGuard(ctx); err != nil {
		return nil, fmt.Errorf("hold the guard's rules: %w", err)
	}
	m.rules, err = s.o.Rules.Current(ctx, q)
	return m, err
}

func (m *matter) find(id protocol.ID) *dbsqlc.Approval {
	for _, a := range m.requests {
		if a.ID == pgid.ID(id) {
			return a
		}
	}
	return nil
}

// openFor reports why a request can't be decided.
func (m *matter) openFor(a *dbsqlc.Approval) error {
	switch {
	case a.Status == statusRejected:
		return conflict("the request was rejected by %s: %s", store.Deref(a.DecidedBy), store.Deref(a.Decision))
	case a.Status != statusPending:
		return conflict("the request is %s already%s", a.Status, because(a))
	case m.task == nil:
		return conflict("the task of the request is gone")
	case m.task.State != protocol.StateWaitingApproval:
		return conflict("the task is %s: it does not wait for approval", m.task.State)
	case !m.env.Now.Before(a.ExpiresAt):
		return conflict("the time to decide was over at %s", a.ExpiresAt.UTC().Format(time.RFC3339))
	}
	return nil
}

func because(a *dbsqlc.Approval) string {
	if a.Decision == nil {
		return ""
	}
	return ": " + *a.Decision
}

// renew replaces a request whose rule or task is not what it was when people were
// asked, or that does not shut out all who had a hand in the task, and returns the refusal that says so; nil: it is as it was. A rule that
// does not stop the task any more changes nothing: the request is decided by it
// as it was.
func (m *matter) renew(ctx context.Context, a *dbsqlc.Approval) (refusal, err error) {
	ask := &store.Ask{
		Task: m.task.ID, Kind: a.Kind, Name: a.Name, Revision: store.Deref(a.RuleRevision), Required: int(a.Required), Approvers: a.Approvers,
		Timeout: a.ExpiresAt.Sub(a.RequestedAt).Round(time.Millisecond), Prompt: store.Deref(a.Prompt), RuleError: store.Deref(a.RuleError), Renews: protocol.ID(a.ID),
	}
	if a.EffectKey != nil {
		ask.Effect = &protocol.EffectRef{Scope: store.Deref(a.EffectScope), Name: store.Deref(a.EffectName)}
		ask.Effect.KeyKind, ask.Effect.Key = protocol.ParseLedgerKey(*a.EffectKey)
	}
	why := "the task was changed since people were asked"
	if a.Kind == protocol.ApprovalGuard {
		for _, f := range m.rules.Judge(m.subject) {
			if f.Rule.Name == a.Name && f.Rule.Revision != ask.Revision {
				why = fmt.Sprintf("rule %s was changed since people were asked (revision %d, now %d)", a.Name, ask.Revision, f.Rule.Revision)
				ask = f.Ask(m.task.ID)
				ask.Renews = protocol.ID(a.ID)
			}
		}
	}
	if ask.Digest = m.subject.Digest(ask.Kind, ask.Name, ask.Revision); ask.Digest == a.Digest {
		more, err := m.moreHands(ctx, a)
		if err != nil || more == "" {
			return nil, err
		}
		why = more + " had a hand in the task since people were asked"
	}
	err = m.q.DecideApprovals(ctx, dbsqlc.DecideApprovalsParams{Status: statusWithdrawn, Decision: why, Ids: []pgid.ID{a.ID}})
	if err != nil {
		return nil, fmt.Errorf("withdraw approval request %s: %w", protocol.ID(a.ID), err)
	}
	a.Status = statusWithdrawn
	m.ask(ask)
	return conflict("%s: nothing was counted; the request was renewed as %s: look at it and decide again", why, ask.ID), nil
}

// refuse records that a decision came when there was nothing to decide.
func (m *matter) refuse(why error, who Person, what string) verdict {
	if m.task != nil {
		m.events = append(m.events, m.task.Refuse(m.env, protocol.ActorUser(who.Principal), what)...)
	}
	return verdict{refusal: why, name: "refused"}
}

// moreHands names somebody who had a hand in the task after people were asked,
// and whom the request does not shut out; "": nobody. What they did may have been
// undone since: the digest does not tell.
func (m *matter) moreHands(ctx context.Context, a *dbsqlc.Approval) (string, error) {
	hands, err := m.q.Hands(ctx, pgid.ID(m.task.ID))
	if err != nil {
		return "", fmt.Errorf("read who had a hand in task %s: %w", m.task.ID, err)
	}
	for _, h := range hands {
		if !slices.Contains(a.Requesters, h) {
			return h, nil
		}
	}
	return "", nil
}

// ask has people asked once more.
func (m *matter) ask(a *store.Ask) {
	if e, ok := a.Event(&m.task.Task, m.env, protocol.ActorGuard); ok {
		m.events, m.asks = append(m.events, e), append(m.asks, a)
	}
}

// vote counts a person's approval; done: it was the last one that the request
// needs.
func (m *matter) vote(ctx context.Context, a *dbsqlc.Approval, who Person, reason string) (done bool, err error) {
	name := protocol.Person(who.Principal)
	if err := m.q.InsertVote(ctx, dbsqlc.InsertVoteParams{ID: a.ID, Principal: name, Reason: reason}); err != nil {
		return false, fmt.Errorf("count the approval of request %s: %w", protocol.ID(a.ID), err)
	}
	m.votes[a.ID] = append(m.votes[a.ID], &dbsqlc.VotesOfRow{ApprovalID: a.ID, Principal: name, Reason: reason, At: m.env.Now})
	if len(m.votes[a.ID]) < int(a.Required) {
		return false, nil
	}
	return true, m.grant(ctx, a)
}

// grant ends a request as approved, and has the task's handler told.
func (m *matter) grant(ctx context.Context, a *dbsqlc.Approval) error {
	err := m.q.DecideApprovals(ctx, dbsqlc.DecideApprovalsParams{Status: statusApproved, Ids: []pgid.ID{a.ID}})
	if err != nil {
		return fmt.Errorf("approve request %s: %w", protocol.ID(a.ID), err)
	}
	a.Status = statusApproved
	g := protocol.Grant{ApprovalID: protocol.ID(a.ID).String(), Kind: a.Kind, Name: a.Name, At: m.env.Now.UTC()}
	if a.Kind == protocol.ApprovalGuard {
		g.Rule, g.Revision = a.Name, store.Deref(a.RuleRevision)
	}
	for _, v := range m.votes[a.ID] {
		g.ApprovedBy, g.Reasons = append(g.ApprovedBy, v.Principal), append(g.Reasons, v.Reason)
	}
	m.grants = append(m.grants, g)
	return nil
}

// proceed records an approval, and releases the task if nothing else holds it:
// no other request, and no rule that came meanwhile.
func (m *matter) proceed(_ context.Context, a *dbsqlc.Approval, who Person, reason string, done bool) (released bool, err error) {
	return m.advance(a, protocol.ActorUser(who.Principal), who.Principal, reason, done)
}

func (m *matter) advance(a *dbsqlc.Approval, actor, principal, reason string, done bool) (released bool, err error) {
	released = done
	held := map[string]bool{} // by digest: approved or asked
	for _, r := range m.requests {
		if r.Status == statusPending {
			released = false
		}
		if r.Status == statusPending || r.Status == statusApproved {
			held[r.Digest] = true
		}
	}
	var unmet []guard.Finding
	if released {
		for _, f := range m.rules.Judge(m.subject) {
			if !held[f.Digest] {
				unmet = append(unmet, f)
			}
		}
		released = len(unmet) == 0
	}
	e, ok := m.task.Approve(m.env, actor, reason, released, m.data(a, principal))
	if !ok {
		return false, fmt.Errorf("task %s can't be approved in state %s", m.task.ID, m.task.State)
	}
	m.events = append(m.events, e)
	for _, f := range unmet {
		m.ask(f.Ask(m.task.ID))
	}
	return released, nil
}

// end rejects the task.
func (m *matter) end(ctx context.Context, a *dbsqlc.Approval, status, principal, actor, reason string) error {
	err := m.q.DecideApprovals(ctx, dbsqlc.DecideApprovalsParams{Status: status, DecidedBy: principal, Decision: reason, Ids: []pgid.ID{a.ID}})
	if err != nil {
		return fmt.Errorf("reject request %s: %w", protocol.ID(a.ID), err)
	}
	a.Status = status
	e, ok := m.task.RejectApproval(m.env, actor, cmp.Or(reason, status), m.data(a, principal))
	if !ok {
		return fmt.Errorf("task %s can't be rejected in state %s", m.task.ID, m.task.State)
	}
	m.events = append(m.events, e)
	return nil
}

func (m *matter) data(a *dbsqlc.Approval, principal string) protocol.ApprovalDecidedData {
	d := protocol.ApprovalDecidedData{
		ApprovalID: protocol.ID(a.ID).String(), Kind: a.Kind, Name: a.Name, Digest: a.Digest, Principal: principal,
		Approvals: len(m.votes[a.ID]), Required: int(a.Required),
	}
	if a.Kind == protocol.ApprovalGuard {
		d.Rule, d.Revision, d.Name = a.Name, store.Deref(a.RuleRevision), ""
	}
	return d
}

// save stores what was decided.
func (m *matter) save(ctx context.Context) error {
	if len(m.events) == 0 {
		return nil
	}
	if err := m.stage.o.Store.Save(ctx, m.q, []*store.Locked{m.task}, m.events); err != nil {
		return err
	}
	if len(m.grants) > 0 {
		b, err := json.Marshal(m.grants)
		if err != nil {
			return fmt.Errorf("what task %s is told of its approvals: %w", m.task.ID, err)
		}
		if err := m.q.AddGrants(ctx, string(b), pgid.ID(m.task.ID)); err != nil {
			return fmt.Errorf("tell task %s of its approvals: %w", m.task.ID, err)
		}
	}
	return store.AskAll(ctx, m.q, m.asks)
}
