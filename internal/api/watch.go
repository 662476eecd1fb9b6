package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// position is a place in the event log: after event (XID, Task, Seq). Events
// are ordered by their transaction first, and a transaction is only read when
// every older one has ended; so an event that commits late is never skipped.
type position struct {
	Deployment string `json:"d"`
	XID        int64  `json:"x"`
	Task       string `json:"t,omitempty"`
	Seq        int32  `json:"s,omitempty"`
}

func (p position) encode() string {
	b, _ := json.Marshal(p) // strings and numbers always have a JSON form
	return base64.RawURLEncoding.EncodeToString(b)
}

// Watch pacing.
const (
	watchBatch = 500
	// watchLook is how many events one look passes over at most.
	watchLook = 10_000
	watchPoll = 100 * time.Millisecond
	// signOfLife is how often a position is sent while nothing happens.
	signOfLife = 10 * time.Second
	earliest   = "earliest"
)

func (s *Service) startPosition(ctx context.Context, token string) (position, error) {
	b, err := s.store.WatchBounds(ctx)
	if err != nil {
		return position{}, failure(err)
	}
	p := position{Deployment: s.store.Deployment().ID.String()}
	switch token {
	case "":
		// The newest position below which nothing can still commit: an event
		// of a transaction that is open now will be seen.
		return p.end(b.Safe), nil
	case earliest:
		p.XID = b.Horizon
		return p, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	var got position
	if err == nil {
		err = json.Unmarshal(raw, &got)
	}
	if err != nil || got.XID < 0 {
		return position{}, protocol.Errorf(protocol.CodeInputInvalid, "position", "is not a position of an earlier response: use one, \"earliest\", or leave it empty")
	}
	if got.Task != "" {
		if _, err := protocol.ParseID(got.Task); err != nil {
			return position{}, protocol.Errorf(protocol.CodeInputInvalid, "position", "is damaged: %v", err)
		}
	}
	switch {
	case got.Deployment != p.Deployment:
		return position{}, outOfRange("position is of another deployment: start again with \"earliest\" or without a position")
	case got.XID < b.Horizon:
		return position{}, outOfRange("position is too old: events after it have been removed by retention; start again with \"earliest\"")
	case got.XID > b.Next:
		return position{}, outOfRange("position is newer than this database, which was restored from an older copy: start again with \"earliest\"")
	}
	return got, nil
}

// outOfRange says that a position can't be resumed from; repeating the call
// does not help.
func outOfRange(text string) error {
	return connect.NewError(connect.CodeOutOfRange, errors.New(text))
}

const maxID = "ffffffff-ffff-ffff-ffff-ffffffffffff"

// WatchEvents implements the RPC.
func (s *Service) WatchEvents(ctx context.Context, req *connect.Request[penstockv1.WatchEventsRequest], stream *connect.ServerStream[penstockv1.WatchEventsResponse]) error {
	m := req.Msg
	pos, err := s.startPosition(ctx, m.Position)
	if err != nil {
		return err
	}
	if err := checkFilters(filter{"tenant", m.Tenant}); err != nil {
		return err
	}
	arg := dbsqlc.WatchEventsParams{Tenant: m.Tenant, Types: []string{}, MaxLook: watchLook, MaxRows: watchBatch}
	for _, t := range m.Types {
		if !knownType(t) {
			return protocol.Errorf(protocol.CodeInputInvalid, "types", "has %q, want any of %v", clip(t), protocol.EventTypes())
		}
		arg.Types = append(arg.Types, t)
	}
	if m.TaskId != "" {
		if arg.TaskID, arg.Tenant, err = s.watchedID(ctx, m); err != nil {
			return err
		}
	}
	// Headers and the starting position go out at once.
	if err := stream.Send(&penstockv1.WatchEventsResponse{Position: pos.encode()}); err != nil {
		return err
	}
	return s.follow(ctx, pos, arg, stream)
}

// watchedID is the id whose events are asked for, and the tenant that they must
// have: any for a task, which was found by its tenant, and the caller's for an
// alert or a dead letter that is no task, which have an id and no more.
func (s *Service) watchedID(ctx context.Context, m *penstockv1.WatchEventsRequest) (id pgid.ID, tenant string, err error) {
	t, err := s.find(ctx, m.Tenant, m.TaskId)
	if err == nil {
		return t.ID, "", nil
	}
	if other, perr := protocol.ParseID(m.TaskId); perr == nil && !other.IsTask() && protocol.CodeOf(err) == protocol.CodeNotFound {
		return pgid.ID(other), m.Tenant, nil
	}
	return pgid.ID{}, "", err
}

func (s *Service) follow(ctx context.Context, pos position, arg dbsqlc.WatchEventsParams, stream *connect.ServerStream[penstockv1.WatchEventsResponse]) error {
	quiet := time.Now()
	for {
		next, rows, more, err := s.after(ctx, pos, arg)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return failure(err)
		}
		pos = next
		// Who resumes does not look again at what the filter left out.
		if len(rows) > 0 || more || time.Since(quiet) > signOfLife {
			quiet = time.Now()
			out := &penstockv1.WatchEventsResponse{Position: pos.encode()}
			for _, r := range rows {
				out.Events = append(out.Events, eventOf(r))
			}
			if err := stream.Send(out); err != nil {
				return err
			}
		}
		wait := watchPoll
		if more {
			wait = 0
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stop.Done():
			return rpc.Unavailable(errors.New("this orchestrator is stopping: resume on another one from the last position"))
		case <-time.After(wait):
		}
	}
}

