package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func (e *env) queue(ctx context.Context, name string) (*penstockv1.GetQueueResponse, error) {
	res, err := e.rpc.GetQueue(ctx, connect.NewRequest(&penstockv1.GetQueueRequest{Queue: name}))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func statesOf(q *penstockv1.GetQueueResponse) (out string) {
	for _, s := range q.States {
		out += fmt.Sprintf("%s %d ", s.State, s.Count)
	}
	return strings.TrimSpace(out)
}

// TestQueues: how queues stand, which there are, and which there are not.
func TestQueues(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for queue, n := range map[string]int{"": 1, "mail": 3, "mails": 1} {
		for i := range n {
			r := &penstockv1.EnqueueRequest{Queue: queue, Type: "x"}
			if i == 1 || queue == "mails" {
				r.ScheduleType, r.DelayMs = "delay", later
			}
			e.enqueue(t, r)
		}
	}
	// As if the first had been enqueued long ago.
	c := e.conn(t)
	if _, err := c.Exec(t.Context(), `UPDATE tasks SET created_at = created_at - interval '1 hour', updated_at = updated_at - interval '1 hour' WHERE queue = 'mail' AND state = 'queued'
		AND id = (SELECT min(id::text)::uuid FROM tasks WHERE queue = 'mail' AND state = 'queued')`); err != nil {
		t.Fatal(err)
	}
	type stand struct {
		stream                                           string
		undelivered, pending, length, backlog, scheduled int64
		states                                           string
		enqueued                                         int
	}
	for queue, want := range map[string]stand{
		"":      {"stream:task", 1, 0, 1, 0, 0, "queued 1", 1},
		"mail":  {"stream:task:mail", 2, 0, 2, 0, 1, "pending 1 queued 2", 2}, // one was enqueued an hour ago
		"mails": {"stream:task:mails", 0, 0, 0, 0, 1, "pending 1", 1},
	} {
		// What is said of rates and states is up to 2 s old.
		testkit.Eventually(t, "queue "+queue, func() (bool, string) {
			q, err := e.queue(t.Context(), queue)
			if err != nil {
				return false, err.Error()
			}
			got := stand{q.Stream, q.Undelivered, q.Pending, q.Length, q.Backlog, q.Scheduled, statesOf(q), int(q.Rates.Enqueued*float64(q.Rates.WindowMs)/1000 + 0.5)}
			return got == want && !q.AtLeast && q.Rates.WindowMs == 60_000, fmt.Sprintf("%+v: %v; want %+v", got, q, want)
		})
	}
	mail, err := e.queue(t.Context(), "mail")
	if err != nil || mail.OldestWaitingMs < 3_600_000 || mail.OldestWaitingMs > 3_600_000+testkit.Deadline.Milliseconds()*10 {
		t.Errorf("mail waits for an hour: %v, %v", mail, err)
	}
	if mails, err := e.queue(t.Context(), "mails"); err != nil || mails.OldestWaitingMs != 0 {
		t.Errorf("nothing of mails is due: %v, %v", mails, err)
	}

	for name, text := range map[string]string{
		"mailz": "did you mean mail or mails?", "mial": "did you mean mail?", "list": "there are default, mail, mails", "nothing": "no queue", protocol.QueueInternal: "no queue",
	} {
		_, err := e.queue(t.Context(), name)
		if info := rpc.InfoOf(err); info == nil || info.Code != string(protocol.CodeNotFound) || info.Field != "queue" || !strings.Contains(info.Message, text) {
			t.Errorf("queue %q: %v, want %q", name, err, text)
		}
	}

	var names []string
	for token := ""; ; {
		res, err := e.rpc.ListQueues(t.Context(), connect.NewRequest(&penstockv1.ListQueuesRequest{PageSize: 2, PageToken: token}))
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range res.Msg.Queues {
			names = append(names, q.Queue)
			if one, err := e.queue(t.Context(), q.Queue); err != nil || one.Undelivered != q.Undelivered || one.Scheduled != q.Scheduled {
				t.Errorf("listed %v, got %v, %v", q, one, err)
			}
		}
		if token = res.Msg.NextPageToken; token == "" {
			break
		}
	}
	if !slices.Equal(names, []string{"default", "mail", "mails"}) {
		t.Errorf("queues %v", names)
	}
	for field, req := range map[string]*penstockv1.ListQueuesRequest{
		"page_size": {PageSize: 201}, "page_token": {PageToken: "mail"},
	} {
		if _, err := e.rpc.ListQueues(t.Context(), connect.NewRequest(req)); rpc.InfoOf(err).GetField() != field {
			t.Errorf("%v: %v", req, err)
		}
	}
}

// TestQueueRates: how tasks ended, and a queue whose tasks are all over.
func TestQueueRates(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.stores.StartWorker(t, worker.Options{Queues: []string{"work"}}, func(w *worker.Worker) {
		w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
		w.HandleRaw("bad", func(context.Context, *task.Raw) (json.RawMessage, error) {
			return nil, task.Permanent(context.Canceled)
		})
	})
	for range 3 {
		e.enqueue(t, &penstockv1.EnqueueRequest{Queue: "work", Type: "ok"})
	}
	e.enqueue(t, &penstockv1.EnqueueRequest{Queue: "work", Type: "bad"})
	id := e.enqueue(t, &penstockv1.EnqueueRequest{Queue: "work", Type: "ok", ScheduleType: "delay", DelayMs: later}).TaskId
	if _, err := e.rpc.CancelTask(t.Context(), connect.NewRequest(&penstockv1.CancelTaskRequest{TaskId: id})); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "all have ended", func() (bool, string) {
		q, err := e.queue(t.Context(), "work")
		if err != nil {
			return false, err.Error()
		}
		var got [4]int
		for i, r := range []float64{q.Rates.Enqueued, q.Rates.Succeeded, q.Rates.Failed, q.Rates.Cancelled} {
			got[i] = int(r*float64(q.Rates.WindowMs)/1000 + 0.5)
		}
		return got == [4]int{5, 3, 1, 1} && statesOf(q) == "" && q.OldestWaitingMs == 0 && q.Pending == 0, fmt.Sprintf("%v: %v", got, q)
	})
}
