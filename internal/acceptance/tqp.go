package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// tqp1 has a queue of its own, so that what is pending in it is the task's.
func tqp1(ctx context.Context, r *run, f *finding) error {
	q := r.queue(queueAck)
	stop, err := r.work(q, 1, r.handlers())
	if err != nil {
		return err
	}
	s, err := r.live(ctx, script{}, func(t *task.Request) { t.Queue = q })
	if err == nil {
		judgeSuccess(f, s)
		info, aerr := r.acked(ctx, q)
		judgeAcked(f, info, aerr)
	}
	if serr := stop(); err == nil {
		err = serr
	}
	return err
}

// acked waits a moment for the XACK, which follows the outcome.
func (r *run) acked(ctx context.Context, queue string) (info streams.GroupInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	err = r.until(ctx, func() (bool, error) {
		info, err = r.redis.Info(ctx, protocol.TaskStream(queue), protocol.GroupWorkers)
		return err == nil && info.Pending == 0 && info.Undelivered == 0, err
	})
	return info, err
}

func judgeAcked(f *finding, info streams.GroupInfo, err error) {
	switch {
	case info.Pending > 0 || info.Undelivered > 0:
		f.wrongf("%d entries are pending and %d undelivered, want none", info.Pending, info.Undelivered)
	case err != nil:
		f.wrongf("whether it was acknowledged is not known: %v", err)
	case info.LastDelivered == "0-0" || info.LastDelivered == "":
		f.wrongf("no entry was ever delivered")
	default:
		f.notef("pending=%d", info.Pending)
	}
}

func judgeSuccess(f *finding, s *story) {
	s.whole(f)
	s.ended(f, protocol.StateSucceeded, 1, "")
	if !inOrder(types(s.events), "created", "claimed", "succeeded") {
		f.wrongf("the log says: %s", types(s.events))
	}
	if got := s.path(protocol.VocabularyTQP); got != "queued -> running -> succeeded" {
		f.wrongf("its states were: %s", got)
	}
	if len(s.seen) != 1 {
		f.wrongf("the handler was called %d times, want once", len(s.seen))
	}
	f.notef("task %s: %s", s.task.TaskId, types(s.events))
}

// inOrder reports whether words begin with the first and end with the last, and
// have all of them in order, once each.
func inOrder(words string, want ...string) bool {
	all := strings.Fields(words)
	at := -1
	for _, w := range want {
		i := slices.Index(all, w)
		if i <= at || slices.Contains(all[i+1:], w) {
			return false
		}
		at = i
	}
	return all[0] == want[0] && all[len(all)-1] == want[len(want)-1]
}

func tqp2(ctx context.Context, r *run, f *finding) error {
	s, err := r.live(ctx, script{Fail: always, RequestID: r.name}, nil)
	if err != nil {
		return err
	}
	var entry map[string]any
	err = r.redis.Range(ctx, protocol.StreamDLQ, streams.Before(streams.IDAt(r.started.Add(-time.Minute))), func(e streams.Entry) bool {
		if e.Values[protocol.FieldTaskID] == s.task.TaskId {
			entry = e.Values
		}
		return entry == nil
	})
	if err != nil {
		return err
	}
	judgeDead(f, s, entry)
	return nil
}

// judgeDead judges a task with three retries that never succeeded, and its
// entry in stream:dlq.
func judgeDead(f *finding, s *story, entry map[string]any) {
	s.whole(f)
	s.ended(f, protocol.StateFailed, 4, protocol.CodeRetryExhausted)
	if got := fmt.Sprint(s.attempts()); got != "[1 2 3 4]" {
		f.wrongf("the handler saw attempts %s, want [1 2 3 4]", got)
	}
	for typ, want := range map[protocol.EventType]int{
		protocol.EventCreated: 1, protocol.EventClaimed: 4, protocol.EventRetryScheduled: 3, protocol.EventDLQ: 2, protocol.EventFailed: 1,
	} {
		if got := s.count(typ); got != want {
			f.wrongf("the log has %d events %s, want %d: %s", got, typ, want, types(s.events))
		}
	}
	if entry == nil {
		f.wrongf("task %s is not in %s", s.task.TaskId, protocol.StreamDLQ)
		return
	}
	for _, name := range []string{"task_id", "tool_name", "payload", "error", "retry_count", "failed_at"} {
		if v, ok := entry[name].(string); !ok || v == "" {
			f.wrongf("its entry in %s has no %s", protocol.StreamDLQ, name)
		}
	}
	text := func(name string) string { v, _ := entry[name].(string); return v }
	if text("tool_name") != s.task.Type || text("retry_count") != "3" {
		f.wrongf("its entry in %s says tool_name %s, retry_count %s; want %s, 3", protocol.StreamDLQ, text("tool_name"), text("retry_count"), s.task.Type)
	}
	if !sameJSON([]byte(text("payload")), s.task.Payload) {
		f.wrongf("its entry in %s has payload %s, want %s", protocol.StreamDLQ, text("payload"), s.task.Payload)
	}
	f.notef("task %s: %s", s.task.TaskId, s.path(protocol.VocabularyB2))
}

