package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// What the server takes at once.
const (
	requeueChunk = 1000
	maxBatchIDs  = 10_000
	maxRate      = 100_000
)

// requeueFlags are those of requeue, filters aside.
type requeueFlags struct {
	filter                       filterFlags
	all, again, original, dryRun bool
	graph                        bool
	detach, yes                  bool
	rate                         int32
	reason, draft                string
}

func dlqRequeueCmd(con *console) *cobra.Command {
	var f requeueFlags
	c := &cobra.Command{
		Use: "requeue [DLQ_ID... | - | filters | --batch BATCH_ID]", Short: "Make new tasks of dead letters",
		Long: `Make a new task of each dead letter, with its payload as it was edited last. The
task is linked with the dead letter both ways; the history of the original stays
as it is. A dead letter is requeued once; --again allows another time.

Named by id ("-" reads ids from standard input) they are requeued at once.
Selected by filters, or with --rate, --dry-run or --detach, they become a batch
on the server: the set is frozen first, and worked off there. On a terminal you
see the set and are asked before it starts; elsewhere --yes is needed. Ctrl-C
only detaches from a batch that is running.

--graph also makes anew, in the same transaction, the tasks that were cancelled
because of the dead letter: they run once the new task has succeeded. Only for
dead letters that are named by id.

--dry-run freezes the set and shows it without starting; requeue --batch
BATCH_ID then requeues exactly that set.`,
		Example: `  dlq-replay requeue 01998a52-3f4e-7c11-9d2a-0f1e2d3c4b5a
  dlq-replay requeue --fingerprint 4f2a90c1d3e8 --newer-than 1d --dry-run
  dlq-replay requeue --batch 01998a60-0000-7000-8000-000000000001
  dlq-replay requeue --type email.send --rate 50 --yes --detach`,
		RunE: func(cmd *cobra.Command, a []string) error { return f.run(cmd, con, a) },
	}
	fs := c.Flags()
	f.filter.addChanging(fs)
	fs.BoolVar(&f.all, "all", false, "without filters: every open dead letter of the tenant default, or with --all-tenants of all")
	fs.BoolVar(&f.again, "again", false, "also those that were requeued before")
	fs.BoolVar(&f.original, "original", false, "send payloads as they failed, even if they were edited")
	fs.BoolVar(&f.graph, "graph", false, "also make anew the tasks that were cancelled because they depend on it")
	fs.Int32Var(&f.rate, "rate", 0, "at most this many a second")
	fs.StringVar(&f.reason, "reason", "", "why; goes into the event log")
	fs.BoolVar(&f.dryRun, "dry-run", false, "freeze the set and show it, but start nothing")
	fs.StringVar(&f.draft, "batch", "", "start the batch that a dry run made")
	fs.BoolVar(&f.detach, "detach", false, "do not wait for the batch to finish")
	fs.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	return c
}

func (f *requeueFlags) run(cmd *cobra.Command, con *console, a []string) error {
	if f.draft != "" || cmd.Flags().Changed("batch") {
		return f.startDraft(cmd, con, a)
	}
	sel, err := selectionOf(cmd, a, &f.filter, f.all)
	if err != nil {
		return err
	}
	batch := sel.filter != nil || f.dryRun || f.detach || cmd.Flags().Changed("rate")
	switch {
	case f.graph && batch:
		return usage(errors.New("--graph is for dead letters named by id, without --rate, --dry-run and --detach"))
	case cmd.Flags().Changed("rate") && (f.rate < 1 || f.rate > maxRate):
		return usage(fmt.Errorf("--rate is %d, want 1 to %d a second", f.rate, maxRate))
	case batch && len(sel.ids) > maxBatchIDs:
		return usage(fmt.Errorf("%d ids are named, a batch takes %d: select them with filters, or leave out --rate, --dry-run and --detach", len(sel.ids), maxBatchIDs))
	case sel.filter != nil && !f.dryRun && !f.yes && !con.interactive:
		return usage(errors.New("there is no terminal to ask on: give --yes to requeue all that match, or look first with --dry-run"))
	}
	s, err := open(cmd, con)
	if err != nil {
		return err
	}
	if !batch {
		return s.requeueIDs(cmd.Context(), sel.ids, f)
	}
	return s.requeueBatch(cmd.Context(), sel, f)
}

