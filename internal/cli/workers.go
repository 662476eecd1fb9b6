package cli

import (
	"errors"
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
		Use: "worker", Short: "Look at workers, drain them, and take over from dead ones",
		Long: `Look at workers, drain them, and take over from dead ones. Workers send heartbeats if
their orchestrator.url (PENSTOCK_ORCHESTRATOR_URL) is set; others are known by what they run.`,
	})
	clientFlags(c)
	c.AddCommand(workerListCmd(), workerDrainCmd(), workerEvictCmd())
	return c
}

func workerListCmd() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the workers that have sent a heartbeat lately or run something, and what", Args: args(cobra.NoArgs),
		Long: `List the workers that have sent a heartbeat within three of their intervals, or are on
record as running a task, and their tasks: at most 50 each, longest running first. A
task shows 200 ms after its start.`,
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
				_, _ = fmt.Fprintln(w, "WORKER ID\tHOST\tPID\tVERSION\tQUEUES\tRUNNING\tSTUCK\tSTARTED\tSEEN\tDRAIN")
				running := 0
				for _, i := range res.Msg.Workers {
					workerRow(w, i)
					running += len(i.Tasks)
				}
				if running == 0 {
					return
				}
				_, _ = fmt.Fprintln(w, "\nWORKER ID\tTASK ID\tTYPE\tQUEUE\tATTEMPT\tSINCE")
				for _, i := range res.Msg.Workers {
					taskRows(w, i)
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
	if i.SeenAt == nil { // it sends no heartbeats
		_, _ = fmt.Fprintf(w, "%s\t-\t-\t-\t-\t%d\t-\t-\t-\t-\n", line(i.WorkerId, 255), len(i.Tasks))
		return
	}
	_, _ = fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d/%d\t%d\t%s\t%s\t%s\n", line(i.WorkerId, 255), line(i.Host, 64), i.Pid, line(i.Version, 32), line(strings.Join(i.Queues, ","), 64),
		i.Running, i.Concurrency, i.Stuck, stamp(i.StartedAt), stamp(i.SeenAt), drain)
}

func taskRows(w io.Writer, i *penstockv1.WorkerInfo) {
	for _, t := range i.Tasks {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", line(i.WorkerId, 255), line(t.TaskId, 255), line(t.Type, 128), line(t.Queue, 64), t.Attempt, stamp(t.StartedAt))
	}
	if i.TasksCut {
		_, _ = fmt.Fprintf(w, "%s\t…\n", line(i.WorkerId, 255))
	}
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

func workerEvictCmd() *cobra.Command {
	m := &penstockv1.EvictWorkerRequest{}
	c := &cobra.Command{
		Use: "evict WORKER_ID", Short: "Take over what a dead worker holds, now rather than after the visibility timeout", Args: args(cobra.ExactArgs(1)),
		Long: `Take over what a worker holds whose process or host is gone: its tasks are interrupted,
as when their leases lapse, and run again elsewhere at once. What it has reported
counts; what it reports later is refused. It is refused while the worker is evidently
alive, unless it is forced: to stop one that lives, drain it.

A name that is not UTF-8 is given as redis-cli shows it, in double quotes with escapes.`,
		Example: `  orchestrator worker evict mail-3-1-5f0c2a77 --reason "host mail-3 lost power" --force`,
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			if m.Reason == "" {
				return usage(errors.New("--reason is required: it is kept in the events of the tasks"))
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			m.WorkerId = a[0]
			res, err := cl.Workers().EvictWorker(cmd.Context(), connect.NewRequest(m))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			_, err = fmt.Fprintf(w, "%s is evicted: %d tasks are due again; it held %d entries\n", line(a[0], 255), res.Msg.Reclaimed, res.Msg.Entries)
			return err
		},
	}
	c.Flags().StringVar(&m.Reason, "reason", "", "why, for the events of its tasks (required)")
	c.Flags().BoolVar(&m.Force, "force", false, "evict it although it has given a sign of life lately")
	return c
}
