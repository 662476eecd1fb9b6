package testkit

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/pipeline/alert"
	"github.com/penstock-dev/penstock/internal/pipeline/approval"
	"github.com/penstock-dev/penstock/internal/pipeline/cancel"
	"github.com/penstock-dev/penstock/internal/pipeline/deadletter"
	"github.com/penstock-dev/penstock/internal/pipeline/dependency"
	"github.com/penstock-dev/penstock/internal/pipeline/dispatch"
	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/pipeline/reclaim"
	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/pipeline/result"
	"github.com/penstock-dev/penstock/internal/pipeline/timeout"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// Rig is one orchestrator's stages, wired but not running: a test starts the
// loops it wants and calls single steps of the others.
type Rig struct {
	Stores
	Instance   protocol.ID
	Consumer   string
	Store      *store.Store
	Client     *streams.Client
	Raw        *redis.Client
	DB         *pgx.Conn // for one goroutine at a time
	Env        protocol.Env
	Dispatch   *dispatch.Dispatcher
	Enqueuer   *enqueue.Stage
	Results    *result.Stage
	DeadLetter *deadletter.Stage
	Reclaim    *reclaim.Reclaimer
	Reconcile  *reconcile.Reconciler
	Replay     *replay.Stage
	Timeout    *timeout.Backstop
	Cancel     *cancel.Stage
	Rules      *guard.Rules
	Approval   *approval.Stage
	Dependency *dependency.Stage
	Alerts     *alert.Stage
}

// NewRig wires the stages as internal/app does, makes the groups and leaves
// everything else to the test. Rigs of the same Stores are replicas.
func NewRig(t testing.TB, s Stores, cfg config.Orchestrator) *Rig {
	t.Helper()
	r := &Rig{Stores: s, Instance: protocol.ID(uuid.Must(uuid.NewV7())), Store: s.openStore(t, app.Policies(cfg)), Client: s.streams(t, s.OrchestratorRedis()), Raw: s.Redis(t), DB: s.SQL(t)}
	r.Consumer = "orchestrator-" + r.Instance.String()
	r.Env = protocol.Env{Seed: r.Store.Deployment().Seed, MaxInterruptions: cfg.Recovery.MaxInterruptions, MaxUnknown: cfg.Recovery.UnknownTypeTimeout}
	limits, err := app.Limits(cfg)
	if err != nil {
		t.Fatalf("limits: %v", err)
	}
	log, wake := Log(t), func(at time.Time) { r.Dispatch.Wake(at) }
	lost := func(stream string) { r.Reconcile.LostGroup(stream) }
	r.DeadLetter = deadletter.New(deadletter.Options{
		Store: r.Store, Redis: r.Client, Consumer: r.Consumer, Sweep: 100 * time.Millisecond, TakeOver: cfg.Result.TakeOver, Env: r.Env,
		Failed: func([]protocol.ID) {}, Lost: lost, Log: log,
	})
	r.Reconcile = reconcile.New(reconcile.Options{
		Store: r.Store, Redis: r.Client, Interval: cfg.Recovery.ReconcileInterval,
		VisibilityTimeout: cfg.Recovery.VisibilityTimeout, Env: r.Env, DeadLetters: r.DeadLetter, Wake: wake, Log: log,
	})
	r.Cancel = cancel.New(cancel.Options{
		Store: r.Store, Redis: r.Client, Unacked: func(ctx context.Context, stream string, see func(streams.Entry)) error {
			return reconcile.Scan(ctx, r.Client, stream, protocol.GroupWorkers, see, nil)
		},
		Keep: cfg.Retention.Tombstones, Grace: cfg.Recovery.ExpiryGrace, Done: func([]protocol.ID) {}, Log: log,
	})
	r.Dependency = dependency.New(dependency.Options{
		Store: r.Store, Poll: cfg.Dispatch.PollInterval, Sweep: cfg.Recovery.ReconcileInterval, Wake: wake, Ended: func([]protocol.ID) {}, Log: log,
	})
	r.Store.OnEnded(r.Dependency.Kick)
	r.Rules = guard.NewRules()
	r.Approval = approval.New(approval.Options{Store: r.Store, Rules: r.Rules, Wake: wake, Ended: r.Cancel.Ended, Log: log})
	r.Dispatch = dispatch.New(dispatch.Options{
		Store: r.Store, Redis: r.Client, Reconciler: r.Reconcile, Rules: r.Rules, Instance: r.Instance, InstanceTTL: cfg.Recovery.InstanceTTL,
		Window: cfg.Dispatch.Window, MaxBatch: cfg.Dispatch.MaxBatch, Poll: cfg.Dispatch.PollInterval, Lost: r.Reconcile.GroupMade, Held: r.Reconcile.Held, Log: log,
	})
	r.Enqueuer = enqueue.New(enqueue.Options{
		Store: r.Store, Dispatcher: r.Dispatch, Rules: r.Rules, Instance: r.Instance,
		Limits: limits,
		Batch:  batch.Options{Max: cfg.Enqueue.MaxBatch, Flushes: cfg.Enqueue.Flushes}, Log: log,
	})
	alerts := app.Alerts(cfg.Alerts)
	alerts.Store, alerts.Log = r.Store, log
	r.Alerts = alert.New(alerts)
	r.Results = result.New(result.Options{
		Store: r.Store, Redis: r.Client, DeadLetters: r.DeadLetter, Consumer: r.Consumer, MaxBatch: cfg.Result.MaxBatch,
		Consumers: cfg.Result.Consumers, TakeOver: cfg.Result.TakeOver, Env: r.Env, Judged: r.Alerts.Judged, Lost: lost, Log: log,
		Notify: func(a result.Applied) {
			r.Dispatch.Moved()
			if !a.Due.IsZero() {
				r.Dispatch.Wake(a.Due)
			}
			if a.Dead {
				r.DeadLetter.Kick()
			}
		},
	})
	r.Reclaim = reclaim.New(reclaim.Options{
		Store: r.Store, Redis: r.Client, DeadLetters: r.DeadLetter, Consumer: r.Consumer, VisibilityTimeout: cfg.Recovery.VisibilityTimeout,
		Interval: cfg.Recovery.ReclaimInterval, Env: r.Env, Queues: r.queues, Wake: wake, Dead: r.DeadLetter.Kick, Log: log,
	})
	r.Timeout = timeout.New(timeout.Options{
		Store: r.Store, Redis: r.Client, Grace: cfg.Recovery.TimeoutGrace, Env: r.Env, Wake: wake, Dead: r.DeadLetter.Kick, Log: log,
	})
	r.Replay = replay.New(replay.Options{
		Store: r.Store, Redis: r.Client, CheckPayload: r.Enqueuer.CheckPayload, ProposalTTL: cfg.Replay.ProposalTTL, DraftTTL: cfg.Replay.DraftTTL,
		Keep: cfg.Retention.DeadLetters, Wake: wake, Log: log,
	})
	r.makeGroups(t)
	return r
}

