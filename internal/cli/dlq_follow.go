package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/schollz/progressbar/v3"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// patience is how long a batch is followed while no orchestrator answers: it
// outlives their restart.
const patience = 2 * time.Minute

// lookTimeout bounds one look at a batch.
const lookTimeout = 30 * time.Second

// ended reports whether a batch will not change any more.
func ended(b *penstockv1.DeadLetterBatch) bool {
	return slices.Contains([]string{"finished", "cancelled", "rejected", "expired"}, b.Status)
}

// follow shows how far a batch is until it has ended, and tells each about
// every change. It only looks: when ctx ends, the batch goes on.
func (s *session) follow(ctx context.Context, b *penstockv1.DeadLetterBatch, each func(*penstockv1.DeadLetterBatch) error) (*penstockv1.DeadLetterBatch, error) {
	m := s.meter(b)
	defer m.stop()
	pause, heard := s.con.poll, time.Now()
	for {
		m.show(b)
		if each != nil {
			if err := each(b); err != nil {
				return b, err
			}
		}
		if ended(b) {
			return b, nil
		}
		seen := b
		for b == seen || b.Status == seen.Status && b.Done == seen.Done && b.Skipped == seen.Skipped {
			select {
			case <-ctx.Done():
				return b, ctx.Err()
			case <-time.After(pause):
			}
			pause = min(pause+pause/4, 10*s.con.poll)
			now, err := s.look(ctx, b.BatchId, false)
			switch {
			case err == nil:
				b, heard = now, time.Now()
			case ctx.Err() != nil:
				return b, ctx.Err()
			case refused(err), time.Since(heard) > patience:
				return b, err
			}
		}
	}
}

// look fetches a batch.
func (s *session) look(ctx context.Context, id string, details bool) (*penstockv1.DeadLetterBatch, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	res, err := s.dead.GetDeadLetterBatch(ctx, connect.NewRequest(&penstockv1.GetDeadLetterBatchRequest{BatchId: id, Details: details}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Batch, nil
}

// finish follows a batch that this command set going and writes how it ended.
func (s *session) finish(ctx context.Context, b *penstockv1.DeadLetterBatch) error {
	b, err := s.follow(ctx, b, nil)
	if ctx.Err() != nil && err != nil {
		return s.detached(b.BatchId)
	}
	if err != nil {
		s.say("batch %s goes on without this command; watch it: %s", b.BatchId, s.command("batch", "watch", b.BatchId))
		return err
	}
	if s.out.table() {
		_, err = fmt.Fprintln(s.out.w, outcome(b))
	} else {
		err = writeMessage(s.out.w, b)
	}
	return errors.Join(err, s.verdict(b))
}

func (s *session) detached(id string) error {
	return &exitError{ExitInterrupted, fmt.Errorf("detached: batch %s goes on; watch it: %s", id, s.command("batch", "watch", id))}
}

// outcome sums a batch up in one line.
func outcome(b *penstockv1.DeadLetterBatch) string {
	verb := "requeued"
	if b.Kind == "discard" {
		verb = "discarded"
	}
	out := fmt.Sprintf("batch %s %s: %d %s", b.BatchId, b.Status, b.Done, verb)
	if b.Skipped > 0 {
		out += fmt.Sprintf(", %d skipped", b.Skipped)
	}
	out += fmt.Sprintf(" of %d", b.Total)
	if b.StartedAt != nil && b.FinishedAt != nil {
		took := b.FinishedAt.AsTime().Sub(b.StartedAt.AsTime())
		out += fmt.Sprintf(" in %s", took.Round(max(time.Millisecond, took.Truncate(time.Second)/100)))
	}
	return out
}

// verdict is the error of a batch that did not do all it was for.
func (s *session) verdict(b *penstockv1.DeadLetterBatch) error {
	switch {
	case b.Status != "finished":
		return &exitError{ExitFailed, fmt.Errorf("batch %s is %s%s", b.BatchId, b.Status, because(b.DecisionReason))}
	case b.Skipped > 0:
		return &exitError{ExitFailed, fmt.Errorf("%d of %s skipped; see why: %s", b.Skipped, dead(b.Total),
			s.command("batch", "show", b.BatchId, "--items", "--item-status", "skipped"))}
	}
	return nil
}

// meter is a progress bar, where there is a terminal to draw it on.
type meter struct {
	bar  *progressbar.ProgressBar
	said string
}

func (s *session) meter(b *penstockv1.DeadLetterBatch) *meter {
	if !s.con.bar {
		return &meter{}
	}
	return &meter{bar: progressbar.NewOptions(int(b.Total), progressbar.OptionSetWriter(s.cmd.ErrOrStderr()),
		progressbar.OptionShowCount(), progressbar.OptionClearOnFinish())}
}

func (m *meter) show(b *penstockv1.DeadLetterBatch) {
	if m.bar == nil {
		return
	}
	said := b.Kind + " " + b.Status
	if b.Skipped > 0 {
		said += fmt.Sprintf(", %d skipped", b.Skipped)
	}
	if said != m.said {
		m.bar.Describe(said)
		m.said = said
	}
	_ = m.bar.Set(int(b.Done + b.Skipped))
}

// stop removes the bar.
func (m *meter) stop() {
	if m.bar != nil {
		_ = m.bar.Clear()
	}
}
