package api

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/pipeline/schedule"
	"github.com/penstock-dev/penstock/internal/recur"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Schedules implements penstockv1connect.ScheduleServiceHandler.
type Schedules struct {
	stage *schedule.Stage
	// principal is who makes the call; empty: anonymous.
	principal func(ctx context.Context) string
}

// NewSchedules makes a Schedules. principal tells who makes a call.
func NewSchedules(s *schedule.Stage, principal func(ctx context.Context) string) *Schedules {
	return &Schedules{stage: s, principal: principal}
}

// CreateSchedule implements the RPC.
func (s *Schedules) CreateSchedule(ctx context.Context, req *connect.Request[penstockv1.CreateScheduleRequest]) (*connect.Response[penstockv1.CreateScheduleResponse], error) {
	m := req.Msg
	if err := checkFilters(filter{"tenant", m.Tenant}); err != nil {
		return nil, err
	}
	r, hit, err := s.stage.Create(ctx, m.Tenant, m.Name, definitionOf(m.Spec), m.Paused, s.principal(ctx))
	if err != nil {
		return nil, failure(err)
	}
	out, err := scheduleOf(r)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.CreateScheduleResponse{IdempotentHit: hit, Schedule: out}), nil
}

// UpdateSchedule implements the RPC.
func (s *Schedules) UpdateSchedule(ctx context.Context, req *connect.Request[penstockv1.UpdateScheduleRequest]) (*connect.Response[penstockv1.UpdateScheduleResponse], error) {
	m := req.Msg
	r, err := s.stage.Update(ctx, m.Tenant, m.Schedule, definitionOf(m.Spec), m.Revision, s.principal(ctx))
	out, err := answered(r, err)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.UpdateScheduleResponse{Schedule: out}), nil
}

// GetSchedule implements the RPC.
func (s *Schedules) GetSchedule(ctx context.Context, req *connect.Request[penstockv1.GetScheduleRequest]) (*connect.Response[penstockv1.GetScheduleResponse], error) {
	out, err := answered(s.stage.Find(ctx, req.Msg.Tenant, req.Msg.Schedule))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.GetScheduleResponse{Schedule: out}), nil
}

// ListSchedules implements the RPC.
func (s *Schedules) ListSchedules(ctx context.Context, req *connect.Request[penstockv1.ListSchedulesRequest]) (*connect.Response[penstockv1.ListSchedulesResponse], error) {
	m := req.Msg
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	if err := checkFilters(filter{"tenant", m.Tenant}); err != nil {
		return nil, err
	}
	afterName, err := nameAfter(m)
	if err != nil {
		return nil, err
	}
	rows, err := s.stage.List(ctx, m.Tenant, afterName, int(size)+1)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListSchedulesResponse{}
	if len(rows) > int(size) {
		rows = rows[:size]
		out.NextPageToken = tokenFor(m, cursor{Key: []string{rows[size-1].Name}})
	}
	for _, r := range rows {
		x, err := scheduleOf(r)
		if err != nil {
			return nil, err
		}
		out.Schedules = append(out.Schedules, x)
	}
	return connect.NewResponse(out), nil
}

// PauseSchedule implements the RPC.
func (s *Schedules) PauseSchedule(ctx context.Context, req *connect.Request[penstockv1.PauseScheduleRequest]) (*connect.Response[penstockv1.PauseScheduleResponse], error) {
	out, err := answered(s.stage.Pause(ctx, req.Msg.Tenant, req.Msg.Schedule, true, s.principal(ctx)))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.PauseScheduleResponse{Schedule: out}), nil
}

// ResumeSchedule implements the RPC.
func (s *Schedules) ResumeSchedule(ctx context.Context, req *connect.Request[penstockv1.ResumeScheduleRequest]) (*connect.Response[penstockv1.ResumeScheduleResponse], error) {
	out, err := answered(s.stage.Pause(ctx, req.Msg.Tenant, req.Msg.Schedule, false, s.principal(ctx)))
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&penstockv1.ResumeScheduleResponse{Schedule: out}), nil
}