// requeueIDs requeues by id, a chunk after the other, and reports each.
func (s *session) requeueIDs(ctx context.Context, ids []string, f *requeueFlags) error {
	l := &listing[*penstockv1.RequeueResult]{p: s.out, key: "results", head: "DLQ ID\tTASK ID", row: func(w io.Writer, r *penstockv1.RequeueResult) {
		if r.Error == nil {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", r.DlqId, r.TaskId)
		}
	}}
	if f.graph {
		l.head = "DLQ ID\tTASK ID\tCLONES"
		l.row = func(w io.Writer, r *penstockv1.RequeueResult) {
			if r.Error == nil {
				_, _ = fmt.Fprintf(w, "%s\t%s\t%d\n", r.DlqId, r.TaskId, r.Clones)
			}
		}
	}
	var no refusals
	done := 0
	for chunk := range slices.Chunk(ids, requeueChunk) {
		res, err := s.dead.RequeueDeadLetters(ctx, connect.NewRequest(&penstockv1.RequeueDeadLettersRequest{
			DlqIds: chunk, Again: f.again, Original: f.original, Reason: f.reason, Graph: f.graph,
		}))
		if err != nil {
			s.broken(err, done, len(ids), f.again)
			return err
		}
		if n := len(res.Msg.Results); n != len(chunk) {
			return fmt.Errorf("the server answered %d results for %d dead letters", n, len(chunk))
		}
		for _, r := range res.Msg.Results {
			if r.Error != nil {
				no.add(r.Error)
				s.say("%s: %s", r.DlqId, line(refusal(r.Error).Error(), 500))
			}
		}
		if done += len(res.Msg.Results); s.out.table() && no.n == done {
			continue // no empty table
		}
		if err := l.page(res.Msg.Results, "", done >= len(ids)); err != nil {
			return err
		}
	}
	return no.err(len(ids))
}

// broken tells what is known after a call that failed in between.
func (s *session) broken(err error, done, total int, again bool) {
	if refused(err) && done == 0 {
		return
	}
	if again {
		s.say("%d of %d were answered; look at the rest before you repeat this: --again would requeue twice what was done", done, total)
		return
	}
	s.say("%d of %d were answered; repeating the command is safe: what was requeued is refused", done, total)
}

func refusal(i *penstockv1.ErrorInfo) *protocol.Error {
	return &protocol.Error{Code: protocol.Code(i.Code), Field: i.Field, Message: i.Message}
}

// refusals counts items that were refused, for the exit code.
type refusals struct {
	n    int
	exit int // that of all of them, if it is the same
}

func (r *refusals) add(i *penstockv1.ErrorInfo) {
	exit := exitCode(context.Background(), refusal(i))
	if r.n > 0 && exit != r.exit {
		exit = ExitFailed
	}
	r.n, r.exit = r.n+1, exit
}

// err is nil if none of total was refused; if all were, for the same kind of
// reason, it has the exit code of that reason.
func (r *refusals) err(total int) error {
	switch {
	case r.n == 0:
		return nil
	case r.n == total:
		return &exitError{r.exit, fmt.Errorf("refused: %d of %d", r.n, total)}
	}
	return &exitError{ExitFailed, fmt.Errorf("refused: %d of %d", r.n, total)}
}

// requeueBatch freezes a set, asks where somebody can be asked, and requeues
// exactly that set.
func (s *session) requeueBatch(ctx context.Context, sel selection, f *requeueFlags) error {
	ask := sel.filter != nil && !f.yes && !f.dryRun
	id := uuid.Must(uuid.NewV7()).String()
	res, err := s.dead.CreateDeadLetterBatch(ctx, connect.NewRequest(&penstockv1.CreateDeadLetterBatchRequest{
		BatchId: id, DlqIds: sel.ids, Filter: sel.filter, Rate: f.rate, Again: f.again, Original: f.original, Reason: f.reason,
		DryRun: f.dryRun || ask,
	}))
	if err != nil {
		s.unknown(err, id)
		return s.ofTenant(err, sel)
	}
	b := res.Msg.Batch
	if f.dryRun {
		return s.showDraft(b)
	}
	if ask {
		if b, err = s.askToStart(ctx, b, true, true); err != nil {
			return err
		}
	}
	return s.went(ctx, b, f.detach)
}

