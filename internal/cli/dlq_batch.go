package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func dlqBatchCmd(con *console) *cobra.Command {
	c := group(&cobra.Command{
		Use: "batch", Short: "Look at bulk work on dead letters, pause it, resume it, cancel it",
		Long: `Look at bulk work on dead letters, pause it, resume it, cancel it. A batch is a
frozen set of dead letters that the server works off, whatever happens to this
program, and goes on with after a restart. A requeue is draft (after a dry run)
or running; a discard is proposed until another person confirms or rejects it.
Both can be paused, cancelled and finished; a draft or proposal that nobody
acted on is expired. What a cancelled batch has done is not undone.`,
	})
	c.AddCommand(batchListCmd(con), batchShowCmd(con), batchWatchCmd(con),
		batchControlCmd(con, "start", "Start the draft that a dry run made, without waiting for it"),
		batchControlCmd(con, "pause", "Pause a running batch"),
		batchControlCmd(con, "resume", "Let a paused batch go on"),
		batchControlCmd(con, "cancel", "Cancel a batch; what it has done is not undone"))
	return c
}

func batchListCmd(con *console) *cobra.Command {
	req := &penstockv1.ListDeadLetterBatchesRequest{}
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List batches, newest first", Args: args(cobra.NoArgs),
		Example: "  dlq-replay batch list --kind discard --status proposed",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			l := &listing[*penstockv1.DeadLetterBatch]{
				p: s.out, key: "batches", row: batchRow, head: "BATCH ID\tCREATED\tKIND\tSTATUS\tDONE\tSKIPPED\tTOTAL\tBY\tDECIDED BY\tREASON",
			}
			search := searching{w: cmd.ErrOrStderr()}
			next, err := l.pages(limit, requeueChunk, req.PageToken, func(size int32, token string) ([]*penstockv1.DeadLetterBatch, string, error) {
				req.PageSize, req.PageToken = size, token
				res, err := s.dead.ListDeadLetterBatches(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return nil, "", err
				}
				search.until(res.Msg.SearchedUntil)
				return res.Msg.Batches, res.Msg.NextPageToken, nil
			})
			s.more(next, err)
			return err
		},
	}
	c.Flags().StringVar(&req.Kind, "kind", "", "only this kind: requeue or discard")
	c.Flags().StringVar(&req.Status, "status", "", "only draft, proposed, running, paused, cancelled, finished, rejected or expired ones")
	c.Flags().StringVar(&req.PageToken, "page-token", "", "go on after an earlier list")
	c.Flags().IntVar(&limit, "limit", 100, "at most this many; 0: all")
	return c
}

func batchRow(w io.Writer, b *penstockv1.DeadLetterBatch) {
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\n", b.BatchId, stamp(b.CreatedAt), b.Kind, b.Status, b.Done, b.Skipped, b.Total,
		line(b.CreatedBy, 40), orDash(line(b.DecidedBy, 40)), line(b.Reason, 80))
}

func batchShowCmd(con *console) *cobra.Command {
	req := &penstockv1.ListDeadLetterBatchItemsRequest{}
	var items bool
	var limit int
	c := &cobra.Command{
		Use: "show BATCH_ID", Short: "Show what a batch covers, how far it is, and what changed since", Args: args(cobra.ExactArgs(1)),
		Long: `Show what a batch covers, how far it is, and what changed since its set was
frozen. With --items list its items instead, and what became of each.`,
		Example: "  dlq-replay batch show BATCH_ID --items --item-status skipped",
		RunE: func(cmd *cobra.Command, a []string) error {
			for _, name := range []string{"item-status", "limit", "page-token"} {
				if cmd.Flags().Changed(name) && !items {
					return usage(fmt.Errorf("--%s is for --items", name))
				}
			}
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			if items {
				req.BatchId = a[0]
				return s.items(cmd.Context(), req, limit)
			}
			b, err := s.look(cmd.Context(), a[0], true)
			if err != nil {
				return err
			}
			if !s.out.table() {
				return writeMessage(s.out.w, b)
			}
			return s.describe(s.out.w, b)
		},
	}
	c.Flags().BoolVar(&items, "items", false, "list the items")
	c.Flags().StringVar(&req.Status, "item-status", "", "only pending, done or skipped items")
	c.Flags().StringVar(&req.PageToken, "page-token", "", "go on after an earlier list")
	c.Flags().IntVar(&limit, "limit", 100, "at most this many items; 0: all")
	return c
}

func (s *session) items(ctx context.Context, req *penstockv1.ListDeadLetterBatchItemsRequest, limit int) error {
	l := &listing[*penstockv1.DeadLetterBatchItem]{
		p: s.out, key: "items", head: "DLQ ID\tSTATUS\tTASK ID\tDETAIL", row: func(w io.Writer, i *penstockv1.DeadLetterBatchItem) {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", i.DlqId, i.Status, orDash(i.TaskId), orDash(line(i.Detail, 200)))
		},
	}
	next, err := l.pages(limit, requeueChunk, req.PageToken, func(size int32, token string) ([]*penstockv1.DeadLetterBatchItem, string, error) {
		req.PageSize, req.PageToken = size, token
		res, err := s.dead.ListDeadLetterBatchItems(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, "", err
		}
		return res.Msg.Items, res.Msg.NextPageToken, nil
	})
	s.more(next, err)
	return err
}

