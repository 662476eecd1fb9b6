package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func taskCmd(con *console) *cobra.Command {
	c := group(&cobra.Command{Use: "task", Short: "Look at tasks and their events, cancel and reschedule them"})
	clientFlags(c)
	c.AddCommand(taskGetCmd(), taskListCmd(), taskCancelCmd(con), taskRescheduleCmd(), taskEraseCmd(), taskCountCmd(), taskWaitCmd(), taskGraphCmd(), taskEventsCmd(), taskWatchCmd())
	return c
}

func tenantOf(cmd *cobra.Command) string {
	t, _ := cmd.Flags().GetString("tenant")
	return t
}

func taskGetCmd() *cobra.Command {
	return &cobra.Command{
		Use: "get TASK_ID", Short: "Show one task", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.RPC().GetTask(cmd.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: a[0], Tenant: tenantOf(cmd)}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg.Task)
			}
			return taskDetail(w, res.Msg.Task)
		},
	}
}

func taskListCmd() *cobra.Command {
	req := &penstockv1.ListTasksRequest{}
	var f taskFilter
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List tasks, newest first", Args: args(cobra.NoArgs),
		Example: "  orchestrator task list --state retrying --state running --type email.send\n  orchestrator task list --since 2h --code TASK_TIMEOUT\n  orchestrator task list --state running --longer-than 10m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			if limit < 1 {
				return usage(fmt.Errorf("--limit is %d, want at least 1", limit))
			}
			if err := f.read(req, time.Now()); err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			req.Tenant = tenantOf(cmd)
			out := &penstockv1.ListTasksResponse{}
			search := searching{w: cmd.ErrOrStderr()}
			for left := limit; left > 0; {
				req.PageSize = int32(min(left, 1000))
				res, err := cl.RPC().ListTasks(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				out.Tasks = append(out.Tasks, res.Msg.Tasks...)
				left -= len(res.Msg.Tasks)
				out.NextPageToken, req.PageToken = res.Msg.NextPageToken, res.Msg.NextPageToken
				if req.PageToken == "" {
					break
				}
				search.until(res.Msg.SearchedUntil)
			}
			if asJSON {
				return writeMessage(w, out)
			}
			if err := taskTable(w, out.Tasks); err != nil {
				return err
			}
			if out.NextPageToken != "" {
				more(cmd, out.NextPageToken, f.times(req)...)
			}
			return nil
		},
	}
	f.flags(c, req)
	c.Flags().StringVar(&req.PageToken, "page-token", "", "go on after an earlier list")
	c.Flags().IntVar(&limit, "limit", 100, "at most this many")
	return c
}

func taskCountCmd() *cobra.Command {
	req := &penstockv1.CountTasksRequest{}
	c := &cobra.Command{
		Use: "count", Short: "Count tasks by state", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			req.Tenant = tenantOf(cmd)
			res, err := cl.RPC().CountTasks(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(tw, "STATE\tTASKS")
			for _, n := range res.Msg.Counts {
				_, _ = fmt.Fprintf(tw, "%s\t%d\n", n.State, n.Count)
			}
			return tw.Flush()
		},
	}
	c.Flags().StringVar(&req.Queue, "queue", "", "only this queue")
	c.Flags().StringVar(&req.Type, "type", "", "only this type")
	return c
}

func taskWaitCmd() *cobra.Command {
	var limit time.Duration
	c := &cobra.Command{
		Use: "wait TASK_ID", Short: "Wait until a task is terminal and show it", Args: args(cobra.ExactArgs(1)),
		Long: "Wait until a task is terminal and show it. Exit code 0 if it succeeded, 1 if it failed or was\ncancelled, 7 if it was not terminal within --timeout.",
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			t, err := waitTask(cmd, cl, tenantOf(cmd), a[0], limit)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeMessage(w, t)
			} else {
				err = taskDetail(w, t)
			}
			return errors.Join(err, howEnded(t))
		},
	}
	c.Flags().DurationVar(&limit, "timeout", 5*time.Minute, "wait at most this long")
	return c
}

// waitTask waits until a task is terminal, at most for limit.
func waitTask(cmd *cobra.Command, cl *client.Client, tenant, id string, limit time.Duration) (*penstockv1.Task, error) {
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	t, err := cl.Wait(ctx, tenant, id)
	if errors.Is(err, context.DeadlineExceeded) && cmd.Context().Err() == nil {
		return nil, &exitError{ExitNotFinished, fmt.Errorf("task %s is not finished after %s", id, limit)}
	}
	return t, err
}

// howEnded is the error of a task that did not succeed.
func howEnded(t *penstockv1.Task) error {
	if t.State == string(protocol.StateSucceeded) {
		return nil
	}
	why := ""
	if t.LastErrorCode != nil {
		why = ": " + t.LastErrorCode.Value + ": " + line(t.LastErrorReason.GetValue(), 500)
	}
	return &exitError{ExitFailed, fmt.Errorf("task %s is %s%s", line(t.TaskId, 255), t.State, why)}
}

func taskWatchCmd() *cobra.Command {
	req := &penstockv1.WatchEventsRequest{}
	c := &cobra.Command{
		Use: "watch [TASK_ID]", Short: "Follow events as they are committed", Args: args(cobra.MaximumNArgs(1)),
		Long: "Follow events as they are committed, of one task or of all, until interrupted. With -o json each\nline is one response with its position; --position resumes after it without missing an event.",
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			req.Tenant = tenantOf(cmd)
			if len(a) == 1 {
				req.TaskId = a[0]
			}
			stream, err := cl.RPC().WatchEvents(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			defer func() { _ = stream.Close() }()
			for stream.Receive() {
				m := stream.Msg()
				if asJSON {
					if err := writeMessage(w, m); err != nil {
						return err
					}
					continue
				}
				for _, e := range m.Events {
					eventRow(w, e, true)
				}
			}
			if cmd.Context().Err() != nil {
				return &exitError{ExitInterrupted, errors.New("interrupted")}
			}
			return stream.Err()
		},
	}
	c.Flags().StringVar(&req.Position, "position", "", "resume after this position, or \"earliest\"")
	c.Flags().StringSliceVar(&req.Types, "type", nil, "only these event types")
	return c
}