// ofTenant adds where was looked, in case a filter admitted nothing there.
func (s *session) ofTenant(err error, sel selection) error {
	if exitCode(s.cmd.Context(), err) == ExitNotFound && sel.filter != nil && !s.cmd.Flags().Changed("tenant") && sel.filter.Tenant != "" {
		s.say("only dead letters of tenant %s were looked for; --tenant names another, --all-tenants takes all", sel.filter.Tenant)
	}
	return err
}

// unknown tells how to find out what became of a call without an answer.
func (s *session) unknown(err error, id string) {
	if !refused(err) {
		s.say("whether batch %s was made is not known: %s", id, s.command("batch", "show", id))
	}
}

// went follows a batch that was set going, or tells how to.
func (s *session) went(ctx context.Context, b *penstockv1.DeadLetterBatch, detach bool) error {
	if !detach {
		return s.finish(ctx, b)
	}
	if !s.out.table() {
		return writeMessage(s.out.w, b)
	}
	_, err := fmt.Fprintf(s.out.w, "batch %s is %s: %s\n", b.BatchId, b.Status, dead(b.Total))
	s.say("watch it: %s", s.command("batch", "watch", b.BatchId))
	return err
}

// showDraft shows what a dry run froze and how to start it.
func (s *session) showDraft(b *penstockv1.DeadLetterBatch) error {
	if !s.out.table() {
		return writeMessage(s.out.w, b)
	}
	err := s.describe(s.out.w, b)
	_, _ = fmt.Fprintf(s.out.w, "\nnothing was requeued; to requeue exactly these, until %s:\n  %s\n", stamp(b.ExpiresAt), s.command("requeue", "--batch", b.BatchId))
	return err
}

// askToStart starts a draft, after a question if there is need for one. A
// declined draft is cancelled if it was made for the question only (own).
func (s *session) askToStart(ctx context.Context, b *penstockv1.DeadLetterBatch, need, own bool) (*penstockv1.DeadLetterBatch, error) {
	if need {
		if err := s.describe(s.cmd.ErrOrStderr(), b); err != nil {
			return nil, err
		}
		yes, err := s.con.ask(ctx, s.cmd, fmt.Sprintf("\nRequeue %s?", dead(b.Total)))
		if err != nil || !yes {
			if own {
				tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
				defer cancel()
				_, _ = s.control(tidy, b.BatchId, "cancel", "declined")
			}
			code := ExitFailed
			if err != nil {
				code = ExitInterrupted
			}
			return nil, &exitError{code, errors.New("nothing was requeued")}
		}
	}
	started, err := s.control(ctx, b.BatchId, "start", "")
	if err != nil && !refused(err) {
		s.say("whether batch %s was started is not known: %s", b.BatchId, s.command("batch", "show", b.BatchId))
	}
	return started, err
}

// startDraft starts the batch of a dry run as it was frozen.
func (f *requeueFlags) startDraft(cmd *cobra.Command, con *console, a []string) error {
	given := len(a) > 0
	for _, name := range append([]string{"all", "all-tenants", "again", "original", "graph", "rate", "reason", "dry-run"}, filterNames...) {
		given = given || cmd.Flags().Changed(name)
	}
	if given || f.draft == "" {
		return usage(errors.New("--batch takes the id of a dry run, and only --detach and --yes besides: the set and the options were frozen with it"))
	}
	s, err := open(cmd, con)
	if err != nil {
		return err
	}
	b, err := s.look(cmd.Context(), f.draft, true)
	if err != nil {
		return err
	}
	if b.Kind != "requeue" || b.Status != "draft" {
		return &exitError{ExitConflict, fmt.Errorf("batch %s is a %s that is %s, not the draft of a requeue: see %s", b.BatchId, b.Kind, b.Status, s.command("batch", "show", b.BatchId))}
	}
	d := b.Details
	s.say("batch %s: %s; %s", b.BatchId, dead(b.Total), changedSince(b))
	changed := d != nil && d.SettledSince+d.EditedSince > 0
	if b, err = s.askToStart(cmd.Context(), b, changed && con.interactive && !f.yes, false); err != nil {
		return err
	}
	return s.went(cmd.Context(), b, f.detach)
}

// control changes the status of a batch.
func (s *session) control(ctx context.Context, id, action, reason string) (*penstockv1.DeadLetterBatch, error) {
	res, err := s.dead.ControlDeadLetterBatch(ctx, connect.NewRequest(&penstockv1.ControlDeadLetterBatchRequest{BatchId: id, Action: action, Reason: reason}))
	if err != nil {
		return nil, err
	}
	return res.Msg.Batch, nil
}
