package cli

import (
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// effectCmd is about the ledger of side effects.
func effectCmd() *cobra.Command {
	c := group(&cobra.Command{
		Use: "effect", Short: "Look at side effects, and answer for those in doubt",
		Long: `Look at the ledger of side effects, and answer for those in doubt: a worker that was
lost may have made them, and nobody knows. The task waits until somebody has found
out and says so with effect resolve. See docs/effects.md.`,
	})
	clientFlags(c)
	c.AddCommand(effectListCmd(), effectShowCmd(), effectResolveCmd())
	return c
}

func effectListCmd() *cobra.Command {
	var req penstockv1.ListEffectsRequest
	var doubt bool
	c := &cobra.Command{
		Use: "list", Short: "List side effects, by key", Args: args(cobra.NoArgs),
		Example: "  orchestrator effect list --in-doubt\n  orchestrator effect list --task order-42",
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			if doubt && req.State != "" {
				return usage(errors.New("say --in-doubt or --state, not both"))
			}
			if doubt {
				req.State = "in_doubt"
			}
			req.Tenant = tenantOf(cmd)
			out := &penstockv1.ListEffectsResponse{}
			for limit := req.PageSize; ; {
				res, err := cl.Effects().ListEffects(cmd.Context(), connect.NewRequest(&req))
				if err != nil {
					return err
				}
				out.Effects = append(out.Effects, res.Msg.Effects...)
				out.NextPageToken, req.PageToken = res.Msg.NextPageToken, res.Msg.NextPageToken
				// A page may be short: the filter admits little.
				if req.PageSize = limit - int32(len(out.Effects)); req.PageToken == "" || req.PageSize <= 0 {
					break
				}
			}
			if asJSON {
				return writeMessage(w, out)
			}
			err = (&printer{w: w}).columns(func(w io.Writer) {
				_, _ = fmt.Fprintln(w, "SCOPE\tKIND\tKEY\tNAME\tSTATE\tRUNS\tCONFLICTS\tTASK\tDELIVERY\tRESERVED\tRESOLVED")
				for _, e := range out.Effects {
					effectRow(w, e)
				}
			})
			if err == nil && out.NextPageToken != "" {
				_, err = fmt.Fprintf(cmd.ErrOrStderr(), "there are more: --page-token %s\n", out.NextPageToken)
			}
			return err
		},
	}
	c.Flags().BoolVar(&doubt, "in-doubt", false, "only those in doubt")
	c.Flags().StringVar(&req.State, "state", "", "only this state: reserved, in_doubt, done or free")
	c.Flags().StringVar(&req.TaskId, "task", "", "only those of this task")
	c.Flags().StringVar(&req.Scope, "scope", "", "only this idempotency scope")
	c.Flags().Int32Var(&req.PageSize, "limit", 100, "most to list, 1 to 1000")
	c.Flags().StringVar(&req.PageToken, "page-token", "", "go on after an earlier list")
	return c
}

func effectRow(w io.Writer, e *penstockv1.Effect) {
	resolved := "-"
	if e.Resolution != "" {
		resolved = e.Resolution
		if e.ResolvedBy != "" {
			resolved += " by " + line(e.ResolvedBy, 64)
		}
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%d\t%s\t%s\n", line(e.Scope, 64), e.KeyKind, line(e.Key, 64), line(e.Name, 64), e.State, e.Runs, e.Conflicts,
		e.TaskId, e.Delivery, stamp(e.ReservedAt), resolved)
}

func effectShowCmd() *cobra.Command {
	var req penstockv1.GetEffectRequest
	c := &cobra.Command{
		Use: "show KEY NAME", Short: "Show one side effect: its state, result and history", Args: args(cobra.ExactArgs(2)),
		Example: "  orchestrator effect show order-42 charge",
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			req.Key, req.Name = a[0], a[1]
			res, err := cl.Effects().GetEffect(cmd.Context(), connect.NewRequest(&req))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg.Effect)
			}
			return showEffect(w, res.Msg.Effect)
		},
	}
	effectFlags(c, &req.Scope, &req.KeyKind)
	return c
}

