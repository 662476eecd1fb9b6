package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// drainLimit bounds the time from the end of load until everything has ended:
// many visibility timeouts, for tasks whose turn comes late, and what the largest
// backlog needs on a slow machine.
func (h *harness) drainLimit() time.Duration {
	limit := 90 * time.Second
	if h.load.fast != nil {
		limit += time.Duration(h.backlog/drainRate) * time.Second
	}
	return limit
}

// drainRate is how many tasks a second end at least when nothing breaks.
const drainRate = 250

// drain waits until every task has ended and nothing is left in any stream. It
// returns what is left after drainLimit, not counting times in which the
// machine stood still.
func (h *harness) drain(ctx context.Context) []string {
	const every = 200 * time.Millisecond
	for n := 0; ; n++ {
		left := h.left(ctx)
		if len(left) == 0 || n >= int(h.drainLimit()/every) || ctx.Err() != nil {
			return left
		}
		_ = pause(ctx, every)
	}
}

// left lists what is not finished.
func (h *harness) left(ctx context.Context) (left []string) {
	for what, sql := range map[string]string{
		"live tasks":  "SELECT count(*) FROM tasks WHERE state NOT IN ('succeeded', 'failed', 'cancelled')",
		"outbox rows": "SELECT count(*) FROM dispatch_outbox",
	} {
		var n int
		if err := h.db.QueryRow(ctx, sql).Scan(&n); err != nil || n > 0 {
			left = append(left, describe(n, what, err))
		}
	}
	names, err := h.redis.Keys(ctx, protocol.StreamTask+"*").Result()
	if err != nil {
		return append(left, err.Error())
	}
	c, err := streams.New(streams.Options{URL: h.stack.RedisURL, Readers: 1, Name: "chaos"})
	if err != nil {
		return append(left, err.Error())
	}
	defer func() { _ = c.Close() }()
	for _, name := range append(names, protocol.StreamResult, protocol.StreamDLQ) {
		group := protocol.GroupWorkers
		if name == protocol.StreamResult || name == protocol.StreamDLQ {
			group = protocol.GroupOrchestrators
		}
		info, err := c.Info(ctx, name, group)
		if errors.Is(err, streams.ErrNoGroup) {
			continue
		}
		if n := int(info.Undelivered); err != nil || n > 0 {
			left = append(left, describe(n, "undelivered entries of "+name, err))
		}
		if n := int(info.Pending); n > 0 {
			left = append(left, describe(n, "pending entries of "+name, nil))
		}
	}
	return left
}

func describe(n int, what string, err error) string {
	if err != nil {
		return fmt.Sprintf("%s: %v", what, err)
	}
	return fmt.Sprintf("%d %s", n, what)
}

// history reads what the handlers logged and adds what the harness knows.
func (h *harness) history() (*check.History, error) {
	hist := &check.History{
		Visibility: h.visibility, DoubtAfter: doubtAfter, Tasks: h.load.tasks, Executions: map[string][]check.Execution{}, Ended: map[string]time.Time{},
		Frozen: map[string][]check.Span{}, Lossy: h.lossy, Troubled: h.troubled, Stalled: h.stalled, Thefts: h.thefts,
	}
	for _, s := range h.workers {
		lives, _ := s.history()
		for _, l := range lives {
			if err := readLog(hist, l); err != nil {
				return nil, err
			}
		}
	}
	return hist, nil
}

