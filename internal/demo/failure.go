package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// Command runs one of Penstock's programs on the demo's system and returns its
// exit code. as is the person whose token it sends; empty: nobody's.
type Command func(ctx context.Context, system System, as string, argv ...string) int

// System is what a command needs to know to reach the demo's system.
type System struct {
	Server, PostgresURL, RedisURL string
	// TokenFiles has each person's.
	TokenFiles map[string]string
}

// The people of the failure tour.
const (
	alice = "alice"
	bob   = "bob"
)

// people are those who have a token, with their roles.
var people = []string{alice + " roles=producer,operator,approver", bob + " roles=operator,approver"}

// send is the type of the failure tour; its handler fails as its payload says.
var send = task.Define[injected]("demo.send")

type injected struct {
	Mode     inject.Mode `json:"mode"`
	Attempts []int       `json:"attempts,omitempty"`
	Text     string      `json:"text,omitempty"`
}

// failures shows what happens when tasks fail: a retry, a dead letter that is
// edited and requeued, and one that two people give up.
func (r *run) failures(ctx context.Context) error {
	r.printf("\n== When a task fails ==\n")
	if err := r.retried(ctx); err != nil {
		return err
	}
	mend, err := r.deadLetter(ctx, "no such address")
	if err != nil {
		return err
	}
	r.printf("\nTwo tasks can't succeed. An operator looks, mends one and sends it again:\n")
	steps := [][]string{
		{"dlq-replay", "show", mend},
		{"dlq-replay", "edit", mend, "--unset", "text", "--set", "mode=null", "--reason", "address corrected"},
		{"dlq-replay", "requeue", mend},
	}
	giveUp, err := r.deadLetter(ctx, "the mailbox was closed")
	if err != nil {
		return err
	}
	for _, argv := range append([][]string{{"dlq-replay", "list"}}, steps...) {
		if err := r.command(ctx, 0, alice, argv...); err != nil {
			return err
		}
	}
	if err := r.requeued(ctx, mend); err != nil {
		return err
	}
	return r.discard(ctx, giveUp)
}

// command prints and runs a command, whose exit code must be want.
func (r *run) command(ctx context.Context, want int, as string, argv ...string) error {
	shown := make([]string, len(argv))
	for i, a := range argv {
		if shown[i] = a; strings.ContainsAny(a, " {\"") {
			shown[i] = "'" + a + "'"
		}
	}
	who := ""
	if as != "" {
		who = as + " "
	}
	r.printf("\n%s$ %s\n", who, strings.Join(shown, " "))
	if got := r.o.Command(ctx, r.system, as, argv...); got != want {
		return fmt.Errorf("%s: exit code %d, want %d", strings.Join(shown, " "), got, want)
	}
	return nil
}

// retried runs a task that succeeds on its second attempt.
func (r *run) retried(ctx context.Context) error {
	e, err := send.Enqueue(ctx, r.client, injected{Mode: inject.TransientError, Attempts: []int{1}, Text: "connection reset"},
		task.WithRetry(task.Retry{Base: 300 * time.Millisecond, JitterMax: 100 * time.Millisecond}))
	if err != nil {
		return err
	}
	t, err := r.client.Wait(ctx, "", e.TaskID)
	if err != nil {
		return err
	}
	r.printf("\nA task whose first attempt fails:\n")
	if err := r.command(ctx, 0, "", "orchestrator", "task", "events", e.TaskID); err != nil {
		return err
	}
	if t.State != string(protocol.StateSucceeded) || t.Attempt != 2 {
		return fmt.Errorf("task %s is %s at attempt %d, want it succeeded at the second", t.TaskId, t.State, t.Attempt)
	}
	return nil
}

// deadLetter makes a dead letter and returns its id.
func (r *run) deadLetter(ctx context.Context, text string) (string, error) {
	e, err := send.Enqueue(ctx, r.client, injected{Mode: inject.PermanentError, Text: text})
	if err != nil {
		return "", err
	}
	if _, err := r.client.Wait(ctx, "", e.TaskID); err != nil {
		return "", err
	}
	t, err := r.client.RPC().GetTask(ctx, connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: e.TaskID}))
	if err != nil {
		return "", err
	}
	if t.Msg.Task.State != string(protocol.StateFailed) || t.Msg.Task.DlqId == "" {
		return "", fmt.Errorf("task %s is %s with dead letter %q, want it failed with one", e.TaskID, t.Msg.Task.State, t.Msg.Task.DlqId)
	}
	return t.Msg.Task.DlqId, nil
}

// requeued waits for the task that came out of a dead letter.
func (r *run) requeued(ctx context.Context, dlqID string) error {
	d, err := r.client.DeadLetters().GetDeadLetter(ctx, connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: dlqID}))
	if err != nil {
		return err
	}
	if n := len(d.Msg.DeadLetter.Requeues); n != 1 || d.Msg.DeadLetter.Revision != 1 {
		return fmt.Errorf("dead letter %s has %d requeues and revision %d, want 1 and 1", dlqID, n, d.Msg.DeadLetter.Revision)
	}
	t, err := r.client.Wait(ctx, "", d.Msg.DeadLetter.Requeues[0].TaskId)
	if err != nil {
		return err
	}
	r.printf("The new task %s %s.\n", t.TaskId, t.State)
	if t.State != string(protocol.StateSucceeded) {
		return fmt.Errorf("the requeued task %s is %s, want succeeded", t.TaskId, t.State)
	}
	events, err := r.events(ctx, d.Msg.DeadLetter.TaskId)
	if err != nil {
		return err
	}
	if last := events[len(events)-1]; last.Type != string(protocol.EventDLQRequeued) || last.Status != string(protocol.StateFailed) {
		return fmt.Errorf("the log of %s ends with %s in %s, want dlq.requeued in failed", d.Msg.DeadLetter.TaskId, last.Type, last.Status)
	}
	return nil
}

// discard gives a dead letter up: one person proposes, another confirms.
func (r *run) discard(ctx context.Context, dlqID string) error {
	r.printf("\nThe other is given up, which takes two people:\n")
	if err := r.command(ctx, 0, alice, "dlq-replay", "discard", "propose", dlqID, "--reason", "customer left"); err != nil {
		return err
	}
	res, err := r.client.DeadLetters().ListDeadLetterBatches(ctx, connect.NewRequest(&penstockv1.ListDeadLetterBatchesRequest{Kind: "discard", Status: "proposed"}))
	if err != nil {
		return err
	}
	if len(res.Msg.Batches) != 1 {
		return fmt.Errorf("%d proposals wait, want 1", len(res.Msg.Batches))
	}
	b := res.Msg.Batches[0]
	confirm := []string{"dlq-replay", "discard", "confirm", b.BatchId, "--digest", b.Digest}
	if err := r.command(ctx, forbidden, alice, confirm...); err != nil {
		return err
	}
	if err := r.command(ctx, 0, bob, confirm...); err != nil {
		return err
	}
	d, err := r.client.DeadLetters().GetDeadLetter(ctx, connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: dlqID}))
	if err != nil {
		return err
	}
	if l := d.Msg.DeadLetter; l.Status != "discarded" || l.DiscardProposedBy != alice || l.DiscardConfirmedBy != bob {
		return fmt.Errorf("dead letter %s is %s by %q and %q, want it discarded by %s and %s", dlqID, l.Status, l.DiscardProposedBy, l.DiscardConfirmedBy, alice, bob)
	}
	return nil
}