func (r *Rig) makeGroups(t testing.TB) {
	t.Helper()
	_, err := r.Client.CreateTaskGroup(t.Context(), protocol.StreamTask, protocol.GroupWorkers)
	for _, stream := range []string{protocol.StreamResult, protocol.StreamDLQ} {
		if err == nil {
			_, err = r.Client.CreateGroup(t.Context(), stream, protocol.GroupOrchestrators)
		}
	}
	if err != nil {
		t.Fatalf("make groups: %v", err)
	}
}

func (r *Rig) queues(ctx context.Context) ([]string, error) {
	live, err := r.Store.LiveQueues(ctx)
	return append(live, protocol.DefaultQueue), err
}

// Start runs a loop until the returned function is called or the test ends.
func (r *Rig) Start(t testing.TB, loop func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- loop(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("loop: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// StartDispatch starts the dispatcher and waits until entries can go straight
// to their stream.
func (r *Rig) StartDispatch(t testing.TB) (stop func()) {
	t.Helper()
	stop = r.Start(t, r.Dispatch.Run)
	Eventually(t, "the dispatcher runs", func() (bool, string) {
		_, _, err := r.Dispatch.Room(t.Context(), protocol.DefaultQueue)
		return err == nil, fmt.Sprint(err)
	})
	return stop
}

// Enqueue stores tasks and returns their ids.
func (r *Rig) Enqueue(t testing.TB, reqs ...*enqueue.Request) []protocol.ID {
	t.Helper()
	res, err := r.Enqueuer.EnqueueAll(context.WithoutCancel(t.Context()), reqs)
	if err != nil {
		t.Fatalf("enqueue: %v", err)
	}
	ids := make([]protocol.ID, len(res))
	for i, x := range res {
		if x.Err != nil {
			t.Fatalf("enqueue: %v", x.Err)
		}
		ids[i] = protocol.ID(x.Value.Task().ID)
	}
	return ids
}

// Requests makes n requests of a type.
func Requests(n int, typ string) []*enqueue.Request {
	out := make([]*enqueue.Request, n)
	for i := range out {
		out[i] = &enqueue.Request{Type: typ, Payload: json.RawMessage(`{}`)}
	}
	return out
}

// Held is a task entry in a consumer's hands.
type Held struct {
	*protocol.TaskEntry
	MessageID, Consumer string
}

// Fetch has a consumer take exactly n entries of the default queue, waiting for
// them, as a worker without a heartbeat would.
func (r *Rig) Fetch(t testing.TB, consumer string, n int) []Held {
	t.Helper()
	var out []Held
	Eventually(t, "entries to fetch", func() (bool, string) {
		es, err := r.Client.ReadNow(t.Context(), protocol.StreamTask, protocol.GroupWorkers, consumer, n-len(out))
		if err != nil {
			return false, err.Error()
		}
		for _, e := range es {
			task, err := protocol.DecodeTask(e.Values)
			if err != nil {
				t.Fatalf("entry %s: %v", e.ID, err)
			}
			out = append(out, Held{task, e.ID, consumer})
		}
		return len(out) == n, ""
	})
	return out
}

// Outcome is what a worker reports about the entry.
func (h Held) Outcome(kind protocol.OutcomeKind) *protocol.Outcome {
	now := time.Now()
	return &protocol.Outcome{
		ID: h.ID, Delivery: h.Delivery, Kind: kind, WorkerID: h.Consumer, MessageID: h.MessageID, StartedAt: now, FinishedAt: now, Delay: -1,
	}
}

// Report adds outcomes to stream:result without acknowledging anything.
func (r *Rig) Report(t testing.TB, outcomes ...*protocol.Outcome) {
	t.Helper()
	values := make([][]any, len(outcomes))
	for i, o := range outcomes {
		values[i] = o.Values()
	}
	for _, a := range r.Client.Append(t.Context(), protocol.StreamResult, values) {
		if a.Err != nil {
			t.Fatalf("report: %v", a.Err)
		}
	}
}

// Ack acknowledges task entries of the default queue.
func (r *Rig) Ack(t testing.TB, hs ...Held) {
	t.Helper()
	for _, h := range hs {
		if err := r.Client.Ack(t.Context(), protocol.StreamTask, protocol.GroupWorkers, []string{h.MessageID}); err != nil {
			t.Fatalf("ack: %v", err)
		}
	}
}

// Row is what a test asks about a task.
type Row struct {
	State                   protocol.State
	Attempt, Interruptions  int
	Delivery                int64
	Due                     bool
	Code, Reason, Result    string
	NextRetryAt, FinishedAt *time.Time
}

// Row reads a task.
func (r *Rig) Row(t testing.TB, id protocol.ID) (row Row) {
	t.Helper()
	err := r.DB.QueryRow(t.Context(), `SELECT state, attempt, interruptions, delivery, due_at IS NOT NULL, COALESCE(last_error_code, ''),
		COALESCE(last_error_reason, ''), COALESCE(result::text, ''), next_retry_at, finished_at FROM tasks WHERE id = $1`, pgid.ID(id)).Scan(
		&row.State, &row.Attempt, &row.Interruptions, &row.Delivery, &row.Due, &row.Code, &row.Reason, &row.Result, &row.NextRetryAt, &row.FinishedAt)
	if err != nil {
		t.Fatalf("read task %s: %v", id, err)
	}
	return row
}

// Count runs a query that returns one number.
func (r *Rig) Count(t testing.TB, sql string, args ...any) (n int) {
	t.Helper()
	if err := r.DB.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// WaitState waits until all tasks are in the state.
func (r *Rig) WaitState(t testing.TB, state protocol.State, ids ...protocol.ID) {
	t.Helper()
	Eventually(t, "tasks become "+string(state), func() (bool, string) {
		rows, err := r.DB.Query(t.Context(), "SELECT DISTINCT state FROM tasks WHERE id = ANY($1::uuid[])", pgid.Slice(ids))
		if err != nil {
			return false, err.Error()
		}
		states, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return false, err.Error()
		}
		b, _ := json.Marshal(states)
		return len(states) == 1 && states[0] == string(state), string(b)
	})
}