func batchWatchCmd(con *console) *cobra.Command {
	var limit time.Duration
	c := &cobra.Command{
		Use: "watch BATCH_ID", Short: "Follow a batch until it has ended", Args: args(cobra.ExactArgs(1)),
		Long: `Follow a batch until it has ended, also one that has not started yet. Exit code 0
if it finished with every item done, 1 if items were skipped or it was
cancelled, rejected or expired, 7 if it had not ended within --timeout. With
-o jsonl each change is a line.`,
		RunE: func(cmd *cobra.Command, a []string) error {
			if limit < 0 {
				return usage(fmt.Errorf("--timeout is %s, want more than 0, or 0 for no limit", limit))
			}
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			return s.watch(cmd.Context(), a[0], limit)
		},
	}
	c.Flags().DurationVar(&limit, "timeout", 0, "wait at most this long; 0: no limit")
	return c
}

func (s *session) watch(ctx context.Context, id string, limit time.Duration) error {
	b, err := s.look(ctx, id, false)
	if err != nil {
		return err
	}
	inner := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	var each func(*penstockv1.DeadLetterBatch) error
	if s.out.format == "jsonl" {
		each = func(b *penstockv1.DeadLetterBatch) error { return writeMessage(s.out.w, b) }
	}
	b, err = s.follow(inner, b, each)
	switch {
	case err != nil && ctx.Err() != nil:
		return s.detached(id)
	case err != nil && errors.Is(inner.Err(), context.DeadlineExceeded):
		return &exitError{ExitNotFinished, fmt.Errorf("%s after %s", outcome(b), limit)}
	case err != nil:
		return err
	case s.out.table():
		_, err = fmt.Fprintln(s.out.w, outcome(b))
	case s.out.format == "json":
		err = writeMessage(s.out.w, b)
	}
	return errors.Join(err, s.verdict(b))
}

func batchControlCmd(con *console, action, short string) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: action + " BATCH_ID", Short: short, Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			b, err := s.control(cmd.Context(), a[0], action, reason)
			if err != nil {
				return err
			}
			return s.state(b)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why")
	return c
}

// state writes where a batch stands.
func (s *session) state(b *penstockv1.DeadLetterBatch) error {
	if !s.out.table() {
		return writeMessage(s.out.w, b)
	}
	_, err := fmt.Fprintln(s.out.w, outcome(b))
	return err
}

// describe writes all about a batch: its set by type and by fingerprint, and
// what changed since it was frozen.
func (s *session) describe(w io.Writer, b *penstockv1.DeadLetterBatch) error {
	p := &printer{w: w, format: "table"}
	if err := p.columns(func(w io.Writer) { batchFacts(w, b) }); err != nil {
		return err
	}
	d := b.Details
	if d == nil {
		return nil
	}
	for _, g := range []struct {
		head   string
		groups []*penstockv1.DeadLetterGroup
	}{{"TYPE", d.ByType}, {"FINGERPRINT", d.ByFingerprint}} {
		_, _ = fmt.Fprintln(w)
		if err := p.columns(func(w io.Writer) { groupTable(w, g.head, g.groups) }); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", changedSince(b))
	return err
}

// changedSince tells what is different from when the set was frozen.
func changedSince(b *penstockv1.DeadLetterBatch) string {
	var out []string
	if d := b.Details; d != nil {
		if d.SettledSince > 0 {
			out = append(out, fmt.Sprintf("%d settled otherwise (they will be skipped)", d.SettledSince))
		}
		if d.EditedSince > 0 {
			out = append(out, fmt.Sprintf("%d edited", d.EditedSince))
		}
		if d.NewMatches > 0 {
			out = append(out, fmt.Sprintf("%d more match the filter (they are not in it)", d.NewMatches))
		}
	}
	if len(out) == 0 {
		return "nothing changed since it was frozen"
	}
	return "since it was frozen: " + strings.Join(out, ", ")
}

func batchFacts(w io.Writer, b *penstockv1.DeadLetterBatch) {
	rate := ""
	if b.Rate > 0 {
		rate = fmt.Sprintf("%d/s", b.Rate)
	}
	var options []string
	if b.Again {
		options = append(options, "again")
	}
	if b.Original {
		options = append(options, "original payloads")
	}
	facts(w, [][2]string{
		{"batch_id", b.BatchId}, {"kind", b.Kind}, {"status", b.Status}, {"set", setOf(b)},
		{"progress", fmt.Sprintf("%d done, %d skipped of %d", b.Done, b.Skipped, b.Total)},
		{"rate", rate}, {"options", strings.Join(options, ", ")}, {"reason", b.Reason}, {"digest", b.Digest},
		{"created_by", b.CreatedBy}, {"created_at", stamp(b.CreatedAt)}, {"expires_at", stamp(b.ExpiresAt)},
		{"decided_by", b.DecidedBy}, {"controlled_by", b.ControlledBy}, {"decision_reason", b.DecisionReason},
		{"started_at", stamp(b.StartedAt)}, {"finished_at", stamp(b.FinishedAt)},
	})
}

// setOf tells what selected a batch's set.
func setOf(b *penstockv1.DeadLetterBatch) string {
	f := b.Filter
	if f == nil {
		return fmt.Sprintf("%d listed by id", b.Total)
	}
	var out []string
	for _, p := range [][2]string{
		{"type", f.Type}, {"tenant", f.Tenant}, {"code", f.ErrorCode}, {"fingerprint", f.Fingerprint}, {"queue", f.Queue}, {"status", f.Status},
	} {
		if p[1] != "" {
			out = append(out, p[0]+" "+p[1])
		}
	}
	if f.FailedAfter != nil {
		out = append(out, "failed since "+stamp(f.FailedAfter))
	}
	if f.FailedBefore != nil {
		out = append(out, "failed before "+stamp(f.FailedBefore))
	}
	if len(out) == 0 {
		return "all"
	}
	return strings.Join(out, ", ")
}
