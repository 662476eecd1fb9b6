package enqueue

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/metrics"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// Dispatcher puts committed batches into their streams.
type Dispatcher interface {
	Room(ctx context.Context, queue string) (n int, afterID string, err error)
	Expect(outboxID int64)
	Begin() (began time.Time, end func())
	Send(ctx context.Context, began time.Time, outboxID int64, queue string, entries []*protocol.TaskEntry)
	TakeDone() []int64
	GiveBack(ids []int64)
	Wake(at time.Time)
}

// Options are the settings of a Stage.
type Options struct {
	Store      *store.Store
	Dispatcher Dispatcher
	// Rules are the guard's; nil: there are none.
	Rules *guard.Rules
	// Named, if set, tells whether callers have names: those without can't enqueue
	// then what a rule stops, since they may be the ones who approve it.
	Named    func() bool
	Instance protocol.ID
	Limits   Limits
	Batch    batch.Options
	Log      *slog.Logger
	// Tasks, if set, counts what is enqueued.
	Tasks   *metrics.Tasks
	Metrics prometheus.Registerer
}

// Result is one accepted task.
type Result struct {
	Task *dbsqlc.Task
	// Hit: the task existed already with the same fields.
	Hit bool
}

// Stage accepts tasks. It is safe for concurrent use.
type Stage struct {
	o       Options
	batch   *batch.Batcher[*item, Result]
	tied    *batch.Batcher[*item, Result] // of tasks that depend on others
	graphs  *slots
	tenants tenants
	tasks   *metrics.Tasks
	batches prometheus.Histogram
}

// Bounds of payloads in memory: of one transaction, and of all that wait for
// one.
const (
	maxFlushBytes   = 16 << 20
	maxWaitingBytes = 128 << 20
)

// New makes a Stage.
func New(o Options) *Stage {
	s := &Stage{
		o: o, tasks: o.Tasks,
		batches: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "penstock_enqueue_batch_size", Help: "Tasks stored in one transaction.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
		}),
	}
	if s.tasks == nil {
		s.tasks = metrics.NewTasks(nil, nil)
	}
	o.Batch.MaxSize, o.Batch.WaitingSize = maxFlushBytes, maxWaitingBytes
	size := func(it *item) int { return len(it.payload) }
	s.batch = batch.NewSized(o.Batch, size, s.flush)
	s.tied, s.graphs = batch.NewSized(o.Batch, size, s.flushTied), newSlots(maxGraphs)
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.batches)
	}
	return s
}

// Close refuses new requests and waits until those accepted are committed.
func (s *Stage) Close(ctx context.Context) error {
	return errors.Join(s.batch.Close(ctx), s.tied.Close(ctx), s.graphs.close(ctx))
}

// Enqueue stores one task. Errors: an *protocol.Error with TASK_INPUT_INVALID
// or TASK_DUPLICATE; batch.ErrFull and batch.ErrClosed; ctx's; or Postgres'.
func (s *Stage) Enqueue(ctx context.Context, r *Request) (Result, error) {
	it, err := validate(r, &s.o.Limits, time.Now())
	if err == nil {
		err = s.refuseAnonymous(ctx, it)
	}
	if err != nil {
		s.tasks.Enqueued(r.Queue, r.Type, metrics.Invalid)
		return Result{}, err
	}
	if len(it.deps) > 0 {
		return s.tied.Submit(ctx, it)
	}
	return s.batch.Submit(ctx, it)
}

// EnqueueAll stores several tasks, each for itself: the results are in the
// order of the requests. The error is about all of them (batch.ErrFull,
// batch.ErrClosed).
func (s *Stage) EnqueueAll(ctx context.Context, rs []*Request) ([]batch.Result[Result], error) {
	out := make([]batch.Result[Result], len(rs))
	var plain, tied []*item // those that depend on others come last: maybe on plain ones
	var atPlain, atTied []int
	now := time.Now()
	for i, r := range rs {
		it, err := validate(r, &s.o.Limits, now)
		if err == nil {
			err = s.refuseAnonymous(ctx, it)
		}
		if err != nil {
			s.tasks.Enqueued(r.Queue, r.Type, metrics.Invalid)
			out[i].Err = err
			continue
		}
		if len(it.deps) > 0 {
			tied, atTied = append(tied, it), append(atTied, i)
		} else {
			plain, atPlain = append(plain, it), append(atPlain, i)
		}
	}
	if err := submit(ctx, s.batch, plain, atPlain, out); err != nil {
		return nil, err
	}
	err := submit(ctx, s.tied, tied, atTied, out)
	if err != nil && len(plain) > 0 { // those are stored: their callers must be told
		for _, i := range atTied {
			out[i].Err = err
		}
		err = nil
	}
	return out, err
}

// submit hands items over and puts their results at their places in out.
func submit(ctx context.Context, b *batch.Batcher[*item, Result], items []*item, at []int, out []batch.Result[Result]) error {
	if len(items) == 0 {
		return nil
	}
	results, err := b.SubmitAll(ctx, items)
	if err != nil {
		return err
	}
	for i, r := range results {
		out[at[i]] = r
	}
	return nil
}