// TriggerSchedule implements the RPC.
func (s *Schedules) TriggerSchedule(ctx context.Context, req *connect.Request[penstockv1.TriggerScheduleRequest]) (*connect.Response[penstockv1.TriggerScheduleResponse], error) {
	m := req.Msg
	f, task, err := s.stage.Trigger(ctx, m.Tenant, m.Schedule, m.TaskId, s.principal(ctx))
	if err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.TriggerScheduleResponse{Fire: fireOf(f, task)}), nil
}

// DeleteSchedule implements the RPC.
func (s *Schedules) DeleteSchedule(ctx context.Context, req *connect.Request[penstockv1.DeleteScheduleRequest]) (*connect.Response[penstockv1.DeleteScheduleResponse], error) {
	if err := s.stage.Delete(ctx, req.Msg.Tenant, req.Msg.Schedule); err != nil {
		return nil, failure(err)
	}
	return connect.NewResponse(&penstockv1.DeleteScheduleResponse{}), nil
}

// ListFires implements the RPC.
func (s *Schedules) ListFires(ctx context.Context, req *connect.Request[penstockv1.ListFiresRequest]) (*connect.Response[penstockv1.ListFiresResponse], error) {
	m := req.Msg
	size, err := pageSize(m.PageSize)
	if err != nil {
		return nil, err
	}
	before := farFuture
	if c, err := cursorOf(m); err != nil {
		return nil, err
	} else if c != nil {
		before = c.At
	}
	fires, names, err := s.stage.Fires(ctx, m.Tenant, m.Schedule, before, int(size)+1)
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.ListFiresResponse{}
	if len(fires) > int(size) {
		fires = fires[:size]
		out.NextPageToken = tokenFor(m, cursor{At: fires[size-1].FireAt})
	}
	for _, f := range fires {
		task := ""
		if f.TaskID != nil {
			task = store.TaskID(protocol.ID(*f.TaskID), names[*f.TaskID])
		}
		out.Fires = append(out.Fires, fireOf(f, task))
	}
	return connect.NewResponse(out), nil
}

const (
	defaultTimes = 10
	maxTimes     = 1000
)

// NextFires implements the RPC.
func (s *Schedules) NextFires(ctx context.Context, req *connect.Request[penstockv1.NextFiresRequest]) (*connect.Response[penstockv1.NextFiresResponse], error) {
	m := req.Msg
	n := int(m.Count)
	if n == 0 {
		n = defaultTimes
	}
	if n < 1 || n > maxTimes {
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "count", "is %d, want 1 to %d", m.Count, maxTimes)
	}
	after, err := bound("after", m.After)
	if err != nil {
		return nil, err
	}
	var times []time.Time
	switch {
	case m.Schedule != "" && (m.Cron != "" || m.EveryMs != 0 || m.Timezone != ""):
		return nil, protocol.Errorf(protocol.CodeInputInvalid, "schedule", "and a rule are both given: give one of them")
	case m.Schedule != "":
		times, err = s.stage.Next(ctx, m.Tenant, m.Schedule, after, n)
	case m.EveryMs < 0 || m.EveryMs > recur.MaxEvery.Milliseconds():
		err = protocol.Errorf(protocol.CodeInputInvalid, "every_ms", "is %d, want %d to %d", m.EveryMs, recur.MinEvery.Milliseconds(), recur.MaxEvery.Milliseconds())
	default:
		times, err = s.stage.Preview(ctx, recur.Spec{Cron: m.Cron, Every: time.Duration(m.EveryMs) * time.Millisecond, Timezone: m.Timezone}, after, n)
	}
	if err != nil {
		return nil, failure(err)
	}
	out := &penstockv1.NextFiresResponse{}
	for _, at := range times {
		out.Times = append(out.Times, timestamppb.New(at))
	}
	return connect.NewResponse(out), nil
}

