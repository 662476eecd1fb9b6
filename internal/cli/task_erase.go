package cli

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func taskEraseCmd() *cobra.Command {
	var (
		reason string
		yes    bool
	)
	c := &cobra.Command{
		Use: "erase TASK_ID", Short: "Erase what a task that has ended carried, for good", Args: args(cobra.ExactArgs(1)),
		Long: `Erase the content of a task that has ended, for good: payload, result, progress and
error texts, in its row, its events and its dead letter, and the results of its
effects. That it ran, when and how it ended stays. Its dead letter can't be requeued
any more. What was requeued from it has a copy of its own: the answer names them.`,
		Example: `  orchestrator task erase order-42 --reason "customer asked, ticket 4711" --yes`,
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			if !yes {
				return usage(errors.New("nothing brings back what is erased: repeat with --yes"))
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.RPC().EraseTask(cmd.Context(), connect.NewRequest(&penstockv1.EraseTaskRequest{TaskId: a[0], Tenant: tenantOf(cmd), Reason: reason}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			was := "erased"
			if res.Msg.AlreadyErased {
				was = "erased before"
			}
			if _, err := fmt.Fprintf(w, "content of task %s %s\n", line(a[0], 255), was); err != nil {
				return err
			}
			if ids := res.Msg.RequeuedTaskIds; len(ids) > 0 {
				_, err = fmt.Fprintf(w, "requeued from it, with copies of their own: %s\n", strings.Join(ids, " "))
			}
			return err
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, 1 to 1,000 bytes; kept in the event log, so don't repeat in it what is to be erased")
	c.Flags().BoolVar(&yes, "yes", false, "yes, erase it")
	return c
}
