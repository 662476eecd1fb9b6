package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// maxCancel is how many tasks one call cancels or counts.
const maxCancel = 10_000

func taskCancelCmd(con *console) *cobra.Command {
	var (
		f          penstockv1.CancelTasksRequest
		after      string
		before     string
		reason     string
		dryRun, ok bool
	)
	c := &cobra.Command{
		Use: "cancel [TASK_ID...]", Short: "Cancel tasks by id, or those that a filter admits", Args: args(cobra.ArbitraryArgs),
		Long: `Cancel tasks for good: by id, or all that a filter admits. A task that waits never
starts; the handler of one that runs is told to stop within a second, and what it
returns changes nothing. A task that has ended can't be cancelled.

A filter asks first, and says how many tasks it admits; where there is no terminal
to ask on it cancels only with --yes. --dry-run counts what it would cancel.`,
		Example: `  orchestrator task cancel order-42 --reason "customer called"
  orchestrator task cancel --queue mail --state queued --state retrying --dry-run`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			filtered := f.Queue != "" || f.Type != "" || len(f.States) > 0 || after != "" || before != "" || f.AllTasks
			switch {
			case len(ids) > 0 && filtered:
				return usage(errors.New("task ids and a filter exclude each other"))
			case len(ids) > 0 && dryRun:
				return usage(errors.New("--dry-run is for filters"))
			case len(ids) > 0:
				return cancelEach(cmd, ids, reason)
			case !filtered:
				return usage(errors.New("name tasks, or a filter: --queue, --type, --state, --created-before, or --all for every task of the tenant"))
			case !dryRun && !ok && !con.interactive:
				return usage(errors.New("there is no terminal to ask on: look with --dry-run how many tasks the filter admits, then repeat with --yes"))
			}
			f.Tenant, f.Reason, f.MaxTasks = tenantOf(cmd), reason, maxCancel
			for flag, s := range map[string]string{"created-after": after, "created-before": before} {
				t, err := timeFlag(flag, s)
				if err != nil {
					return err
				}
				if flag == "created-after" {
					f.CreatedAfter = t
				} else {
					f.CreatedBefore = t
				}
			}
			return cancelFiltered(cmd, con, &f, dryRun, !dryRun && !ok)
		},
	}
	c.Flags().StringVar(&f.Queue, "queue", "", "only this queue")
	c.Flags().StringVar(&f.Type, "type", "", "only this type")
	c.Flags().StringSliceVar(&f.States, "state", nil, "only these states")
	c.Flags().StringVar(&after, "created-after", "", "only tasks created at this RFC 3339 time or later")
	c.Flags().StringVar(&before, "created-before", "", "only tasks created before this RFC 3339 time")
	c.Flags().BoolVar(&f.AllTasks, "all", false, "every task of the tenant that can be cancelled")
	c.Flags().StringVar(&reason, "reason", "", "why, at most 1,024 bytes; kept in the event log")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only count what the filter would cancel")
	c.Flags().BoolVar(&ok, "yes", false, "cancel what the filter admits without asking")
	return c
}

func timeFlag(name, s string) (*timestamppb.Timestamp, error) {
	if s == "" {
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return nil, usage(fmt.Errorf("--%s is %q, want an RFC 3339 time such as 2026-02-25T12:00:00Z", name, s))
	}
	return timestamppb.New(t), nil
}