// readLog reads the handlers' log of one process.
func readLog(hist *check.History, l life) error {
	f, err := os.Open(l.log)
	if errors.Is(err, os.ErrNotExist) { // killed before it began
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	type run struct{ task, message string }
	open := map[run]int{}
	worker, last := "", time.Time{}
	// alive notes a sign of life: between two that are far apart the process
	// stood still.
	alive := func(at time.Time) {
		if !last.IsZero() && at.Sub(last) > hist.Visibility/4 {
			hist.Frozen[worker] = append(hist.Frozen[worker], check.Span{From: last, To: at})
		}
		last = at
	}
	in := bufio.NewScanner(f)
	for in.Scan() {
		var x line
		if json.Unmarshal(in.Bytes(), &x) != nil {
			continue // the last line of a process that was killed
		}
		at := time.Unix(0, x.At)
		key := run{x.Task, x.Message}
		switch x.What {
		case whatHello:
			worker = x.Worker
			alive(at)
		case whatPulse:
			alive(at)
		case whatStart:
			open[key] = len(hist.Executions[x.Task])
			hist.Executions[x.Task] = append(hist.Executions[x.Task], check.Execution{
				Delivery: x.Delivery, Attempt: x.Attempt, Worker: worker, Message: x.Message, Start: at,
			})
		case whatEnd:
			if i, ok := open[key]; ok {
				delete(open, key)
				e := &hist.Executions[x.Task][i]
				e.End, e.Ending, e.Cause = at, ending(x.Ending), x.Cause
			}
		}
	}
	if !l.until.IsZero() {
		alive(l.until)
		hist.Ended[worker] = l.until
	}
	return in.Err()
}

// ending returns the constant that says the same: there are millions.
func ending(s string) string {
	for _, e := range []string{check.EndOK, check.EndFailed, check.EndSnoozed, check.EndCancelled} {
		if s == e {
			return e
		}
	}
	return s
}

// records reads all tasks with their events, in order of id.
func (h *harness) records(ctx context.Context) (next func() (*check.Record, error), stop func(), err error) {
	tasks, err := h.db.Acquire(ctx)
	if err != nil {
		return nil, nil, err
	}
	events, err := h.db.Acquire(ctx)
	if err != nil {
		tasks.Release()
		return nil, nil, err
	}
	release := func() { tasks.Release(); events.Release() }
	trows, err := tasks.Query(ctx, `SELECT t.id::text, t.state, t.attempt, t.delivery, COALESCE(t.result->>'sum', ''), COALESCE((t.result->>'delivery')::bigint, 0),
		COALESCE(t.result->>'worker', ''), EXISTS (SELECT FROM dlq_items d WHERE d.task_id = t.id AND d.recorded_at IS NOT NULL)
		FROM tasks t ORDER BY t.id`)
	if err != nil {
		release()
		return nil, nil, err
	}
	erows, err := events.Query(ctx, `SELECT task_id::text, seq, type, status, attempt, delivery, actor, COALESCE(worker_id, ''), COALESCE(message_id, ''),
		COALESCE(error_code, ''), COALESCE(reason, ''), occurred_at FROM event_log WHERE task_id IN (SELECT id FROM tasks) ORDER BY task_id, seq`)
	if err != nil {
		trows.Close()
		release()
		return nil, nil, err
	}
	var ahead check.Event // read, and of a later task
	aheadOf := ""
	read := func() error {
		if aheadOf = ""; !erows.Next() {
			return erows.Err()
		}
		e := &ahead
		*e = check.Event{}
		return erows.Scan(&aheadOf, &e.Seq, &e.Type, &e.Status, &e.Attempt, &e.Delivery, &e.Actor, &e.Worker, &e.Message, &e.Code, &e.Reason, &e.At)
	}
	if err := read(); err != nil {
		trows.Close()
		erows.Close()
		release()
		return nil, nil, err
	}
	return func() (*check.Record, error) {
		if !trows.Next() {
			return nil, trows.Err()
		}
		r := &check.Record{}
		if err := trows.Scan(&r.ID, &r.State, &r.Attempt, &r.Delivery, &r.Sum, &r.ResultDelivery, &r.ResultWorker, &r.DeadLetter); err != nil {
			return nil, err
		}
		for aheadOf == r.ID {
			r.Events = append(r.Events, ahead)
			if err := read(); err != nil {
				return nil, err
			}
		}
		return r, nil
	}, func() { trows.Close(); erows.Close(); release() }, nil
}

// tightGC is how much garbage, in percent of what is used, may pile up in judge.
const tightGC = 30

// judge compares everything.
func (h *harness) judge(ctx context.Context, rep *report) error {
	defer debug.SetGCPercent(debug.SetGCPercent(tightGC)) // all tasks and executions are in memory
	hist, err := h.history()
	if err != nil {
		return err
	}
	next, stop, err := h.records(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if rep.Verdict, err = check.Check(hist, next); err != nil {
		return err
	}
	if err := h.judgeEffects(ctx, hist, rep); err != nil {
		return err
	}
	return h.verify(ctx, rep)
}

// verify does what `orchestrator verify` does.
func (h *harness) verify(ctx context.Context, rep *report) error {
	st, err := store.Open(ctx, store.Options{URL: h.stack.PostgresURL, MaxConns: 2})
	if err != nil {
		return err
	}
	defer st.Close()
	c, err := streams.New(streams.Options{URL: h.stack.RedisURL, Readers: 1, Name: "chaos"})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	sum, err := verify.Run(ctx, verify.Options{Store: st, Redis: c, Report: func(d verify.Difference) {
		rep.Verdict.Fail(check.Violation{Rule: "verify", Text: fmt.Sprintf("%s: %s", d.Check, d)})
	}})
	rep.Verified = sum
	return err
}

// versions asks the stores which they are.
func (h *harness) versions(ctx context.Context) (redis, postgres string) {
	info, err := h.redis.InfoMap(ctx, "server").Result()
	if err == nil {
		redis = info["Server"]["redis_version"]
	}
	_ = h.db.QueryRow(ctx, "SHOW server_version").Scan(&postgres)
	return redis, postgres
}

// census counts goroutines and connections of the processes that were never
// restarted.
func (h *harness) census(ctx context.Context) map[string]int {
	out := map[string]int{}
	o, w := h.orchestrators[0], h.workers[0]
	for _, s := range []*slot{o, w} {
		for to, p := range s.proxies {
			if to != "http" {
				out[s.name+" connections to "+to] = p.Conns()
			}
		}
	}
	if n, err := metric(ctx, o.proxies["http"].URL+"/metrics", "go_goroutines"); err == nil {
		out[o.name+" goroutines"] = n
	}
	lives, _ := w.history()
	if b, err := os.ReadFile(lives[len(lives)-1].log); err == nil {
		if i := bytes.LastIndex(b, []byte(`"goroutines":`)); i >= 0 {
			n, _, _ := bytes.Cut(b[i+len(`"goroutines":`):], []byte("}"))
			out[w.name+" goroutines"], _ = strconv.Atoi(string(n))
		}
	}
	return out
}

// metric reads one number from a metrics page.
func metric(ctx context.Context, url, name string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := (&http.Client{Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	for _, l := range strings.Split(string(b), "\n") {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			f, err := strconv.ParseFloat(rest, 64)
			return int(f), err
		}
	}
	return 0, fmt.Errorf("%s has no %s", url, name)
}