func sameJSON(a, b []byte) bool {
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && x.String() == y.String()
}

// tqp3: a worker takes the entry, says that it runs, and is never heard of
// again. Then a worker is started.
func tqp3(ctx context.Context, r *run, f *finding) error {
	q, gone := r.queue(queueStop), r.name+"-stopped-worker"
	e, err := r.enqueue(ctx, r.request(script{}, func(t *task.Request) { t.Queue, t.Timeout = q, r.patience() }))
	if err != nil {
		return err
	}
	entry, t, err := r.held(ctx, q, gone)
	if err != nil {
		return err
	}
	claim := &protocol.Outcome{ID: t.ID, Delivery: t.Delivery, Kind: protocol.OutcomeClaimed, WorkerID: gone, MessageID: entry.ID, StartedAt: time.Now(), Delay: -1}
	if a := r.redis.Append(ctx, protocol.StreamResult, [][]any{claim.Values()})[0]; a.Err != nil {
		return a.Err
	}
	stop, err := r.work(q, 1, r.handlers())
	if err != nil {
		return err
	}
	s, err := r.follow(ctx, e.TaskID)
	if err == nil {
		judgeReclaimed(f, s, gone, entry.ID, r.o.VisibilityTimeout)
	}
	if serr := stop(); err == nil {
		err = serr
	}
	return err
}

// judgeReclaimed judges a task that one worker took and left, and another one
// completed. Redis' and Postgres' clocks may differ a little.
func judgeReclaimed(f *finding, s *story, gone, messageID string, visibility time.Duration) {
	s.whole(f)
	s.ended(f, protocol.StateSucceeded, 1, "")
	if s.task.Interruptions != 1 || s.task.RetryCount != 0 {
		f.wrongf("it counts %d interruptions and %d retries, want 1 and 0", s.task.Interruptions, s.task.RetryCount)
	}
	if len(s.seen) != 1 || s.seen[0].Delivery <= 1 {
		f.wrongf("the second worker saw %v, want one execution under a later delivery", s.seen)
	}
	ev, claimed := s.of(protocol.EventReclaimed), s.of(protocol.EventClaimed)
	if ev == nil || claimed == nil {
		f.wrongf("the log has no claim, or no task.reclaimed: %s", types(s.events))
		return
	}
	var d protocol.ReclaimData
	if err := json.Unmarshal(ev.Data, &d); err != nil || d.OriginalConsumer != gone || d.NewConsumer == "" || d.NewConsumer == gone || d.MessageID != messageID {
		f.wrongf("task.reclaimed says %s, want original_consumer %s, message_id %s and a new_consumer", ev.Data, gone, messageID)
	}
	const skew = 500 * time.Millisecond
	waited := ev.OccurredAt.AsTime().Sub(claimed.OccurredAt.AsTime())
	if waited < visibility-max(skew, visibility/10) {
		f.wrongf("it was reclaimed after %s, before the visibility timeout of %s", waited.Round(time.Millisecond), visibility)
	}
	f.notef("task %s: reclaimed after %s: %s", s.task.TaskId, waited.Round(time.Millisecond), types(s.events))
}

// tqp4: the effect is done in an execution that fails, asked for again in one
// that is lost, and again in one that succeeds. The request is sent twice.
func tqp4(ctx context.Context, r *run, f *finding) error {
	if r.o.Server == "" {
		f.wrongf("the RPC's address is not known, which workers need for the ledger of effects")
		return nil
	}
	key := r.name + "-effect"
	req := r.request(script{Fail: 1, Restart: []int64{2}}, func(t *task.Request) { t.Type, t.Key, t.Timeout = typeEffect, key, r.patience() })
	e, err := r.enqueue(ctx, req)
	if err != nil {
		return err
	}
	again := *req
	again.TaskID = ""
	second, err := r.enqueue(ctx, &again)
	if err != nil {
		return err
	}
	if second.TaskID != e.TaskID {
		f.wrongf("the same key made two tasks, %s and %s", e.TaskID, second.TaskID)
	}
	s, err := r.follow(ctx, e.TaskID)
	if err != nil {
		return err
	}
	calls, receipts := r.effects.record(key)
	judgeEffect(f, s, calls, receipts)
	return nil
}

func judgeEffect(f *finding, s *story, calls int, receipts []string) {
	s.whole(f)
	s.ended(f, protocol.StateSucceeded, 2, "")
	if calls != 1 {
		f.wrongf("the receiver was called %d times, want once", calls)
	}
	if len(s.seen) < 3 {
		f.wrongf("there were %d executions, want at least three: one that fails, one that is lost, one that succeeds", len(s.seen))
	}
	if len(receipts) != len(s.seen) || len(slices.Compact(slices.Clone(receipts))) != 1 {
		f.wrongf("%d executions got results %q, want the same one each time", len(s.seen), receipts)
	}
	f.notef("task %s: %d executions, %d call", s.task.TaskId, len(s.seen), calls)
}
