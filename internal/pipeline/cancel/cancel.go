// Package cancel ends tasks before their time: because somebody asks for it, or
// because no worker started them in time. The row comes first, and whoever
// commits first wins: an outcome or the cancellation. A delivery that Redis
// holds then gets a tombstone, in the same transaction and after that in Redis:
// workers look for it before they start an entry, and while they run it.
package cancel

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/crashpoint"
	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Options are the settings of a Stage.
type Options struct {
	Store *store.Store
	Redis *streams.Client
	// Unacked calls see for every entry of a task stream that is not
	// acknowledged, undelivered ones first; streams.ErrNoGroup if there is no
	// group.
	Unacked func(ctx context.Context, stream string, see func(streams.Entry)) error
	// Keep is the least time that a tombstone is kept.
	Keep time.Duration
	// Grace is how long after its time to start a task that Redis holds is left
	// to its worker: it may have started it, and its claim be under way.
	Grace time.Duration
	// Done is told which tasks became terminal.
	Done func(ids []protocol.ID)
	// Pulse, if set, is told how the loops fare.
	Pulse   *lifecycle.Pulse
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Stage cancels tasks. It is safe for concurrent use, but each of its loops is
// to run once. Any number of replicas may run at once.
type Stage struct {
	o         Options
	now       chan struct{} // asks RunTombstones for a look
	cancelled *prometheus.CounterVec
	refused   prometheus.Counter
	kept      prometheus.Gauge
	hold      time.Time // RunExpiry: no dispatched task is ended before this
}

// New makes a Stage.
func New(o Options) *Stage {
	s := &Stage{
		o: o, now: make(chan struct{}, 1),
		cancelled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_tasks_cancelled_total", Help: "Tasks that were cancelled, by the code that says why.",
		}, []string{"code"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_cancellations_refused_total", Help: "Calls to cancel a task that had ended or was given up.",
		}),
		kept: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_tombstones", Help: "Deliveries of cancelled tasks that workers are told not to start.",
		}),
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.cancelled, s.refused, s.kept)
	}
	return s
}

const (
	// chunk is how many tasks one transaction changes.
	chunk = 500
	// maxReason bounds what goes into events.
	maxReason = 1024
)

// Reason says who cancels and why.
type Reason struct {
	// Principal is who asks; "" if that is not known.
	Principal string
	// Text is at most 1,024 bytes; it may be empty.
	Text string
}

func (r Reason) check() error {
	switch {
	case len(r.Text) > maxReason:
		return bad("reason", "has %d bytes, at most %d are allowed", len(r.Text), maxReason)
	case protocol.Text(r.Text) != r.Text:
		return bad("reason", "contains characters that can't be stored")
	}
	return nil
}

func bad(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
}

// Cancel ends one task. already is true if it was cancelled before. The error is
// TASK_INVALID_TRANSITION if the task has ended in another way or was given up,
// TASK_NOT_FOUND if there is none, TASK_INPUT_INVALID if the reason can't be
// stored.
func (s *Stage) Cancel(ctx context.Context, id protocol.ID, why Reason) (already bool, err error) {
	if err := why.check(); err != nil {
		return false, err
	}
	found, state := false, protocol.StateNone
	_, err = s.decide(ctx, []protocol.ID{id}, protocol.CodeCancelled, func(env protocol.Env, t *store.Locked) ([]*protocol.Event, bool) {
		found, state = true, t.State
		actor := protocol.ActorUser(why.Principal)
		ev, ok := t.Cancel(env, actor, protocol.CodeCancelled, why.Text)
		if !ok && state != protocol.StateCancelled {
			return t.Refuse(env, actor, "cancel"), false
		}
		return ev, ok
	})
	switch {
	case err != nil:
		return false, err
	case !found:
		return false, protocol.Errorf(protocol.CodeNotFound, "task_id", "no task %s", id)
	case state == protocol.StateCancelled:
		return true, nil
	case !state.Cancellable():
		s.refused.Inc()
		return false, protocol.Errorf(protocol.CodeInvalidTransition, "task_id", "the task is %s: only one that has not ended and was not given up can be cancelled", state)
	}
	return false, nil
}

// decide locks the tasks and has fn decide about each: the events of its move,
// and whether it was cancelled. It tells everybody about those that were, and
// returns them.
func (s *Stage) decide(ctx context.Context, ids []protocol.ID, code protocol.Code, fn func(protocol.Env, *store.Locked) ([]*protocol.Event, bool)) ([]protocol.ID, error) {
	var ended []protocol.ID
	var stones []protocol.Pair
	err := s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error {
		ended, stones = nil, nil
		var arg dbsqlc.InsertTombstonesParams
		err := s.o.Store.DecideTx(ctx, q, ids, func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
			for _, t := range tasks {
				held, before := t.Dispatched() && t.Queue != protocol.QueueInternal, protocol.Pair{ID: t.ID, Delivery: t.Delivery}
				ev, ok := fn(protocol.Env{Now: now}, t)
				if len(ev) > 0 {
					changed, events = append(changed, t), append(events, ev...)
				}
				if ok {
					ended = append(ended, t.ID)
				}
				if ok && held {
					stones = append(stones, before)
					arg.TaskIds, arg.Deliveries = append(arg.TaskIds, pgid.ID(before.ID)), append(arg.Deliveries, before.Delivery)
					arg.Queues = append(arg.Queues, t.Queue)
				}
			}
			return changed, events
		})
		if err != nil || len(stones) == 0 {
			return err
		}
		return q.InsertTombstones(ctx, arg)
	})
	if err != nil || len(ended) == 0 {
		return nil, err
	}
	crashpoint.Here("cancel.committed")
	s.Ended(code, ended)
	s.tell(ctx, stones)
	return ended, nil
}

// Ended is told about tasks that were cancelled: it counts them and tells those
// who wait for them.
func (s *Stage) Ended(code protocol.Code, ids []protocol.ID) {
	s.cancelled.WithLabelValues(string(code)).Add(float64(len(ids)))
	s.o.Done(ids)
}

// tell has workers know at once. If that fails, RunTombstones tells them.
func (s *Stage) tell(ctx context.Context, stones []protocol.Pair) {
	if len(stones) == 0 {
		return
	}
	if err := s.o.Redis.AddTombstones(context.WithoutCancel(ctx), stones); err != nil {
		s.o.Log.Debug("workers are told of cancelled tasks a little later", "tasks", len(stones), "error", err)
	}
	select {
	case s.now <- struct{}{}:
	default:
	}
}
