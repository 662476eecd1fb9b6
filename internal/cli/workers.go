package cli

import (
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// workersCmd is about the workers that send heartbeats.
func workersCmd() *cobra.Command {
	c := group(&cobra.Command{
		Use: "worker", Short: "Look at workers, and drain them",
		Long: `Look at workers, and drain them. Only workers that send heartbeats are known: those
whose orchestrator.url (PENSTOCK_ORCHESTRATOR_URL) is set.`,
	})
	clientFlags(c)
	c.AddCommand(workerListCmd(), workerDrainCmd())
	return c
}

func workerListCmd() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the workers that have sent a heartbeat lately", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.Workers().ListWorkers(cmd.Context(), connect.NewRequest(&penstockv1.ListWorkersRequest{}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			return (&printer{w: w}).columns(func(w io.Writer) {
				_, _ = fmt.Fprintln(w, "WORKER ID\tHOST\tPID\tQUEUES\tRUNNING\tSTUCK\tSTARTED\tSEEN\tDRAIN")
				for _, i := range res.Msg.Workers {
					workerRow(w, i)
				}
			})
		},
	}
}

func workerRow(w io.Writer, i *penstockv1.WorkerInfo) {
	drain := "-"
	if i.DrainAt != nil {
		drain = stamp(i.DrainAt) + " by " + line(i.DrainBy, 64)
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%d/%d\t%d\t%s\t%s\t%s\n", line(i.WorkerId, 255), line(i.Host, 64), i.Pid, line(strings.Join(i.Queues, ","), 64),
		i.Running, i.Concurrency, i.Stuck, stamp(i.StartedAt), stamp(i.SeenAt), drain)
}

func workerDrainCmd() *cobra.Command {
	return &cobra.Command{
		Use: "drain WORKER_ID", Short: "Order a worker to finish what it runs and stop", Args: args(cobra.ExactArgs(1)),
		Long: `Order a worker to stop fetching, finish what it runs within its shutdown_grace, hand
back the rest and stop, as on SIGTERM. It obeys with its next heartbeat. What
supervises the process may start it again.`,
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.Workers().DrainWorker(cmd.Context(), connect.NewRequest(&penstockv1.DrainWorkerRequest{WorkerId: a[0]}))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg.Worker)
			}
			i := res.Msg.Worker
			_, err = fmt.Fprintf(w, "%s drains: ordered at %s by %s; it runs %d tasks\n", line(i.WorkerId, 255), stamp(i.DrainAt), line(i.DrainBy, 64), i.Running)
			return err
		},
	}
}
