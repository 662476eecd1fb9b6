package cli

import (
	"fmt"
	"text/tabwriter"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// DLQReplay is the command tree of the dlq-replay program.
func DLQReplay() *cobra.Command {
	c := root("dlq-replay", "Looks at dead letters", `
Penstock's dead-letter tool. It talks to an orchestrator and shows tasks that
were given up, and stream entries that were no task.`)
	clientFlags(c)
	c.AddCommand(dlqListCmd(), dlqShowCmd())
	return c
}

func dlqListCmd() *cobra.Command {
	req := &penstockv1.ListDeadLettersRequest{}
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List dead letters, newest first", Args: args(cobra.NoArgs),
		Example: "  dlq-replay list --type email.send --code TASK_RETRY_EXHAUSTED",
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			if limit < 1 {
				return usage(fmt.Errorf("--limit is %d, want at least 1", limit))
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			req.Tenant = tenantOf(cmd)
			out := &penstockv1.ListDeadLettersResponse{}
			for left := limit; left > 0; {
				req.PageSize = int32(min(left, 1000))
				res, err := cl.RPC().ListDeadLetters(cmd.Context(), connect.NewRequest(req))
				if err != nil {
					return err
				}
				out.DeadLetters = append(out.DeadLetters, res.Msg.DeadLetters...)
				left -= len(res.Msg.DeadLetters)
				out.NextPageToken, req.PageToken = res.Msg.NextPageToken, res.Msg.NextPageToken
				if req.PageToken == "" {
					break
				}
			}
			if asJSON {
				return writeMessage(w, out)
			}
			tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			_, _ = fmt.Fprintln(tw, "DLQ ID\tFAILED AT\tTYPE\tTASK OR ENTRY\tRETRIES\tCODE\tERROR")
			for _, d := range out.DeadLetters {
				about := line(d.TaskId, 64)
				if about == "" {
					about = line(d.Stream+" "+d.MessageId, 64)
				}
				_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", d.DlqId, stamp(d.FailedAt), d.Type, about, d.RetryCount, d.ErrorCode, line(d.Error, 80))
			}
			if err := tw.Flush(); err != nil {
				return err
			}
			if out.NextPageToken != "" {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "there are more: --page-token %s\n", out.NextPageToken)
			}
			return nil
		},
	}
	c.Flags().StringVar(&req.Type, "type", "", "only this task type")
	c.Flags().StringVar(&req.ErrorCode, "code", "", "only this error code")
	c.Flags().StringVar(&req.PageToken, "page-token", "", "go on after an earlier list")
	c.Flags().IntVar(&limit, "limit", 100, "at most this many")
	return c
}

func dlqShowCmd() *cobra.Command {
	return &cobra.Command{
		Use: "show DLQ_ID", Short: "Show one dead letter with its payload or raw fields", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.RPC().GetDeadLetter(cmd.Context(), connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: a[0]}))
			if err != nil {
				return err
			}
			d := res.Msg.DeadLetter
			if asJSON {
				return writeMessage(w, d)
			}
			tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			for _, r := range [][2]string{
				{"dlq_id", d.DlqId}, {"task_id", d.TaskId}, {"type", d.Type}, {"tenant", d.Tenant}, {"queue", d.Queue},
				{"failed_at", stamp(d.FailedAt)}, {"recorded_at", stamp(d.RecordedAt)}, {"retry_count", fmt.Sprint(d.RetryCount)},
				{"error_code", d.ErrorCode}, {"error", d.Error}, {"stream", d.Stream}, {"message_id", d.MessageId},
				{"payload", string(d.Payload)}, {"raw", string(d.Raw)},
			} {
				if r[1] != "" {
					_, _ = fmt.Fprintf(tw, "%s\t%s\n", r[0], line(r[1], 2000))
				}
			}
			return tw.Flush()
		},
	}
}
