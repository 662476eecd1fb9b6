package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Plan is what a round would do now.
type Plan struct {
	Epoch       PlanEpoch    `json:"epoch"`
	Groups      []PlanGroup  `json:"groups"`
	Tasks       []PlanTask   `json:"tasks"`
	Stale       []PlanStale  `json:"stale_entries"`
	DeadLetters []PlanLetter `json:"dead_letters"`
}

// PlanEpoch is the state of the epoch in both stores.
type PlanEpoch struct {
	// State is ok, unset (nothing was ever complete), restarted, rebuilding, or a
	// Loss.
	State  string `json:"state"`
	Detail string `json:"detail"`
	// Action is empty if there is nothing to do.
	Action             string `json:"action"`
	RedisID            string `json:"redis_id"`
	PostgresID         string `json:"postgres_id"`
	RedisGeneration    int64  `json:"redis_generation"`
	PostgresGeneration int64  `json:"postgres_generation"`
	ConfirmedGen       int64  `json:"confirmed_generation"`
}

// PlanGroup is a group that is not there.
type PlanGroup struct {
	Stream string `json:"stream"`
	Group  string `json:"group"`
	Action string `json:"action"`
}

// PlanTask is a task that is not where it must be.
type PlanTask struct {
	ID       string         `json:"id"`
	Queue    string         `json:"queue"`
	State    protocol.State `json:"state"`
	Delivery int64          `json:"delivery"`
	Missing  string         `json:"missing"`
	Action   string         `json:"action"`
}

// PlanStale is an entry that no task waits for.
type PlanStale struct {
	Stream   string `json:"stream"`
	EntryID  string `json:"entry_id"`
	TaskID   string `json:"task_id"`
	Delivery int64  `json:"delivery"`
	Action   string `json:"action"`
}

// PlanLetter is a dead letter whose entry is not in stream:dlq.
type PlanLetter struct {
	DLQID   string `json:"dlq_id"`
	EntryID string `json:"entry_id"`
	Action  string `json:"action"`
}

// Empty reports whether there is nothing to do.
func (p *Plan) Empty() bool {
	return p.Epoch.Action == "" && len(p.Groups)+len(p.Tasks)+len(p.Stale)+len(p.DeadLetters) == 0
}

// Letters finds dead letters whose entry is missing.
type Letters interface {
	EachMissing(ctx context.Context, fn func(dlqID protocol.ID, entryID string)) error
}

// Plan tells what a round would do. It changes nothing, and waits for nothing:
// of tasks whose outcome is not applied yet it says nothing, and of running ones
// it does not know how long they have been absent.
func (r *Reconciler) Plan(ctx context.Context, letters Letters) (*Plan, error) {
	v, err := r.look(ctx)
	if err != nil {
		return nil, err
	}
	p := &Plan{Epoch: planEpoch(v), Groups: []PlanGroup{}, Tasks: []PlanTask{}, Stale: []PlanStale{}, DeadLetters: []PlanLetter{}}
	floor, before := v.row.Floor, v.row.LostAt.Time
	if kind, _ := v.find(); kind == PostgresRestored {
		floor, before = new(int64), v.row.Now
		*floor = 1 << 62 // above every delivery
	}
	if floor != nil {
		err = r.planRestored(ctx, p, *floor, before)
	} else {
		err = r.planMissing(ctx, p)
	}
	if err != nil {
		return nil, err
	}
	for _, stream := range []string{protocol.StreamResult, protocol.StreamDLQ} {
		_, err := r.o.Redis.Info(ctx, stream, protocol.GroupOrchestrators)
		if errors.Is(err, streams.ErrNoGroup) {
			p.Groups = append(p.Groups, PlanGroup{stream, protocol.GroupOrchestrators, "make it, at the stream's beginning"})
		} else if err != nil {
			return nil, err
		}
	}
	if err := r.planStale(ctx, p); err != nil {
		return nil, err
	}
	err = letters.EachMissing(ctx, func(dlqID protocol.ID, entryID string) {
		p.DeadLetters = append(p.DeadLetters, PlanLetter{dlqID.String(), entryID, "put it back into " + protocol.StreamDLQ})
	})
	return p, err
}

func planEpoch(v view) PlanEpoch {
	e := PlanEpoch{
		State: "ok", Detail: "Redis is known to be complete", RedisID: v.redis.ID, PostgresID: v.epoch(),
		RedisGeneration: v.redis.Generation, PostgresGeneration: v.row.Generation, ConfirmedGen: v.row.Confirmed,
	}
	kind, why := v.find()
	switch {
	case kind != "":
		e.State, e.Detail = string(kind), why
		e.Action = map[Loss]string{
			EpochMissing: "begin a new epoch and rebuild", EpochUnknown: "adopt it and rebuild", GenerationBehind: "rebuild",
			PostgresRestored: "raise the delivery of every live task and rebuild",
		}[kind]
	case v.row.Lost != nil:
		e.State, e.Detail, e.Action = "rebuilding", "what was lost ("+*v.row.Lost+") is not rebuilt yet", "rebuild"
	case v.row.ID == nil:
		e.State, e.Detail, e.Action = "unset", "Redis was never known to be complete", "note that it is, after a pass"
	case v.restarted():
		e.State, e.Detail, e.Action = "restarted", "Redis was restarted or failed over since it was known to be complete", "make a pass and note it"
	}
	return e
}

