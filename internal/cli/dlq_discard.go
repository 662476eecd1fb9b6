package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func dlqDiscardCmd(con *console) *cobra.Command {
	c := group(&cobra.Command{
		Use: "discard", Short: "Give dead letters up; it takes two people and a reason",
		Long: `Give dead letters up. One person proposes a set with a reason, another one
confirms it; who they are is told by their tokens (--token-file, --token,
PENSTOCK_TOKEN). The confirmation carries the digest of the set, so that what is
confirmed is what was looked at. Discarded dead letters stay on record, with
both names and the reason, but can't be requeued any more.`,
	})
	c.AddCommand(discardProposeCmd(con), discardConfirmCmd(con), discardRejectCmd(con))
	return c
}

func discardProposeCmd(con *console) *cobra.Command {
	var f filterFlags
	var all bool
	var reason string
	c := &cobra.Command{
		Use: "propose [DLQ_ID... | - | filters] --reason REASON", Short: "Propose to discard a set of at most 10,000 dead letters",
		Example: `  dlq-replay discard propose 01998a52-3f4e-7c11-9d2a-0f1e2d3c4b5a --reason "test data"
  dlq-replay discard propose --type import.row --older-than 30d --reason "the import was repeated"`,
		RunE: func(cmd *cobra.Command, a []string) error {
			sel, err := selectionOf(cmd, a, &f, all)
			if err != nil {
				return err
			}
			if strings.TrimSpace(reason) == "" {
				return usage(errors.New("--reason is needed: say why these dead letters are given up"))
			}
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			return s.propose(cmd.Context(), sel, reason)
		},
	}
	f.addChanging(c.Flags())
	c.Flags().BoolVar(&all, "all", false, "without filters: every open dead letter of the tenant default, or with --all-tenants of all")
	c.Flags().StringVar(&reason, "reason", "", "why they are given up")
	return c
}

func (s *session) propose(ctx context.Context, sel selection, reason string) error {
	id := uuid.Must(uuid.NewV7()).String()
	res, err := s.dead.ProposeDiscard(ctx, connect.NewRequest(&penstockv1.ProposeDiscardRequest{
		BatchId: id, DlqIds: sel.ids, Filter: sel.filter, Reason: reason,
	}))
	if err != nil {
		s.unknown(err, id)
		return s.ofTenant(err, sel)
	}
	b := res.Msg.Batch
	if !s.out.table() {
		return writeMessage(s.out.w, b)
	}
	err = s.describe(s.out.w, b)
	_, _ = fmt.Fprintf(s.out.w, "\nnothing was discarded yet; another person confirms it, until %s:\n  %s\n",
		stamp(b.ExpiresAt), s.command("discard", "confirm", b.BatchId, "--digest", b.Digest))
	return err
}

func discardConfirmCmd(con *console) *cobra.Command {
	var digest string
	var detach bool
	c := &cobra.Command{
		Use: "confirm BATCH_ID", Short: "Confirm what another person proposed", Args: args(cobra.ExactArgs(1)),
		Long: `Confirm what another person proposed. It shows what the proposal covers and what
changed since, and asks. Where there is no terminal, --digest must be given; it
has to be the digest of the proposal, whole.`,
		RunE: func(cmd *cobra.Command, a []string) error {
			digest = strings.TrimSpace(digest)
			if digest == "" && (cmd.Flags().Changed("digest") || !con.interactive) {
				return usage(errors.New("there is no terminal to ask on: give --digest with the digest of the proposal; batch show BATCH_ID shows it"))
			}
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			return s.confirm(cmd.Context(), a[0], digest, detach)
		},
	}
	c.Flags().StringVar(&digest, "digest", "", "the digest of the proposal; then there is no question")
	c.Flags().BoolVar(&detach, "detach", false, "do not wait for the batch to finish")
	return c
}

func (s *session) confirm(ctx context.Context, id, digest string, detach bool) error {
	b, err := s.look(ctx, id, true)
	if err != nil {
		return err
	}
	if b.Kind != "discard" || b.Status != "proposed" {
		return &exitError{ExitConflict, fmt.Errorf("batch %s is a %s that is %s: there is nothing to confirm", b.BatchId, b.Kind, b.Status)}
	}
	if digest != "" && digest != b.Digest {
		return &exitError{ExitConflict, fmt.Errorf("--digest is not the digest of discard %s: nothing was discarded; look at what it covers: %s", b.BatchId, s.command("batch", "show", b.BatchId))}
	}
	if err := s.describe(s.cmd.ErrOrStderr(), b); err != nil {
		return err
	}
	if digest == "" {
		yes, err := s.con.ask(ctx, s.cmd, fmt.Sprintf("\nDiscard %s for good, as %s proposed?", dead(b.Total), line(b.CreatedBy, 64)))
		switch {
		case err != nil:
			return &exitError{ExitInterrupted, errors.New("nothing was discarded")}
		case !yes:
			return &exitError{ExitFailed, fmt.Errorf("nothing was discarded; to end the proposal: %s", s.command("discard", "reject", b.BatchId, "--reason", "..."))}
		}
	}
	res, err := s.dead.ConfirmDiscard(ctx, connect.NewRequest(&penstockv1.ConfirmDiscardRequest{BatchId: b.BatchId, Digest: b.Digest}))
	if err != nil {
		if !refused(err) {
			s.say("whether discard %s was confirmed is not known: %s", b.BatchId, s.command("batch", "show", b.BatchId))
		}
		return err
	}
	return s.went(ctx, res.Msg.Batch, detach)
}

func discardRejectCmd(con *console) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "reject BATCH_ID --reason REASON", Short: "Reject a proposal, or withdraw your own", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if strings.TrimSpace(reason) == "" {
				return usage(errors.New("--reason is needed: say why the proposal is rejected"))
			}
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			res, err := s.dead.RejectDiscard(cmd.Context(), connect.NewRequest(&penstockv1.RejectDiscardRequest{BatchId: a[0], Reason: reason}))
			if err != nil {
				return err
			}
			return s.state(res.Msg.Batch)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why")
	return c
}
