package cli

import (
	"errors"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func taskRescheduleCmd() *cobra.Command {
	var (
		at, reason string
		delay      time.Duration
		now        bool
	)
	c := &cobra.Command{
		Use: "reschedule TASK_ID", Short: "Give a task that is not due yet another time", Args: args(cobra.ExactArgs(1)),
		Long: `Give a task another time. It must be pending and not due yet, or wait for other tasks
or for a person's decision; what an approval allowed does not hold for the new time.`,
		Example: "  orchestrator task reschedule order-42 --at 2026-12-24T18:00:00+01:00\n  orchestrator task reschedule order-42 --now",
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			req := &penstockv1.RescheduleTaskRequest{TaskId: a[0], Tenant: tenantOf(cmd), Reason: reason}
			given := 0
			if cmd.Flags().Changed("at") {
				given++
				req.ScheduleType = "at"
				if req.ScheduledAt, err = timeFlag("at", at); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("delay") {
				given++
				req.ScheduleType, req.DelayMs = "delay", delay.Milliseconds()
			}
			if now {
				given++
				req.ScheduleType = "now"
			}
			if given != 1 {
				return usage(errors.New("give one of --at, --delay and --now"))
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.RPC().RescheduleTask(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			return taskDetail(w, res.Msg.Task)
		},
	}
	c.Flags().StringVar(&at, "at", "", "run at this RFC 3339 time")
	c.Flags().DurationVar(&delay, "delay", 0, "run this long from now")
	c.Flags().BoolVar(&now, "now", false, "run at once")
	c.Flags().StringVar(&reason, "reason", "", "why, at most 1,024 bytes; kept in the event log")
	return c
}