// effectFlags are the parts of an effect's full key that are seldom needed.
func effectFlags(c *cobra.Command, scope, kind *string) {
	c.Flags().StringVar(scope, "scope", "", "its idempotency scope, or the tenant of a task without a key; default: default")
	c.Flags().StringVar(kind, "kind", "", "key: KEY is an idempotency key; task: the id of a task that has none; needed only where several could be meant")
}

// effectName names an effect in a line.
func effectName(name, kind, key, scope string) string {
	return fmt.Sprintf("%s of %s %s in scope %s", line(name, 128), kind, line(key, 255), line(scope, 255))
}

func showEffect(w io.Writer, e *penstockv1.Effect) error {
	return (&printer{w: w}).columns(func(w io.Writer) {
		row := func(name, format string, a ...any) {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, a...))
		}
		row("effect", "%s", effectName(e.Name, e.KeyKind, e.Key, e.Scope))
		row("state", "%s", e.State)
		row("reserved", "%s by %s, delivery %d of task %s", stamp(e.ReservedAt), line(e.WorkerId, 255), e.Delivery, e.TaskId)
		row("runs", "%d", e.Runs)
		if e.DoneAt != nil {
			row("done", "%s", stamp(e.DoneAt))
			result := line(string(e.Result), 2000)
			if e.ContentHidden {
				result = hidden
			}
			row("result", "%s", result)
		}
		if e.ResultNote != "" {
			row("no result", "%s", line(e.ResultNote, 1024))
		}
		if e.Resolution != "" {
			row("resolved", "%s at %s by %s: %s", e.Resolution, stamp(e.ResolvedAt), line(e.ResolvedBy, 128), line(e.ResolutionReason, 1024))
		}
		if e.Conflicts > 0 {
			row("conflicts", "%d: it may have happened more than once", e.Conflicts)
		}
		row("history", "%s", line(string(e.History), 4000))
	})
}

func effectResolveCmd() *cobra.Command {
	var req penstockv1.ResolveEffectRequest
	var done, notDone bool
	var result string
	c := &cobra.Command{
		Use: "resolve KEY NAME", Short: "Say whether a side effect in doubt has happened", Args: args(cobra.ExactArgs(2)),
		Long: `Say whether a side effect in doubt has happened. Find out first: ask the system that
it was to happen in, and make sure that the worker which was at it is gone. The task
that waits for it goes on: with the result, or by running it.`,
		Example: `  orchestrator effect resolve order-42 charge --done --result '{"receipt": 7}' --reason "the bank has it"
  orchestrator effect resolve order-42 charge --not-done --reason "the bank knows nothing of it"`,
		RunE: func(cmd *cobra.Command, a []string) error {
			if done == notDone {
				return usage(errors.New("say --done or --not-done"))
			}
			if req.Resolution = "not_done"; done {
				req.Resolution = "done"
			}
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			req.Key, req.Name, req.Result = a[0], a[1], []byte(result)
			res, err := cl.Effects().ResolveEffect(cmd.Context(), connect.NewRequest(&req))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			note := ""
			if res.Msg.AlreadyResolved {
				note = " (it was before)"
			}
			_, err = fmt.Fprintf(w, "effect %s of %s %s is %s%s; %d tasks go on\n", line(req.Name, 128), res.Msg.Effect.KeyKind, line(req.Key, 255), res.Msg.Effect.State, note, len(res.Msg.ReleasedTaskIds))
			return err
		},
	}
	c.Flags().BoolVar(&done, "done", false, "it has happened")
	c.Flags().BoolVar(&notDone, "not-done", false, "it certainly has not happened, and is to be run")
	c.Flags().StringVar(&result, "result", "", "its result as JSON, as the handler would have returned it; with --done")
	c.Flags().StringVar(&req.Reason, "reason", "", "how you know; required, kept")
	effectFlags(c, &req.Scope, &req.KeyKind)
	return c
}