// planRestored lists the tasks that get a new delivery because Postgres went
// back.
func (r *Reconciler) planRestored(ctx context.Context, p *Plan, floor int64, before time.Time) error {
	return r.eachBelow(ctx, live, floor, before, func(rows []*dbsqlc.BelowFloorRow) error {
		for _, t := range rows {
			action := "redispatch under a raised delivery"
			switch {
			case t.State == string(protocol.StateRunning):
				action = "interrupt and " + action
			case slices.Contains(undispatched, t.State):
				action = "raise the delivery; the state stays"
			}
			p.Tasks = append(p.Tasks, PlanTask{
				ID: protocol.ID(t.ID).String(), Queue: t.Queue, State: protocol.State(t.State), Delivery: t.Delivery,
				Missing: "Postgres was restored: Redis may hold deliveries that it has forgotten", Action: action,
			})
		}
		return nil
	})
}

// planMissing lists the tasks that are nowhere, as a pass would find them.
func (r *Reconciler) planMissing(ctx context.Context, p *Plan) error {
	cands, err := r.candidates(ctx, nil)
	if err != nil {
		return fmt.Errorf("read live tasks: %w", err)
	}
	present, where := map[protocol.Pair]bool{}, map[string]string{protocol.DefaultQueue: ""}
	see := func(e streams.Entry) {
		if pair, ok := protocol.PairOf(e.Values); ok {
			present[pair] = true
		}
	}
	for _, c := range cands {
		where[c.queue] = ""
	}
	for _, queue := range slices.Sorted(maps.Keys(where)) {
		stream := protocol.TaskStream(queue)
		where[queue] = "no entry in " + stream
		err := Scan(ctx, r.o.Redis, stream, protocol.GroupWorkers, see, nil)
		if errors.Is(err, streams.ErrNoGroup) {
			where[queue] = "the group of " + stream
			p.Groups = append(p.Groups, PlanGroup{stream, protocol.GroupWorkers, "make it, with an empty stream"})
		} else if err != nil {
			return err
		}
	}
	missing := slices.DeleteFunc(cands, func(c candidate) bool { return present[c.Pair] })
	if missing, err = r.unresolved(ctx, missing); err != nil {
		return err
	}
	for _, c := range missing {
		action := "redispatch as delivery " + fmt.Sprint(c.Delivery+1)
		if c.state == protocol.StateRunning {
			action = fmt.Sprintf("interrupt, unless it ends within %s", r.o.VisibilityTimeout)
		}
		p.Tasks = append(p.Tasks, PlanTask{
			ID: c.ID.String(), Queue: c.queue, State: c.state, Delivery: c.Delivery, Missing: where[c.queue], Action: action,
		})
	}
	return nil
}

// unresolved returns those of the missing tasks that have no outcome under way
// and are still as they were read.
func (r *Reconciler) unresolved(ctx context.Context, missing []candidate) ([]candidate, error) {
	if len(missing) == 0 {
		return nil, nil
	}
	reported := map[protocol.Pair]bool{}
	outcome := func(e streams.Entry) {
		if pair, ok := protocol.PairOf(e.Values); ok && e.Values[protocol.FieldKind] != string(protocol.OutcomeClaimed) {
			reported[pair] = true
		}
	}
	err := Scan(ctx, r.o.Redis, protocol.StreamResult, protocol.GroupOrchestrators, outcome, nil)
	if errors.Is(err, streams.ErrNoGroup) { // it will be made at the stream's beginning
		err = r.o.Redis.Range(ctx, protocol.StreamResult, "", func(e streams.Entry) bool { outcome(e); return true })
	}
	if err != nil {
		return nil, err
	}
	ids := make([]protocol.ID, len(missing))
	for i, c := range missing {
		ids[i] = c.ID
	}
	again, err := r.candidates(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read live tasks: %w", err)
	}
	now := make(map[candidate]bool, len(again))
	for _, c := range again {
		now[c] = true
	}
	return slices.DeleteFunc(missing, func(c candidate) bool { return reported[c.Pair] || !now[c] }), nil
}

func (r *Reconciler) planStale(ctx context.Context, p *Plan) error {
	err := r.eachStale(ctx, func(stream string, stale []place) error {
		for _, e := range stale {
			p.Stale = append(p.Stale, PlanStale{stream, e.entry, e.ID.String(), e.Delivery, "remove it"})
		}
		return nil
	})
	slices.SortFunc(p.Stale, func(a, b PlanStale) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.EntryID, b.EntryID))
	})
	return err
}
