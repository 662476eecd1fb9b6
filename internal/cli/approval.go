package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// approvalCmd is the inbox of people who decide.
func approvalCmd() *cobra.Command {
	c := group(&cobra.Command{
		Use: "approval", Short: "Decide about tasks that wait for approval",
		Long: `Decide about tasks that wait for approval: a rule of the guard stopped them, or their
handler asks. Whoever decides needs a token, and had no hand in the task.`,
	})
	clientFlags(c)
	c.AddCommand(approvalListCmd(), approvalShowCmd(), approvalDecideCmd(true), approvalDecideCmd(false))
	return c
}

func approvalListCmd() *cobra.Command {
	var req penstockv1.ListApprovalsRequest
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List what is to be decided, newest first", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := newPrinter(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			l := &listing[*penstockv1.Approval]{
				p: p, key: "approvals", row: approvalRow, head: "APPROVAL ID\tREQUESTED\tSTATUS\tKIND\tNAME\tTYPE\tTASK\tAPPROVED BY\tUNTIL",
			}
			search := searching{w: cmd.ErrOrStderr()}
			next, err := l.pages(limit, maxListPage, req.PageToken, func(size int32, token string) ([]*penstockv1.Approval, string, error) {
				req.PageSize, req.PageToken = size, token
				res, err := cl.Approvals().ListApprovals(cmd.Context(), connect.NewRequest(&req))
				if err != nil {
					return nil, "", err
				}
				search.until(res.Msg.SearchedUntil)
				return res.Msg.Approvals, res.Msg.NextPageToken, nil
			})
			if err == nil && next != "" && p.table() {
				_, err = fmt.Fprintf(p.w, "more: --page-token %s\n", next)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&req.Status, "status", "", "pending (the default), approved, rejected, expired, withdrawn or all")
	f.StringVar(&req.Name, "name", "", "only of this rule, or this name of a handler's")
	f.StringVar(&req.Kind, "kind", "", "only guard, handler or effect")
	f.StringVar(&req.TaskId, "task", "", "only about this task")
	f.StringVar(&req.Tenant, "of-tenant", "", "only about tasks of this tenant")
	f.StringVar(&req.PageToken, "page-token", "", "go on after an earlier list")
	f.IntVar(&limit, "limit", 100, "at most this many; 0: all")
	return c
}

// maxListPage is how many requests are asked for at once.
const maxListPage = 200

func approvalRow(w io.Writer, a *penstockv1.Approval) {
	by := fmt.Sprintf("%d/%d", len(a.ApprovedBy), a.Required)
	if len(a.ApprovedBy) > 0 {
		by += " " + strings.Join(a.ApprovedBy, ",")
	}
	name := a.Name
	if a.RuleError != "" {
		name += " (error)"
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.ApprovalId, stamp(a.RequestedAt), a.Status, a.Kind, line(name, 48), line(a.Type, 48),
		line(a.TaskId, 64), line(by, 64), stamp(a.ExpiresAt))
}

func approvalShowCmd() *cobra.Command {
	return &cobra.Command{
		Use: "show APPROVAL_ID", Short: "Show a request: the task's payload, the rule, and who said what", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.Approvals().GetApproval(cmd.Context(), connect.NewRequest(&penstockv1.GetApprovalRequest{ApprovalId: a[0]}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			return approvalDetail(w, res.Msg)
		},
	}
}

func approvalDetail(w io.Writer, m *penstockv1.GetApprovalResponse) error {
	a := m.Approval
	p := &printer{w: w}
	err := p.columns(func(w io.Writer) {
		row := func(name, value string) {
			if value != "" {
				_, _ = fmt.Fprintf(w, "%s\t%s\n", name, line(value, 4096))
			}
		}
		row("approval", a.ApprovalId)
		row("status", a.Status)
		row("task", fmt.Sprintf("%s (%s, %s, tenant %s)", a.TaskId, a.Type, a.TaskState, a.Tenant))
		row("kind", a.Kind)
		row("name", a.Name)
		row("asked", a.Prompt)
		row("rule error", a.RuleError)
		row("requested", stamp(a.RequestedAt)+" by "+strings.Join(a.Requesters, ", "))
		row("until", stamp(a.ExpiresAt))
		row("needs", fmt.Sprintf("%d of %s", a.Required, strings.Join(a.Approvers, ", ")))
		if a.EffectName != "" {
			row("effect", effectName(a.EffectName, a.EffectKeyKind, a.EffectKey, a.EffectScope))
		}
		if a.DecidedAt != nil {
			row("decided", strings.TrimSpace(stamp(a.DecidedAt)+" "+a.DecidedBy+" "+a.Decision))
		}
		for _, v := range m.Votes {
			row("approved", strings.TrimSpace(stamp(v.At)+" "+v.Principal+" "+v.Reason))
		}
		row("digest", a.Digest)
		if m.Rule != nil {
			row("rule", fmt.Sprintf("revision %d: %s", m.Rule.Revision, m.Rule.Expression))
		}
	})
	if err != nil {
		return err
	}
	if m.ContentHidden {
		if _, err := fmt.Fprintf(w, "payload\n  %s\n", hidden); err != nil {
			return err
		}
	}
	if len(m.Payload) > 0 {
		if _, err := fmt.Fprintf(w, "payload\n%s\n", block(prettyJSON(m.Payload))); err != nil {
			return err
		}
	}
	if len(m.History) < 2 {
		return nil
	}
	return p.columns(func(w io.Writer) {
		_, _ = fmt.Fprintln(w, "ALL REQUESTS ABOUT THE TASK\tREQUESTED\tSTATUS\tNAME\tDECISION")
		for _, h := range m.History {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", h.ApprovalId, stamp(h.RequestedAt), h.Status, line(h.Name, 48), line(strings.TrimSpace(h.DecidedBy+" "+h.Decision), 96))
		}
	})
}

// approvalDecideCmd approves or rejects.
func approvalDecideCmd(approve bool) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "reject APPROVAL_ID...", Short: "Reject: the tasks are cancelled", Args: args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, ids []string) error {
			if !approve && reason == "" {
				return usage(errors.New("--reason is required: say why the task must not run"))
			}
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			if len(ids) == 1 {
				return decideOne(cmd, w, asJSON, cl.Approvals(), approve, ids[0], reason)
			}
			return decideMany(cmd, w, asJSON, cl.Approvals(), approve, ids, reason)
		},
	}
	if approve {
		c.Use, c.Short = "approve APPROVAL_ID...", "Approve: the last approval that is needed lets the task go on"
	}
	c.Flags().StringVar(&reason, "reason", "", "why, at most 1,000 bytes; kept in the event log")
	return c
}
