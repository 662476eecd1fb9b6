package enqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// ErrRulesChanged: the tasks were judged by rules that are not in force any
// more. Nothing was stored.
var ErrRulesChanged = errors.New("the guard's rules are being changed; try again")

// judgeTries bounds how often a batch is judged anew.
const judgeTries = 10

// judged calls store with the revision of the rules that it judged the items by,
// again if they changed meanwhile: a task is stored only if it was judged by the
// rules in force. store returns ErrRulesChanged where it stored nothing because
// of that; errEnded has it called again, too. No transaction is open while rules are evaluated.
func (s *Stage) judged(ctx context.Context, items []*item, store func(revision int64) error) error {
	rules := s.o.Rules.Known()
	var err error
	for range judgeTries {
		for _, it := range items {
			it.judge(rules)
		}
		err = store(rules.Revision)
		if errors.Is(err, errEnded) {
			err = ErrGone
			continue
		}
		if !errors.Is(err, ErrRulesChanged) {
			return err
		}
		current, e := s.o.Rules.Current(ctx, s.o.Store.Queries)
		if e != nil {
			return e
		}
		rules = current
	}
	return err
}

// judge finds the rules that stop the task.
func (it *item) judge(rules *guard.Set) {
	it.findings = nil
	if !rules.Empty() {
		it.findings = rules.Judge(it.subject(time.Time{}))
	}
	it.guarded = len(it.findings) > 0
}

// refuseAnonymous refuses a task that a rule stops if its caller has no name but
// might: whoever approves it must not be who asked for it. A rule that is saved at
// this very moment is not missed: nobody can approve the task then.
func (s *Stage) refuseAnonymous(ctx context.Context, it *item) error {
	if s.o.Named == nil || !s.o.Named() || it.requestedBy != protocol.Anonymous && it.requestedBy != "" {
		return nil
	}
	rules, err := s.o.Rules.Current(ctx, s.o.Store.Queries)
	if err != nil || rules.Empty() {
		return err
	}
	found := rules.Judge(it.subject(time.Time{}))
	if len(found) == 0 {
		return nil
	}
	return bad("authorization", "is missing, and rule %s stops this task until somebody approves it who did not ask for it: send a token that says who asks", found[0].Rule.Name)
}

// subject is what rules see; startAt is when the task's schedule lets it start.
func (it *item) subject(startAt time.Time) *guard.Task {
	return &guard.Task{
		Type: it.typ, Queue: it.queue, Tenant: it.tenant, TaskID: it.taskID(), Payload: it.payload, ScheduleType: it.schedule,
		ScheduledAt: it.scheduledAt, DelayMS: it.delayMS, StartAt: startAt, MaxRetries: int(it.maxRetries), TimeoutMS: int64(it.timeoutMS),
		IdempotencyKey: it.key, RequestedBy: it.requestedBy,
	}
}

// changedRules tells whether no task was stored because the rules changed.
func changedRules(ctx context.Context, q *dbsqlc.Queries, judgedBy int64) error {
	revision, err := q.GuardRevision(ctx)
	if err != nil {
		return fmt.Errorf("read the revision of the guard's rules: %w", err)
	}
	if revision != judgedBy {
		return ErrRulesChanged
	}
	return nil
}

// ask has the guarded tasks that were created wait, each for as many decisions
// as rules stop it.
func (s *Stage) ask(ctx context.Context, q *dbsqlc.Queries, items []*item, created map[protocol.ID]*dbsqlc.InsertTasksRow) error {
	var asks []*store.Ask
	var ids []protocol.ID
	for _, it := range items {
		row := created[it.id]
		if !it.guarded || row == nil {
			continue
		}
		ids = append(ids, it.id)
		for _, f := range it.findings {
			f.StartAt(row.StartAt.Time)
			asks = append(asks, f.Ask(it.id))
		}
	}
	if len(ids) == 0 {
		return nil
	}
	err := s.o.Store.DecideTx(ctx, q, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		for _, a := range asks {
			if e, ok := a.Event(&tasks[a.Task].Task, protocol.Env{Now: now}, protocol.ActorGuard); ok {
				events = append(events, e)
			}
		}
		for _, t := range tasks {
			changed = append(changed, t)
		}
		return changed, events
	})
	if err != nil {
		return err
	}
	return store.AskAll(ctx, q, asks)
}
