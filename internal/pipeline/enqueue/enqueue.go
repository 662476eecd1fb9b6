package enqueue

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-dev/penstock/internal/batch"
	"github.com/penstock-dev/penstock/internal/crashpoint"
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
	// Hit: the task existed already with the same fields.
	Hit bool
	// Of a new task what was asked for and what was stored, else what there was.
	it       *item
	stored   *dbsqlc.InsertTasksRow
	existing *dbsqlc.Task
}

// TaskID is the id that callers know the task by.
func (r Result) TaskID() string {
	if r.existing != nil {
		return store.TaskID(protocol.ID(r.existing.ID), store.Deref(r.existing.Name))
	}
	return r.it.taskID()
}

// Task makes the task as it was when it was stored, or found.
func (r Result) Task() *dbsqlc.Task {
	if r.existing != nil {
		return r.existing
	}
	return r.it.row(r.stored)
}

// Stage accepts tasks. It is safe for concurrent use.
type Stage struct {
	o       Options
	single  *batch.Batcher[*item, Result] // of calls with few tasks: they don't wait behind whole batches
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
	half := o.Batch // as much as one lane would have
	half.Waiting, half.WaitingSize = (half.Waiting+1)/2, half.WaitingSize/2
	s.single, s.batch = batch.NewSized(half, size, s.flush), batch.NewSized(half, size, s.flush)
	s.tied, s.graphs = batch.NewSized(o.Batch, size, s.flush), newSlots(maxGraphs)
	if o.Metrics != nil {
		o.Metrics.MustRegister(s.batches)
	}
	return s
}

// Close refuses new requests and waits until those accepted are committed.
func (s *Stage) Close(ctx context.Context) error {
	return errors.Join(s.single.Close(ctx), s.batch.Close(ctx), s.tied.Close(ctx), s.graphs.close(ctx))
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
	return s.single.Submit(ctx, it)
}

// fewTasks are so few of a call that they go with the single ones.
const fewTasks = 16

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
	lane := s.batch
	if len(plain) <= fewTasks {
		lane = s.single
	}
	if err := submit(ctx, lane, plain, atPlain, out); err != nil {
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

// lane is one queue's part of a transaction.
type lane struct {
	afterID string
	room    bool
}

// lanes asks for room in the streams of the items that may go straight there; the
// others wait in Postgres in any case.
func (s *Stage) lanes(ctx context.Context, items []*item) map[string]*lane {
	lanes := map[string]*lane{}
	count := map[string]int{}
	for _, it := range items {
		if lanes[it.queue] == nil {
			lanes[it.queue] = &lane{}
		}
		if len(it.deps) == 0 && it.queue != protocol.QueueInternal { // that has no stream
			count[it.queue]++
		}
	}
	for queue, n := range count {
		room, afterID, err := s.o.Dispatcher.Room(ctx, queue)
		if err != nil {
			s.o.Log.Debug("tasks wait in Postgres: Redis takes no entries", "queue", queue, "error", err)
		}
		lanes[queue] = &lane{afterID: afterID, room: err == nil && room >= n}
	}
	return lanes
}

// goneTries is how often a transaction is repeated because a task that a new one
// depends on was removed in the middle of it.
const goneTries = 3

// store stores items in one transaction, and puts those that may start into their
// streams. Of a graph the first fault is the error, an *itemError; else each item has
// its own result.
func (s *Stage) store(ctx context.Context, items []*item, g *graph) (*intake, error) {
	s.batches.Observe(float64(len(items)))
	lanes := s.lanes(ctx, items)
	began, end := s.o.Dispatcher.Begin()
	defer end()
	done := s.o.Dispatcher.TakeDone()
	var t *intake
	look := false
	store := func() error {
		return s.judged(ctx, items, func(revision int64) error {
			t = &intake{s: s, items: items, g: g, lanes: lanes, done: done, revision: revision, look: look}
			err := t.transact(ctx)
			look = look || errors.Is(err, errEnded)
			return err
		})
	}
	err := store()
	for try := 1; try < goneTries && missing(err); try++ {
		err = store()
	}
	if err != nil {
		s.o.Dispatcher.GiveBack(done)
		if missing(err) {
			err = ErrGone
		}
		return nil, err
	}
	if t.tied() {
		crashpoint.Here("enqueue.graph_committed")
	}
	s.send(ctx, t, began)
	s.count(items, t.out)
	return t, nil
}

func missing(err error) bool {
	_, ok := errors.AsType[*store.MissingError](err)
	return ok
}

func (t *intake) transact(ctx context.Context) error {
	if t.single() {
		return t.run(ctx, t.s.o.Store.Queries)
	}
	return t.s.o.Store.Tx(ctx, func(q *dbsqlc.Queries) error { return t.run(ctx, q) })
}

// send puts what was committed into its streams.
func (s *Stage) send(ctx context.Context, t *intake, began time.Time) {
	var wake time.Time
	type part struct {
		outbox int64
		queue  string
	}
	var parts []part
	entries := map[part][]*protocol.TaskEntry{}
	for _, it := range t.items {
		row := t.created[it.id]
		switch {
		case !t.stored(it):
		case row.Direct:
			p := part{row.OutboxID, it.queue}
			if entries[p] == nil {
				parts = append(parts, p)
				s.o.Dispatcher.Expect(p.outbox)
			}
			entries[p] = append(entries[p], it.entry(row))
		case len(it.upstreams) == 0 && (wake.IsZero() || row.DueAt.Before(wake)):
			wake = row.DueAt
		}
	}
	for _, p := range parts {
		s.o.Dispatcher.Send(ctx, began, p.outbox, p.queue, entries[p])
	}
	if !wake.IsZero() {
		s.o.Dispatcher.Wake(wake)
	}
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
