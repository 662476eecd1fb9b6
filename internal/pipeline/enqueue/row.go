package enqueue

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

func (s *Stage) params(items []*item, lanes map[string]*lane, done []int64) dbsqlc.InsertTasksParams {
	p := dbsqlc.InsertTasksParams{Owner: pgid.ID(s.o.Instance), DoneOutbox: done}
	for queue, l := range lanes {
		p.StreamQueues = append(p.StreamQueues, queue)
		p.AfterIds = append(p.AfterIds, l.afterID)
		p.Rooms = append(p.Rooms, l.room)
	}
	for _, it := range items {
		policy := ""
		if it.policy != nil {
			b, _ := json.Marshal(it.policy) // numbers and strings always have a JSON form
			policy = string(b)
		}
		p.Ids = append(p.Ids, pgid.ID(it.id))
		p.Names = append(p.Names, it.name)
		p.Tenants = append(p.Tenants, it.tenant)
		p.Queues = append(p.Queues, it.queue)
		p.Types = append(p.Types, it.typ)
		p.Payloads = append(p.Payloads, string(it.payload))
		p.ScheduleTypes = append(p.ScheduleTypes, it.schedule)
		p.ScheduledAts = append(p.ScheduledAts, it.scheduledAt)
		p.DelayMss = append(p.DelayMss, it.delayMS)
		p.TimeoutMss = append(p.TimeoutMss, it.timeoutMS)
		p.MaxRetriess = append(p.MaxRetriess, it.maxRetries)
		p.RetryPolicies = append(p.RetryPolicies, policy)
		p.Scopes = append(p.Scopes, it.scope)
		p.Keys = append(p.Keys, it.key)
		p.Givens = append(p.Givens, it.given)
		p.TraceIds = append(p.TraceIds, it.traceID)
		p.ExpiresAts = append(p.ExpiresAts, it.expiresAt)
		p.StartWithinMss = append(p.StartWithinMss, it.startWithin)
		p.HeartbeatTimeoutMss = append(p.HeartbeatTimeoutMss, it.heartbeat)
		p.RequestedBys = append(p.RequestedBys, it.requestedBy)
		p.Guardeds = append(p.Guardeds, it.guarded)
		p.Dependencies = append(p.Dependencies, int32(len(it.upstreams)))
		p.OnDependencyFailures = append(p.OnDependencyFailures, string(it.onFailure))
		p.DependenciesDigests = append(p.DependenciesDigests, it.digest)
		p.GraphIds = append(p.GraphIds, pgid.ID(it.graph))
		p.ScheduleIds = append(p.ScheduleIds, pgid.ID(it.scheduleID))
	}
	return p
}

// entry is the stream entry of a task that was just stored.
func (it *item) entry(r *dbsqlc.InsertTasksRow) *protocol.TaskEntry {
	key, scope, own := protocol.EffectKey(r.EffectKey, r.EffectKey != "" && it.key == "", it.key, it.taskID(), it.scope, it.tenant)
	return &protocol.TaskEntry{
		ID: it.id, TaskID: it.taskID(), Type: it.typ, Payload: it.payload, Tenant: it.tenant, Attempt: 1, Delivery: 1,
		MaxRetries: int(it.maxRetries), Timeout: time.Duration(it.timeoutMS) * time.Millisecond,
		IdempotencyKey: key, KeyOwn: own, IdempotencyScope: scope, TraceID: it.traceID, EnqueuedAt: r.CreatedAt, HeartbeatTimeout: time.Duration(it.heartbeat) * time.Millisecond,
	}
}

// row is the task as it was just stored.
func (it *item) row(r *dbsqlc.InsertTasksRow) *dbsqlc.Task {
	t := &dbsqlc.Task{
		ID: pgid.ID(it.id), Tenant: it.tenant, Queue: it.queue, Type: it.typ, State: r.State, Attempt: 1,
		MaxRetries: it.maxRetries, Delivery: 1, EventSeq: int32(1 + len(it.findings)), ScheduleType: it.schedule,
		ScheduledAt: store.Timestamptz(it.scheduledAt), TimeoutMs: it.timeoutMS, IdempotencyScope: it.scope,
		Given: it.given, TraceID: it.traceID, Payload: it.payload, CreatedAt: r.CreatedAt, UpdatedAt: r.CreatedAt,
		ExpiresAt: r.ExpiresAt, RequestedBy: it.requestedBy, StartAt: r.StartAt, OpenDependencies: int32(len(it.upstreams)),
	}
	if len(it.upstreams) > 0 {
		policy := string(it.onFailure)
		t.OnDependencyFailure, t.DependenciesDigest = &policy, &it.digest
	}
	if !it.graph.IsZero() {
		graph := pgid.ID(it.graph)
		t.GraphID = &graph
	}
	if it.name != "" {
		t.Name = &it.name
	}
	if it.key != "" {
		t.IdempotencyKey = &it.key
	}
	if r.EffectKey != "" {
		t.EffectKey, t.EffectOwn = &r.EffectKey, it.key == ""
	}
	if it.startWithin > 0 {
		t.StartWithinMs = &it.startWithin
	}
	if it.heartbeat > 0 {
		t.HeartbeatTimeoutMs = &it.heartbeat
	}
	if it.policy != nil {
		t.RetryPolicy, _ = json.Marshal(it.policy)
	}
	return t
}

// ErrGone: the task in the way was removed just then; the same call may succeed.
var ErrGone = errors.New("the task that holds this id or key vanished while it was looked up; try again")
