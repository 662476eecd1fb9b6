package cli

import (
	"io"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func deploymentCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "deployment", Short: "Show which deployment answers, and the seed of its retry jitter", Args: args(cobra.NoArgs),
		Long: `Show which deployment answers. Its seed, a task's id and its retry count determine
the jitter of every retry: with them each delay in the event log can be computed
again.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.RPC().GetDeployment(cmd.Context(), connect.NewRequest(&penstockv1.GetDeploymentRequest{}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			return (&printer{w: w}).columns(func(w io.Writer) {
				facts(w, [][2]string{
					{"deployment_id", res.Msg.DeploymentId}, {"seed", res.Msg.Seed},
					{"created_at", stamp(res.Msg.CreatedAt)}, {"version", res.Msg.Version},
				})
			})
		},
	}
	clientFlags(c)
	return c
}