// flushDistinct stores items that share no id and no key, except known ones.
// If Postgres refuses the data itself, each item is stored alone, so that one
// never sinks the others.
func (s *Stage) flushDistinct(ctx context.Context, items []*item, k *known) []batch.Result[Result] {
	s.batches.Observe(float64(len(items)))
	out, err := s.store(ctx, items, k)
	if err == nil {
		return out
	}
	out = make([]batch.Result[Result], len(items))
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && strings.HasPrefix(e.Code, "22") {
		if len(items) > 1 {
			for i, it := range items {
				out[i] = s.flushDistinct(ctx, []*item{it}, k)[0]
			}
			return out
		}
		err = bad("", "Postgres refused it: %s", e.Message)
	}
	s.countFailed(items)
	if protocol.CodeOf(err) == "" {
		s.o.Log.Warn("a batch was not stored; its callers are told", "tasks", len(items), "error", err)
	}
	for i := range out {
		out[i].Err = err
	}
	return out
}

// lane is one queue's part of a batch.
type lane struct {
	afterID string
	room    bool
	entries []*protocol.TaskEntry
	outbox  int64
}

func (s *Stage) lanes(ctx context.Context, items []*item) map[string]*lane {
	lanes := map[string]*lane{}
	count := map[string]int{}
	for _, it := range items {
		count[it.queue]++
	}
	for queue, n := range count {
		if queue == protocol.QueueInternal { // it has no stream
			lanes[queue] = &lane{}
			continue
		}
		room, afterID, err := s.o.Dispatcher.Room(ctx, queue)
		if err != nil {
			s.o.Log.Debug("tasks wait in Postgres: Redis takes no entries", "queue", queue, "error", err)
		}
		lanes[queue] = &lane{afterID: afterID, room: err == nil && room >= n}
	}
	return lanes
}

func (s *Stage) store(ctx context.Context, items []*item, k *known) ([]batch.Result[Result], error) {
	began, end := s.o.Dispatcher.Begin()
	defer end()
	lanes := s.lanes(ctx, items)
	done := s.o.Dispatcher.TakeDone()
	var created map[protocol.ID]*dbsqlc.InsertTasksRow
	var hits *hits
	again := false
	err := s.judged(ctx, items, func(revision int64) error {
		arg := s.params(items, lanes, done)
		arg.GuardRevision = revision
		err := s.transact(ctx, items, again, func(q *dbsqlc.Queries) (err error) {
			if created, hits, err = s.insert(ctx, q, items, arg, again); err != nil {
				return err
			}
			return s.ask(ctx, q, items, created)
		})
		again = errors.Is(err, errEnded)
		return err
	})
	if err != nil {
		s.o.Dispatcher.GiveBack(done)
		return nil, err
	}
	out := make([]batch.Result[Result], len(items))
	var wake time.Time
	for i, it := range items {
		row := created[it.id]
		if row == nil || hits.lost[it] {
			k.note(it, hits)
			out[i] = hits.result(it)
			continue
		}
		k.ids[it.id] = true
		if it.key != "" {
			k.keys[scopedKey{it.scope, it.key}] = true
		}
		out[i].Value = Result{Task: it.row(row)}
		if row.Direct {
			l := lanes[it.queue]
			s.o.Dispatcher.Expect(row.OutboxID)
			l.outbox, l.entries = row.OutboxID, append(l.entries, it.entry(row))
		} else if wake.IsZero() || row.DueAt.Before(wake) {
			wake = row.DueAt
		}
	}
	for queue, l := range lanes {
		if len(l.entries) > 0 {
			s.o.Dispatcher.Send(ctx, began, l.outbox, queue, l.entries)
		}
	}
	if !wake.IsZero() {
		s.o.Dispatcher.Wake(wake)
	}
	s.count(items, out)
	return out, nil
}

// count counts items by what has become of them.
func (s *Stage) count(items []*item, out []batch.Result[Result]) {
	for i, r := range out {
		outcome := metrics.Created
		switch {
		case r.Err != nil:
			outcome = metrics.Duplicate
		case r.Value.Hit:
			outcome = metrics.Hit
		}
		s.tasks.Enqueued(items[i].queue, items[i].typ, outcome)
	}
}

// countFailed counts items that were not stored.
func (s *Stage) countFailed(items []*item) {
	for _, it := range items {
		s.tasks.Enqueued(it.queue, it.typ, metrics.Failed)
	}
}

// transact runs fn in one transaction. A batch without idempotency keys, stale
// ids and guarded tasks is one statement, which is its own transaction.
func (s *Stage) transact(ctx context.Context, items []*item, again bool, fn func(*dbsqlc.Queries) error) error {
	for _, it := range items {
		if again || it.key != "" || !it.stale.IsZero() || it.guarded {
			return s.o.Store.Tx(ctx, fn)
		}
	}
	return fn(s.o.Store.Queries)
}
