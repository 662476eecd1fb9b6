package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

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
that server is used instead. The worker has handlers "echo", "sleep" and
"inject" (fails as the payload says), or those of --worker-config. Unless
auth.tokens_file is set, four people have a token each: alice (producer, operator),
bob (operator, approver), carol (approver) and ada (admin); callers without a
token may call everything. Unless internal_jobs.enabled says otherwise, the internal run interface is on.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, origins, log, err := load(cmd)
			if err != nil {
				return err
			}
			if origins.Of("internal_jobs.enabled").Source == config.SourceDefault {
				cfg.InternalJobs.Enabled = true
			}
			wcfg, err := devWorker(workerFile)
			if err != nil {
				return err
			}
			wcfg.VisibilityTimeout = cfg.Recovery.VisibilityTimeout
			if ephemeral {
				dir = ""
			}
			d, err := app.StartDev(cmd.Context(), app.DevOptions{Dir: dir, Principals: devPeople, Orchestrator: cfg, Worker: wcfg, Log: log})
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

// devPeople are those who have a token in dev.
var devPeople = []string{
	"alice roles=producer,operator", "bob roles=operator,approver,payloads", "carol roles=approver,payloads", "ada roles=admin",
}

func devWorker(file string) (config.Worker, error) {
	if file == "" {
		w := config.DefaultWorker()
		w.Handlers = map[string]config.Handler{
			"echo": {Kind: "echo"}, "sleep": {Kind: "sleep"},
			"inject": {Kind: "inject", SimulateRestart: true}, // others live in this process
		}
		return w, nil
	}
	w, _, err := config.LoadWorker(file, nil)
	return w, usage(err)
}

func printDev(w io.Writer, d *app.Dev, dir string, wcfg config.Worker) {
	url := d.Orchestrator.URL()
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
	for _, t := range slices.Sorted(maps.Keys(wcfg.Handlers)) {
		_, _ = fmt.Fprintf(w, "%s (%s)  ", t, wcfg.Handlers[t].Kind)
	}
	server := ""
	if url != config.DefaultClient().Server {
		server = " --server " + url
	}
	dataDir := ""
	if d.Stack != nil && dir != devstack.DefaultDir() {
		dataDir = " --data-dir " + d.Stack.Dir
	}
	_, _ = fmt.Fprintf(w, `

Enqueue:     orchestrator enqueue echo '{"n":1}'%[2]s
             curl -s %[1]s/api/v1/tasks -d '{"type":"echo","payload":{"n":1}}' -H 'Content-Type: application/json'
Fail once:   orchestrator enqueue inject '{"mode":"transient_error","times":1}'%[2]s
Look:        orchestrator task list%[2]s
             orchestrator task watch%[2]s
Accept:      orchestrator verify --gate-b2%[2]s%[4]s
             orchestrator verify --acceptance%[2]s%[4]s
%[3]sStop:        Ctrl-C

`, url, server, tokenLines(d.TokenFiles, devPeople), dataDir)
}

// tokenLines tells how to use the tokens that dev made for people.
func tokenLines(files, people []string) string {
	title, lines := "Who you are:", ""
	for i, f := range files {
		_, roles, _ := strings.Cut(people[i], "roles=")
		lines += fmt.Sprintf("%-12s export PENSTOCK_TOKEN_FILE=%s   # %s\n", title, f, strings.ReplaceAll(roles, ",", ", "))
		title = "         or:"
	}
	return lines
}

func demoCmd() *cobra.Command {
	var tasks int
	c := &cobra.Command{
		Use: "demo", Short: "Run the main job once on real servers, check every number, and exit", Args: args(cobra.NoArgs),
		Long: `Start a private Postgres and Redis, an orchestrator and a worker; enqueue tasks of
three types through the RPC (hashing files by a program, posting to an HTTP
receiver, echo); print counts, throughput, start latency, an event log and the
group's pending count. Then a worker process is killed in the middle of a task,
and another one takes it over. Then tasks fail: one is retried, one becomes a dead letter
and is edited and requeued, one is discarded by two people, and the whole record
is verified. Exit code 0 only if every number is as it must be.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if tasks < 1 || tasks > 100_000 {
				return usage(fmt.Errorf("--tasks is %d, want 1 to 100000", tasks))
			}
			cfg, origins, log, err := load(cmd)
			if err != nil {
				return err
			}
			if origins.Of("log.level").Source == config.SourceDefault {
				cfg.Log.Level = "error" // the report tells of the failures that it causes
				if log, err = logging.New(cmd.ErrOrStderr(), cfg.Log); err != nil {
					return err
				}
			}
			w := config.DefaultWorker()
			w.Concurrency = 32
			return demo.Run(cmd.Context(), demo.Options{
				Orchestrator: cfg, Worker: w, Tasks: tasks, Out: cmd.OutOrStdout(), Progress: cmd.ErrOrStderr(),
				Terminal: isatty.IsTerminal(os.Stderr.Fd()), Command: demoCommand(cmd.OutOrStdout()), Log: log,
			})
		},
	}
	config.AddFlags(c.Flags(), config.DefaultOrchestrator())
	c.Flags().IntVar(&tasks, "tasks", 500, "how many tasks of each of the three types")
	return c
}

// demoCommand runs the programs' command trees in this process, so that the
// demo shows what an operator would see.
func demoCommand(w io.Writer) demo.Command {
	return func(ctx context.Context, s demo.System, as string, argv ...string) int {
		programs := map[string]func() *cobra.Command{"orchestrator": Orchestrator, "dlq-replay": DLQReplay}
		root := programs[argv[0]]()
		args := argv[1:]
		if argv[1] == "verify" {
			args = append(args, "--postgres-url", s.PostgresURL, "--redis-url", s.RedisURL)
		} else {
			args = append(args, "--server", s.Server)
		}
		if as != "" {
			args = append(args, "--token-file", s.TokenFiles[as])
		}
		root.SetArgs(args)
		root.SetOut(w)
		root.SetErr(io.Discard) // what a script would not see either
		err := root.ExecuteContext(ctx)
		if err != nil {
			_, _ = fmt.Fprintf(w, "%s: %s\n", root.Name(), describe(err))
			return exitCode(ctx, err)
		}
		return ExitOK
	}
}
