package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// payload is what a task carries: what its handler is to do.
type payload struct {
	N    int    `json:"n"`
	Kind string `json:"kind"`
	// MS is how long the handler takes.
	MS int `json:"ms,omitempty"`
	// Fail is how many attempts fail; Permanent: for good.
	Fail      int  `json:"fail,omitempty"`
	Permanent bool `json:"permanent,omitempty"`
	// Snooze: the first delivery is snoozed for this many milliseconds.
	Snooze int    `json:"snooze,omitempty"`
	Pad    string `json:"pad,omitempty"`
	// Effect: the handler makes one, once; who ends doubts about it. Hold is how many
	// milliseconds the receiver takes to answer.
	Effect string `json:"effect,omitempty"`
	Hold   int    `json:"hold,omitempty"`
}

// sum is the handler's work: any other worker computes the same.
func (p *payload) sum() string {
	s := sha256.Sum256(fmt.Appendf(nil, "%d %s %s", p.N, p.Kind, p.Pad))
	return hex.EncodeToString(s[:8])
}

// answer is a task's result.
type answer struct {
	Sum string `json:"sum"`
	// Delivery and Worker tell which execution computed it.
	Delivery int64  `json:"delivery"`
	Worker   string `json:"worker"`
	// Receipt is the receiver's count of the effect, if the task has one.
	Receipt int `json:"receipt,omitempty"`
}

// line is one line of the handlers' log.
type line struct {
	At       int64  `json:"at"` // Unix time in nanoseconds
	What     string `json:"what"`
	Worker   string `json:"worker,omitempty"`
	Task     string `json:"task,omitempty"`
	Delivery int64  `json:"delivery,omitempty"`
	Attempt  int    `json:"attempt,omitempty"`
	Message  string `json:"message,omitempty"`
	Ending   string `json:"ending,omitempty"`
	Cause    string `json:"cause,omitempty"`
	// Goroutines is the process' number, with each sign of life, less those of calls
	// of effects under way, which take long on purpose.
	Goroutines int `json:"goroutines,omitempty"`
}

// What lines tell.
const (
	whatHello = "hello"
	whatStart = "start"
	whatEnd   = "end"
	whatPulse = "pulse"
)

// pulseEvery is how often a worker shows that it runs.
const pulseEvery = 100 * time.Millisecond

// journal is the handlers' log of one process. Each line is one write, so that
// it survives kill -9.
type journal struct{ f *os.File }

func (j journal) write(l line) {
	l.At = time.Now().UnixNano()
	b, err := json.Marshal(l)
	if err == nil {
		_, err = j.f.Write(append(b, '\n'))
	}
	if err != nil { // without it the run proves nothing
		fmt.Fprintln(os.Stderr, "chaos: handlers' log:", err)
		os.Exit(1)
	}
}

// taskType is the type of all tasks.
const taskType = "chaos.task"

// work is the worker program: its settings are in the environment, see
// worker.FromEnv, its argument is the handlers' log.
func work(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: chaos worker LOG")
	}
	f, err := os.OpenFile(args[0], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the handlers' log: %w", err)
	}
	j, c := journal{f}, caller{url: os.Getenv(envReceiver), slot: os.Getenv(envSlot), open: &atomic.Int64{}}
	o := worker.FromEnv()
	o.Name, o.Log = "chaos", slog.New(slog.NewTextHandler(os.Stderr, nil))
	w, err := worker.New(o)
	if err != nil {
		return err
	}
	c.worker = w.ID()
	j.write(line{What: whatHello, Worker: w.ID()})
	w.HandleRaw(taskType, func(ctx context.Context, r *task.Raw) (json.RawMessage, error) { return j.handle(ctx, w.ID(), r, c) })
	go func() {
		for range time.Tick(pulseEvery) {
			j.write(line{What: whatPulse, Goroutines: runtime.NumGoroutine() - perConn*int(c.open.Load())})
		}
	}()
	return w.Run(context.Background())
}

// handle does what the payload says and logs its start and end.
func (j journal) handle(ctx context.Context, id string, r *task.Raw, c caller) (json.RawMessage, error) {
	l := line{What: whatStart, Task: r.ID, Delivery: r.Delivery, Attempt: r.Attempt, Message: r.MessageID}
	j.write(l)
	res, ending, err := perform(ctx, id, r, c)
	if l.What, l.Ending = whatEnd, ending; ending == check.EndCancelled {
		l.Cause = context.Cause(ctx).Error()
	}
	j.write(l)
	return res, err
}

func perform(ctx context.Context, id string, r *task.Raw, c caller) (res json.RawMessage, ending string, err error) {
	var p payload
	if err := json.Unmarshal(r.Payload, &p); err != nil {
		return nil, check.EndFailed, task.InvalidInput(err)
	}
	select {
	case <-ctx.Done():
		return nil, check.EndCancelled, ctx.Err()
	case <-time.After(time.Duration(p.MS) * time.Millisecond):
	}
	switch {
	case p.Effect != "":
		return c.charge(ctx, id, r, &p)
	case p.Permanent:
		return nil, check.EndFailed, task.Permanent(errors.New("this task always fails"))
	case r.Attempt <= p.Fail:
		return nil, check.EndFailed, fmt.Errorf("attempt %d of a task that fails %d times", r.Attempt, p.Fail)
	case p.Snooze > 0 && r.Delivery == 1:
		return nil, check.EndSnoozed, task.Snooze(time.Duration(p.Snooze) * time.Millisecond)
	}
	res, err = json.Marshal(answer{Sum: p.sum(), Delivery: r.Delivery, Worker: id})
	return res, check.EndOK, err
}