// end is behind all events of transactions before safe.
func (p position) end(safe int64) position {
	p.XID, p.Task, p.Seq = safe-1, maxID, 1<<31-1
	return p
}

// behind is the position behind an event.
func (p position) behind(r *dbsqlc.WatchEventsRow) position {
	p.XID, p.Task, p.Seq = r.XidNumber, protocol.ID(r.TaskID).String(), r.Seq
	return p
}

// after takes one look at the events after a position: it returns those that the
// filter admits, the position behind all that it looked at, admitted or not, and
// whether there is more to look at right now.
func (s *Service) after(ctx context.Context, pos position, arg dbsqlc.WatchEventsParams) (next position, rows []*dbsqlc.WatchEventsRow, more bool, err error) {
	// The bound is read before the rows: every transaction below it had ended by
	// then, so the rows below it are all that there will ever be.
	b, err := s.store.WatchBounds(ctx)
	if err != nil {
		return pos, nil, false, err
	}
	if end := pos.end(b.Safe); pos.XID > end.XID || pos == end {
		return pos, nil, false, nil
	}
	arg.AfterXid, arg.AfterSeq, arg.Safe = strconv.FormatInt(pos.XID, 10), pos.Seq, strconv.FormatInt(b.Safe, 10)
	arg.AfterTask = pgid.ID{}
	if pos.Task != "" {
		id, err := protocol.ParseID(pos.Task)
		if err != nil {
			return pos, nil, false, err
		}
		arg.AfterTask = pgid.ID(id)
	}
	var found []*dbsqlc.WatchEventsRow
	err = s.store.Look(ctx, func(q *dbsqlc.Queries) (err error) {
		found, err = q.WatchEvents(ctx, arg)
		if err == nil && arg.TaskID != (pgid.ID{}) && len(found) > 0 && found[len(found)-1].Place == watchLook {
			// Far behind, one task's own events are fewer than those of all.
			found, err = watchOne(ctx, q, arg)
		}
		return err
	})
	if err != nil {
		return pos, nil, false, err
	}
	next = pos.end(b.Safe)
	if n := len(found); n > 0 && (n == watchBatch || found[n-1].Place == watchLook) {
		next, more = pos.behind(found[n-1]), true
	}
	for _, r := range found {
		if r.Admitted {
			rows = append(rows, r)
		}
	}
	return next, rows, more, nil
}

func watchOne(ctx context.Context, q *dbsqlc.Queries, arg dbsqlc.WatchEventsParams) (out []*dbsqlc.WatchEventsRow, err error) {
	rows, err := q.WatchEventsOf(ctx, dbsqlc.WatchEventsOfParams{
		TaskID: arg.TaskID, AfterXid: arg.AfterXid, AfterTask: arg.AfterTask, AfterSeq: arg.AfterSeq, Safe: arg.Safe, Tenant: arg.Tenant, Types: arg.Types, MaxRows: arg.MaxRows,
	})
	for _, r := range rows {
		out = append(out, (*dbsqlc.WatchEventsRow)(r))
	}
	return out, err
}

func knownType(s string) bool {
	for _, t := range protocol.EventTypes() {
		if string(t) == s {
			return true
		}
	}
	return false
}
