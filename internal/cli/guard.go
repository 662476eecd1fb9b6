package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/wrapperspb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// guardCmd keeps the rules that stop tasks.
func guardCmd() *cobra.Command {
	c := group(&cobra.Command{
		Use: "guard", Short: "Keep the rules that say which tasks people must approve",
		Long: `Keep the rules that say which tasks people must approve: CEL expressions over the task.
Rules of the configuration (guard.rules) are changed there.`,
	})
	clientFlags(c)
	c.AddCommand(guardListCmd(), guardShowCmd(), guardSaveCmd(), guardDeleteCmd(), guardTestCmd())
	return c
}

func guardListCmd() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the rules", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := newPrinter(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			l := &listing[*penstockv1.GuardRule]{p: p, key: "rules", row: ruleRow, head: "NAME\tREVISION\tENABLED\tNEEDS\tTIMEOUT\tSOURCE\tEXPRESSION"}
			_, err = l.pages(0, maxListPage, "", func(size int32, token string) ([]*penstockv1.GuardRule, string, error) {
				res, err := cl.Approvals().ListRules(cmd.Context(), connect.NewRequest(&penstockv1.ListRulesRequest{PageSize: size, PageToken: token}))
				if err != nil {
					return nil, "", err
				}
				return res.Msg.Rules, res.Msg.NextPageToken, nil
			})
			return err
		},
	}
}

func ruleRow(w io.Writer, r *penstockv1.GuardRule) {
	_, _ = fmt.Fprintf(w, "%s\t%d\t%t\t%d of %s\t%s\t%s\t%s\n", r.Name, r.Revision, r.Enabled.GetValue(), r.Required, line(strings.Join(r.Approvers, ","), 48),
		time.Duration(r.TimeoutMs)*time.Millisecond, r.Source, line(r.Expression, 120))
}

func guardShowCmd() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a rule and what it was before", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.Approvals().GetRule(cmd.Context(), connect.NewRequest(&penstockv1.GetRuleRequest{Name: a[0]}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			return (&printer{w: w}).columns(func(w io.Writer) {
				_, _ = fmt.Fprintln(w, "REVISION\tCHANGED\tBY\tENABLED\tNEEDS\tTIMEOUT\tEXPRESSION")
				for _, r := range res.Msg.Revisions {
					text := line(r.Expression, 200)
					if r.Deleted {
						text = "(deleted)"
					}
					_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%t\t%d of %s\t%s\t%s\n", r.Revision, stamp(r.ChangedAt), line(r.ChangedBy, 64), r.Enabled.GetValue(), r.Required,
						line(strings.Join(r.Approvers, ","), 48), time.Duration(r.TimeoutMs)*time.Millisecond, text)
				}
			})
		},
	}
}

func guardSaveCmd() *cobra.Command {
	var rule penstockv1.GuardRule
	var timeout time.Duration
	var disabled bool
	var expected int64
	c := &cobra.Command{
		Use: "save NAME EXPRESSION", Short: "Make or replace a rule", Args: args(cobra.ExactArgs(2)),
		Example: `  orchestrator guard save refunds 'task.type == "payment.refund" && task.payload.amount > 1000' --required 2`,
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			if timeout%time.Millisecond != 0 {
				return usage(errors.New("--timeout must be whole milliseconds"))
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			rule.Expression, rule.TimeoutMs, rule.Enabled = a[1], timeout.Milliseconds(), wrapperspb.Bool(!disabled)
			req := &penstockv1.SaveRuleRequest{Name: a[0], Rule: &rule}
			if cmd.Flags().Changed("expected-revision") {
				req.ExpectedRevision = wrapperspb.Int64(expected)
			}
			res, err := cl.Approvals().SaveRule(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			said := "saved; it counts for every task enqueued from now on"
			if res.Msg.Unchanged {
				said = "unchanged"
			}
			_, err = fmt.Fprintf(w, "rule %s, revision %d: %s\n", a[0], res.Msg.Rule.Revision, said)
			return err
		},
	}
	f := c.Flags()
	f.Int32Var(&rule.Required, "required", 1, "how many different people must approve: 1 or 2")
	f.StringSliceVar(&rule.Approvers, "approver", nil, "who may: a principal, or role:NAME; may be repeated (default role:approver)")
	f.DurationVar(&timeout, "timeout", 24*time.Hour, "reject what nobody decided for this long")
	f.BoolVar(&disabled, "disabled", false, "store it without having it stop anything")
	f.StringVar(&rule.Description, "description", "", "what people are told who are asked")
	f.Int64Var(&expected, "expected-revision", 0, "fail unless the rule has this revision; 0: there is none")
	return c
}

func guardDeleteCmd() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Remove a rule; what it stopped still waits", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.Approvals().DeleteRule(cmd.Context(), connect.NewRequest(&penstockv1.DeleteRuleRequest{Name: a[0]}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			_, err = fmt.Fprintf(w, "rule %s is deleted\n", a[0])
			return err
		},
	}
}

func guardTestCmd() *cobra.Command {
	var t penstockv1.SampleTask
	var payload string
	c := &cobra.Command{
		Use: "test EXPRESSION", Short: "Try an expression on a sample task; nothing is stored", Args: args(cobra.ExactArgs(1)),
		Example: `  orchestrator guard test 'task.payload.amount > 1000' --type payment.refund --payload '{"amount": 1001}'`,
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			if payload != "" && !json.Valid([]byte(payload)) {
				return usage(errors.New("--payload is not JSON"))
			}
			t.Payload = []byte(payload)
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.Approvals().TestRule(cmd.Context(), connect.NewRequest(&penstockv1.TestRuleRequest{Expression: a[0], Task: &t}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			said := "passes"
			switch {
			case res.Msg.Error != "":
				said = "waits, because the rule can't be evaluated: " + line(res.Msg.Error, 1000)
			case res.Msg.Stops:
				said = "waits for approval"
			}
			_, err = fmt.Fprintln(w, said)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&payload, "payload", "", "JSON")
	f.StringVar(&t.Type, "type", "", "task type")
	f.StringVar(&t.Queue, "queue", "", "queue")
	f.StringVar(&t.RequestedBy, "requested-by", "", "principal")
	f.StringVar(&t.IdempotencyKey, "idempotency-key", "", "key")
	return c
}