// cancelEach goes on after a task that can't be cancelled.
func cancelEach(cmd *cobra.Command, ids []string, reason string) error {
	w, asJSON, err := output(cmd)
	if err != nil {
		return err
	}
	cl, err := dial(cmd)
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if !asJSON {
		w = tw
		_, _ = fmt.Fprintln(w, "TASK ID\tTYPE\tSTATE\tNOTE")
	}
	failed := 0
	for _, id := range ids {
		if err := cancelOne(cmd.Context(), cl, w, asJSON, &penstockv1.CancelTaskRequest{TaskId: id, Tenant: tenantOf(cmd), Reason: reason}); err != nil {
			if len(ids) == 1 {
				return err
			}
			failed++
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", line(id, 64), err)
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if failed > 0 {
		return &exitError{ExitFailed, fmt.Errorf("%d of %d tasks were not cancelled", failed, len(ids))}
	}
	return nil
}

func cancelOne(ctx context.Context, cl *client.Client, w io.Writer, asJSON bool, req *penstockv1.CancelTaskRequest) error {
	res, err := cl.RPC().CancelTask(ctx, connect.NewRequest(req))
	if err != nil {
		return err
	}
	if asJSON {
		return writeMessage(w, res.Msg)
	}
	note := ""
	if res.Msg.AlreadyCancelled {
		note = "was cancelled before"
	}
	t := res.Msg.Task
	_, err = fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", line(t.TaskId, 64), t.Type, t.State, note)
	return err
}

// cancelFiltered repeats the call while the filter admits more tasks. With ask
// somebody at the terminal decides first.
func cancelFiltered(cmd *cobra.Command, con *console, f *penstockv1.CancelTasksRequest, dryRun, ask bool) error {
	w, asJSON, err := output(cmd)
	if err != nil {
		return err
	}
	cl, err := dial(cmd)
	if err != nil {
		return err
	}
	sum, done := &penstockv1.CancelTasksResponse{}, false
	if ask {
		if done, err = askToCancel(cmd, con, cl, f); err != nil {
			return err
		}
	}
	for f.DryRun = dryRun; !done; {
		res, err := cl.RPC().CancelTasks(cmd.Context(), connect.NewRequest(f))
		if err != nil {
			return err
		}
		sum.Cancelled += res.Msg.Cancelled
		sum.More = res.Msg.More
		done = !sum.More || dryRun
	}
	if asJSON {
		return writeMessage(w, sum)
	}
	verb, more := "cancelled", ""
	if dryRun {
		if verb = "would cancel"; sum.More {
			more = " or more"
		}
	}
	_, err = fmt.Fprintf(w, "%s %d%s tasks\n", verb, sum.Cancelled, more)
	return err
}

// askToCancel counts the tasks that a filter admits and asks whether to cancel
// them. There may be none, and so nothing to ask.
func askToCancel(cmd *cobra.Command, con *console, cl *client.Client, f *penstockv1.CancelTasksRequest) (none bool, err error) {
	f.DryRun = true
	res, err := cl.RPC().CancelTasks(cmd.Context(), connect.NewRequest(f))
	if err != nil {
		return false, err
	}
	many := fmt.Sprintf("%d tasks", res.Msg.Cancelled)
	switch {
	case res.Msg.More:
		many = fmt.Sprintf("%d tasks or more", res.Msg.Cancelled)
	case res.Msg.Cancelled == 1:
		many = "1 task"
	case res.Msg.Cancelled == 0:
		return true, nil
	}
	yes, err := con.ask(cmd.Context(), cmd, fmt.Sprintf("Cancel %s for good: %s?", many, admitted(f)))
	switch {
	case err != nil:
		return false, &exitError{ExitInterrupted, errors.New("nothing was cancelled")}
	case !yes:
		return false, &exitError{ExitFailed, errors.New("nothing was cancelled")}
	}
	return false, nil
}

// admitted says which tasks a filter admits.
func admitted(f *penstockv1.CancelTasksRequest) string {
	out := []string{"tenant " + cmp.Or(f.Tenant, protocol.DefaultTenant)}
	for _, p := range [][2]string{{"queue", f.Queue}, {"type", f.Type}, {"state", strings.Join(f.States, " or ")}} {
		if p[1] != "" {
			out = append(out, p[0]+" "+line(p[1], 128))
		}
	}
	if f.CreatedAfter != nil {
		out = append(out, "created at "+stamp(f.CreatedAfter)+" or later")
	}
	if f.CreatedBefore != nil {
		out = append(out, "created before "+stamp(f.CreatedBefore))
	}
	if f.AllTasks {
		out = append(out, "all that can be cancelled")
	}
	return strings.Join(out, ", ")
}