func answered(r *dbsqlc.Schedule, err error) (*penstockv1.Schedule, error) {
	if err != nil {
		return nil, failure(err)
	}
	return scheduleOf(r)
}

func given(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	if at := t.AsTime(); t.IsValid() && !at.IsZero() {
		return at
	}
	return badTime
}

func definitionOf(m *penstockv1.ScheduleSpec) schedule.Definition {
	t := m.GetTask()
	d := schedule.Definition{
		Cron: m.GetCron(), EveryMS: m.GetEveryMs(), Timezone: m.GetTimezone(), Missed: m.GetMissed(), MissedMax: m.GetMissedMax(), Overlap: m.GetOverlap(),
		StartAt: given(m.GetStartAt()), EndAt: given(m.GetEndAt()),
		Task: schedule.Template{Type: t.GetType(), Payload: t.GetPayload(), Queue: t.GetQueue()},
	}
	if t != nil {
		d.Task.TimeoutMS, d.Task.MaxRetries = t.TimeoutMs, t.MaxRetries
		d.Task.StartWithinMS, d.Task.HeartbeatTimeoutMS = t.ScheduleToStartTimeoutMs, t.HeartbeatTimeoutMs
		if p := t.RetryPolicy; p != nil {
			d.Task.Policy = &schedule.Policy{Strategy: p.Strategy, BaseMS: p.BaseMs, MaxBackoffMS: p.MaxBackoffMs, JitterMaxMS: p.JitterMaxMs, ScheduleMS: p.ScheduleMs}
		}
	}
	return d
}

func scheduleOf(r *dbsqlc.Schedule) (*penstockv1.Schedule, error) {
	d, err := schedule.DefinitionOf(r)
	if err != nil {
		return nil, err
	}
	t := d.Task
	spec := &penstockv1.ScheduleSpec{
		Cron: d.Cron, EveryMs: d.EveryMS, Timezone: d.Timezone, Missed: d.Missed, MissedMax: d.MissedMax, Overlap: d.Overlap,
		StartAt: timeOf(r.StartAt), EndAt: timeOf(r.EndAt),
		Task: &penstockv1.ScheduledTask{
			Type: t.Type, Payload: t.Payload, Queue: t.Queue, TimeoutMs: t.TimeoutMS, MaxRetries: t.MaxRetries,
			ScheduleToStartTimeoutMs: t.StartWithinMS, HeartbeatTimeoutMs: t.HeartbeatTimeoutMS,
		},
	}
	if p := t.Policy; p != nil {
		spec.Task.RetryPolicy = &penstockv1.RetryPolicy{Strategy: p.Strategy, BaseMs: p.BaseMS, MaxBackoffMs: p.MaxBackoffMS, JitterMaxMs: p.JitterMaxMS, ScheduleMs: p.ScheduleMS}
	}
	return &penstockv1.Schedule{
		Id: protocol.ID(r.ID).String(), Tenant: r.Tenant, Name: r.Name, Spec: spec, Paused: r.Paused, NextFireAt: timeOf(r.NextFireAt),
		LastFireAt: timeOf(r.LastFireAt), Revision: r.Revision, CreatedBy: r.CreatedBy, ChangedBy: r.ChangedBy,
		CreatedAt: timestamppb.New(r.CreatedAt), UpdatedAt: timestamppb.New(r.UpdatedAt),
	}, nil
}

func fireOf(f *dbsqlc.ScheduleFire, task string) *penstockv1.Fire {
	return &penstockv1.Fire{
		FireAt: timestamppb.New(f.FireAt), Until: timestamppb.New(f.Until), Kind: f.Kind, Result: f.Result, TaskId: task,
		Error: store.Deref(f.Error), FiredAt: timestamppb.New(f.FiredAt),
	}
}
