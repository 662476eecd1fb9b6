package acceptance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const (
	// connectTime bounds the search for each side.
	connectTime = 10 * time.Second
	// settleTime bounds the cleaning up.
	settleTime = 15 * time.Second
	look       = 20 * time.Millisecond
)

// run is one acceptance under way.
type run struct {
	o       Options
	name    string // of the queue; other queues have it as their beginning
	redis   *streams.Client
	seed    []byte
	started time.Time

	dbMu sync.Mutex
	db   *pgx.Conn

	seen    *sightings // what the workers saw
	effects *receiver
	gate    shared[*gateReport]
	figures shared[*figures]

	mu    sync.Mutex
	ids   []string // of all tasks
	lines []Line
	stops []func() error
}

// shared is found out once, by whoever asks first.
type shared[T any] struct {
	once sync.Once
	v    T
	err  error
}

func (s *shared[T]) get(find func() (T, error)) (T, error) {
	s.once.Do(func() { s.v, s.err = find() })
	return s.v, s.err
}

// Run runs the lines. Any number of acceptances may run at the same time. The
// error says why there is no report: something can't be reached, or does not
// belong together. A line that fails is no error.
func Run(ctx context.Context, o Options) (*Report, error) {
	cs, err := selected(o.Only)
	if err == nil {
		err = o.complete()
	}
	if err != nil {
		return nil, err
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	r := &run{o: o, name: "acceptance-" + hex.EncodeToString(random[:]), started: time.Now(), seen: newSightings(), effects: newReceiver()}
	if err := r.connect(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	limit, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	err = r.startWorker(r.name, 64, r.handlers())
	if err == nil {
		r.all(limit, cs)
		err = ctx.Err()
	}
	left := r.clean()
	err = errors.Join(err, r.close())
	if err != nil {
		if left != "" {
			err = fmt.Errorf("%w; left behind: %s", err, left)
		}
		return nil, err
	}
	return r.report(left), nil
}

// connect reaches all sides before anything is enqueued.
func (r *run) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	d, err := r.o.Client.RPC().GetDeployment(ctx, connect.NewRequest(&penstockv1.GetDeploymentRequest{}))
	if err != nil {
		return err
	}
	if r.seed, err = hex.DecodeString(d.Msg.Seed); err != nil {
		return fmt.Errorf("the deployment's seed: %w", err)
	}
	if r.redis, err = streams.New(streams.Options{URL: r.o.RedisURL, Prefix: r.o.RedisKeyPrefix, Readers: 1, Name: "acceptance", Log: r.o.Log}); err != nil {
		return err
	}
	if _, err = r.redis.Info(ctx, protocol.StreamResult, protocol.GroupOrchestrators); err != nil {
		if errors.Is(err, streams.ErrNoGroup) {
			return fmt.Errorf("no orchestrator uses this Redis: %s has no group %s; is redis.url the orchestrator's?", protocol.StreamResult, protocol.GroupOrchestrators)
		}
		return err
	}
	return r.connectPostgres(ctx, d.Msg.DeploymentId)
}

func (r *run) connectPostgres(ctx context.Context, deployment string) error {
	var err error
	if r.db, err = pgx.Connect(ctx, r.o.PostgresURL); err != nil {
		return err
	}
	if r.o.Role != "" {
		if _, err := r.db.Exec(ctx, "SET ROLE "+pgx.Identifier{r.o.Role}.Sanitize()); err != nil {
			return err
		}
	}
	var id string
	if err := r.db.QueryRow(ctx, "SELECT id::text FROM deployment").Scan(&id); err != nil {
		return fmt.Errorf("read the deployment in Postgres: %w", err)
	}
	if id != deployment {
		return fmt.Errorf("this Postgres is deployment %s, the RPC's is %s; is postgres.url the orchestrator's?", id, deployment)
	}
	return nil
}

// all runs the checks: at the same time, except for those that measure. They
// come when only what waits for the visibility timeout is left.
func (r *run) all(ctx context.Context, cs []check) {
	var quick, slow sync.WaitGroup
	for _, c := range cs {
		switch {
		case c.slow:
			slow.Go(func() { r.one(ctx, c) })
		case !c.measures:
			quick.Go(func() { r.one(ctx, c) })
		}
	}
	quick.Wait()
	for _, c := range cs {
		if c.measures {
			r.one(ctx, c)
		}
	}
	slow.Wait()
}

// one runs a check and reports its line.
func (r *run) one(ctx context.Context, c check) {
	began := time.Now()
	limit := r.o.limit(c)
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var f finding
	err := c.run(own, r, &f)
	l := Line{Name: c.name, Title: c.title, Notes: f.notes}
	l.Verdict, l.Reasons = f.verdict(err, own.Err() != nil, ctx.Err() != nil, limit, time.Since(began))
	l.Seconds = time.Since(began).Seconds()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, l)
	r.o.Report(l) // one at a time
}

// verdict says what a check that ended with err found. over: its own time was
// over, after limit; cut: that of the whole was, which says nothing. What was
// wrong before stays wrong.
func (f *finding) verdict(err error, over, cut bool, limit, took time.Duration) (Verdict, []string) {
	reasons := slices.Clone(f.wrong)
	sure := len(f.wrong) > 0 && !f.unsure
	switch {
	case err == nil && len(f.wrong) == 0:
		return Pass, nil
	case err == nil:
	case cut:
		reasons = append(reasons, fmt.Sprintf("stopped after %s, when the time for all lines was over: %v", took.Round(time.Second), err))
	case over:
		reasons, sure = append(reasons, fmt.Sprintf("after %s: %v", limit, err)), true
	default:
		reasons, sure = append(reasons, err.Error()), true
	}
	if sure {
		return Fail, reasons
	}
	return Inconclusive, reasons
}

func (r *run) report(left string) *Report {
	order := Names()
	slices.SortFunc(r.lines, func(a, b Line) int { return slices.Index(order, a.Name) - slices.Index(order, b.Name) })
	rep := &Report{Queue: r.name, Lines: r.lines, Left: left}
	for _, l := range r.lines {
		switch l.Verdict {
		case Pass:
			rep.Passed++
		case Fail:
			rep.Failed++
		default:
			rep.Inconclusive++
		}
	}
	return rep
}

// close releases what connect opened.
func (r *run) close() (err error) {
	if r.redis != nil {
		err = r.redis.Close()
	}
	if r.db != nil {
		ctx, cancel := context.WithTimeout(context.Background(), settleTime)
		defer cancel()
		err = errors.Join(err, r.db.Close(ctx))
	}
	return err
}
