package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/demo"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/logging"
)

func devCmd() *cobra.Command {
	var dir, workerFile string
	var ephemeral bool
	c := &cobra.Command{
		Use: "dev", Short: "Run a whole system on this machine: Postgres, Redis, an orchestrator and a worker", Args: args(cobra.NoArgs),
		Long: `Run a whole system on this machine until interrupted. It supervises a private
Postgres and Redis as child processes; where postgres.url or redis.url is set,
that server is used instead. The worker has handlers "echo" and "sleep", or
those of --worker-config.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, log, err := load(cmd)
			if err != nil {
				return err
			}
			wcfg, err := devWorker(workerFile)
			if err != nil {
				return err
			}
			wcfg.VisibilityTimeout = cfg.Recovery.VisibilityTimeout
			if ephemeral {
				dir = ""
			}
			d, err := app.StartDev(cmd.Context(), app.DevOptions{Dir: dir, Orchestrator: cfg, Worker: wcfg, Log: log})
			if err != nil {
				return err
			}
			printDev(cmd.OutOrStdout(), d, dir, wcfg)
			err = d.Run(cmd.Context())
			if e := d.Close(); err == nil {
				err = e
			}
			return err
		},
	}
	config.AddFlags(c.Flags(), config.DefaultOrchestrator())
	c.Flags().StringVar(&dir, "data-dir", devstack.DefaultDir(), "where the servers keep their data")
	c.Flags().BoolVar(&ephemeral, "ephemeral", false, "keep no data: use a temporary directory")
	c.Flags().StringVar(&workerFile, "worker-config", "", "configuration file of the worker")
	return c
}

func devWorker(file string) (config.Worker, error) {
	if file == "" {
		w := config.DefaultWorker()
		w.Handlers = map[string]config.Handler{"echo": {Kind: "echo"}, "sleep": {Kind: "sleep"}}
		return w, nil
	}
	w, _, err := config.LoadWorker(file, nil)
	return w, usage(err)
}

func printDev(w io.Writer, d *app.Dev, dir string, wcfg config.Worker) {
	url := "http://" + d.Orchestrator.Addr()
	kept := "not supervised: your own servers"
	if d.Stack != nil {
		kept = d.Stack.Dir
		if dir == "" {
			kept += " (temporary: removed at the end)"
		}
	}
	_, _ = fmt.Fprintf(w, `
Penstock is up.

  RPC        %s   (gRPC, gRPC-Web, Connect, REST under /api/v1/, OpenAPI at /openapi.json)
  Postgres   %s
  Redis      %s
  Data       %s
  Handlers   `, url, d.PostgresURL, d.RedisURL, kept)
	for t, h := range wcfg.Handlers {
		_, _ = fmt.Fprintf(w, "%s (%s)  ", t, h.Kind)
	}
	server := ""
	if d.Orchestrator.Addr() != "127.0.0.1:8080" {
		server = " --server " + url
	}
	_, _ = fmt.Fprintf(w, `

Enqueue:     orchestrator enqueue echo '{"n":1}'%[2]s
             curl -s %[1]s/api/v1/tasks -d '{"type":"echo","payload":{"n":1}}' -H 'Content-Type: application/json'
Look:        orchestrator task list%[2]s
             orchestrator task watch%[2]s
Stop:        Ctrl-C

`, url, server)
}

func demoCmd() *cobra.Command {
	var tasks int
	c := &cobra.Command{
		Use: "demo", Short: "Run the main job once on real servers, check every number, and exit", Args: args(cobra.NoArgs),
		Long: `Start a private Postgres and Redis, an orchestrator and a worker; enqueue tasks of
three types through the RPC (hashing files by a program, posting to an HTTP
receiver, echo); print counts, throughput, start latency, an event log and the
group's pending count. Exit code 0 only if every number is as it must be.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tasks < 1 || tasks > 100_000 {
				return usage(fmt.Errorf("--tasks is %d, want 1 to 100000", tasks))
			}
			cfg, origins, log, err := load(cmd)
			if err != nil {
				return err
			}
			if origins.Of("log.level").Source == config.SourceDefault {
				cfg.Log.Level = "warn" // the report is what matters here
				if log, err = logging.New(cmd.ErrOrStderr(), cfg.Log); err != nil {
					return err
				}
			}
			w := config.DefaultWorker()
			w.Concurrency = 32
			return demo.Run(cmd.Context(), demo.Options{
				Orchestrator: cfg, Worker: w, Tasks: tasks, Out: cmd.OutOrStdout(), Progress: cmd.ErrOrStderr(),
				Terminal: isatty.IsTerminal(os.Stderr.Fd()), Log: log,
			})
		},
	}
	config.AddFlags(c.Flags(), config.DefaultOrchestrator())
	c.Flags().IntVar(&tasks, "tasks", 500, "how many tasks of each of the three types")
	return c
}
