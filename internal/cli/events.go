package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func taskEventsCmd() *cobra.Command {
	req := &penstockv1.ListEventsRequest{PageSize: 1000}
	var format string
	c := &cobra.Command{
		Use: "events TASK_ID", Short: "Show a task's event log", Args: args(cobra.ExactArgs(1)),
		Example: "  orchestrator task events TASK_ID --type task.retry_scheduled\n  orchestrator task events TASK_ID --format men -o json",
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			if format != "log" && format != "men" {
				return usage(fmt.Errorf("--format is %q, want log or men", format))
			}
			req.TaskId, req.Tenant = a[0], tenantOf(cmd)
			if format == "men" {
				if len(req.Types) > 0 || req.Attempt != 0 || req.RunId != "" {
					return usage(fmt.Errorf("--format men shows a whole history: --type, --attempt and --run do not go with it"))
				}
				return stateEvents(cmd, w, asJSON, req)
			}
			return logEvents(cmd, w, asJSON, req)
		},
	}
	c.Flags().StringSliceVar(&req.Types, "type", nil, "only these event types, e.g. task.failed")
	c.Flags().Int32Var(&req.Attempt, "attempt", 0, "only events of this attempt, 1, 2, 3 …")
	c.Flags().StringVar(&req.RunId, "run", "", "only events of this run, task_id:attempt")
	c.Flags().StringVar(&format, "format", "log", "log: the event log; men: the changes of state in the words and the shape of the task scheduling contract")
	return c
}

// logEvents shows a log to its end.
func logEvents(cmd *cobra.Command, w io.Writer, asJSON bool, req *penstockv1.ListEventsRequest) error {
	cl, err := dial(cmd)
	if err != nil {
		return err
	}
	out := &penstockv1.ListEventsResponse{}
	for {
		res, err := cl.RPC().ListEvents(cmd.Context(), connect.NewRequest(req))
		if err != nil {
			return err
		}
		out.Events = append(out.Events, res.Msg.Events...)
		if req.AfterSeq = res.Msg.NextAfterSeq; req.AfterSeq == 0 {
			break
		}
	}
	if asJSON {
		return writeMessage(w, out)
	}
	return eventTable(w, out.Events, false)
}

func stateEvents(cmd *cobra.Command, w io.Writer, asJSON bool, req *penstockv1.ListEventsRequest) error {
	cl, err := dial(cmd)
	if err != nil {
		return err
	}
	res, err := cl.RPC().ListStateEvents(cmd.Context(), connect.NewRequest(&penstockv1.ListStateEventsRequest{TaskId: req.TaskId, Tenant: req.Tenant}))
	if err != nil {
		return err
	}
	if asJSON {
		return writeMessage(w, res.Msg)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "TIME\tFROM\tTO\tATTEMPT\tREASON CODE\tREASON")
	for _, e := range res.Msg.Events {
		p := e.Payload
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%d\t%s\t%s\n", stamp(p.OccurredAt), orDash(p.FromState), p.ToState, p.Attempt, line(orDash(p.ReasonCode), 40), line(p.ReasonMessage, 80))
	}
	return tw.Flush()
}

// eventsCmd searches events of several tasks.
func eventsCmd() *cobra.Command {
	req := &penstockv1.SearchEventsRequest{}
	var since, until string
	var limit int
	c := &cobra.Command{
		Use: "events", Short: "Search the events of a workflow, of a trace, or of all tasks within a time", Args: args(cobra.NoArgs),
		Long: `Search events, oldest first: of a workflow (--workflow: the id of a graph, of any of
its tasks, or of a task that is in none), of a trace (--trace), or of all tasks
within a time. Without any of these it is the last 24 hours.`,
		Example: "  orchestrator events --workflow TASK_ID --attempt 2\n  orchestrator events --since 10m --type task.failed --type task.dlq",
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := newPrinter(cmd)
			if err != nil {
				return err
			}
			times := []timeBound{{"--since", since, &req.Since}, {"--until", until, &req.Until}}
			if err := readTimes(time.Now(), times...); err != nil {
				return err
			}
			return searchEvents(cmd, p, req, limit, times)
		},
	}
	clientFlags(c)
	c.Flags().StringVar(&req.WorkflowId, "workflow", "", "only events of this workflow")
	c.Flags().StringVar(&req.TraceId, "trace", "", "only events of tasks with this trace id")
	c.Flags().StringSliceVar(&req.Types, "type", nil, "only these event types, e.g. task.failed")
	c.Flags().Int32Var(&req.Attempt, "attempt", 0, "only events of this attempt, 1, 2, 3 …")
	c.Flags().StringVar(&since, "since", "", "only events at or after this time: RFC 3339, or a duration ago such as 2h")
	c.Flags().StringVar(&until, "until", "", "only events before this time: RFC 3339, or a duration ago")
	c.Flags().StringVar(&req.PageToken, "page-token", "", "go on after an earlier search")
	c.Flags().IntVar(&limit, "limit", 1000, "at most this many; 0: all")
	return c
}

func searchEvents(cmd *cobra.Command, p *printer, req *penstockv1.SearchEventsRequest, limit int, times []timeBound) error {
	cl, err := dial(cmd)
	if err != nil {
		return err
	}
	req.Tenant = tenantOf(cmd)
	l := &listing[*penstockv1.Event]{
		p: p, key: "events", head: "TASK ID\tSEQ\tTIME\tEVENT\tSTATUS\tATTEMPT\tDELIVERY\tACTOR\tDETAIL",
		row: func(w io.Writer, e *penstockv1.Event) { eventRow(w, e, true) },
	}
	search := searching{w: cmd.ErrOrStderr()}
	next, err := l.pages(limit, 1000, req.PageToken, func(size int32, token string) ([]*penstockv1.Event, string, error) {
		req.PageSize, req.PageToken = size, token
		res, err := cl.RPC().SearchEvents(cmd.Context(), connect.NewRequest(req))
		if err != nil {
			return nil, "", err
		}
		search.until(res.Msg.SearchedUntil)
		return res.Msg.Events, res.Msg.NextPageToken, nil
	})
	if err == nil && next != "" && p.table() {
		more(cmd, next, times...)
	}
	return err
}
