package reclaim_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/lifecycle"
	"github.com/penstock-dev/penstock/internal/pipeline/reclaim"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A loop that fails in every round makes the process not ready.
func TestPulseOfReclaimThatFails(t *testing.T) {
	t.Parallel()
	r := rig(t)
	var pulse lifecycle.Pulse
	c := reclaim.New(reclaim.Options{
		Store: r.Store, Redis: r.Client, Consumer: "c", VisibilityTimeout: time.Millisecond, Interval: 10 * time.Millisecond,
		Queues: func(context.Context) ([]string, error) { return nil, errors.New("no queues") },
		Pulse:  &pulse, Log: slog.New(slog.DiscardHandler),
	})
	c.ReportAfter(0)
	r.Start(t, c.Run)
	testkit.Eventually(t, "the pulse shows it", func() (bool, string) { return pulse.Check() != nil, "" })
}

// A key of the wrong type in one queue's place, for good, does not hold up the
// reclaiming of another queue.
func TestOneQueueInTroubleHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := rigWith(t, s, time.Second)
	reqs := testkit.Requests(2, "t")
	reqs[1].Queue = "aaa"
	ids := r.Enqueue(t, reqs...)
	if err := r.Raw.Set(t.Context(), protocol.TaskStream("aaa"), "no stream", 0).Err(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	c := reclaim.New(reclaim.Options{
		Store: r.Store, Redis: r.Client, DeadLetters: r.DeadLetter, Consumer: r.Consumer, VisibilityTimeout: time.Second, Env: r.Env,
		Queues: func(context.Context) ([]string, error) { return []string{"aaa", protocol.DefaultQueue}, nil },
		Wake:   r.Dispatch.Wake, Dead: r.DeadLetter.Kick, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	for range 2 {
		r.Fetch(t, "dead", 1)
		n := r.Row(t, ids[0]).Interruptions
		testkit.Eventually(t, "the lost worker's task is interrupted", func() (bool, string) {
			row := r.Row(t, ids[0])
			return row.Interruptions > n, fmt.Sprintf("%+v", row)
		})
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	said := log.String()
	if strings.Contains(said, "until the stores are back") || strings.Count(said, "in a queue") != 1 {
		t.Errorf("want the trouble logged once and nothing held up, got:\n%s", said)
	}
}
