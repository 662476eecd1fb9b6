package cli

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/logging"
)

// Worker is the command tree of the worker program.
func Worker() *cobra.Command {
	c := root("worker", "Runs tasks with handlers declared in a configuration file", `
Penstock's ready-made worker. Its configuration file declares a handler for
each task type: http (POST the payload), exec (run a program), echo, sleep,
inject (fail as the payload says). It needs Redis only. To write handlers in Go,
use package worker instead.

On SIGTERM or SIGINT it stops fetching, lets running tasks finish for
shutdown_grace, hands back the rest, and leaves. A second signal ends it at once.`)
	c.Args = args(cobra.NoArgs)
	c.Example = "  worker --config worker.yaml --redis-url redis://localhost:6379/0"
	config.AddFlags(c.Flags(), config.DefaultWorker())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, _, err := config.LoadWorker(configFile(cmd), cmd.Flags())
		if err != nil {
			return usage(err)
		}
		log, err := logging.New(os.Stderr, cfg.Log)
		if err != nil {
			return usage(err)
		}
		slog.SetDefault(log)
		if err := cfg.RequireRedis(); err != nil {
			return usage(err)
		}
		w, err := app.NewWorker(cfg, log)
		if err != nil {
			return usage(err)
		}
		return w.Run(cmd.Context())
	}
	p := &cobra.Command{
		Use: "config", Short: "Print every setting, its value and where it comes from", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, origins, err := config.LoadWorker(configFile(cmd), cmd.Flags())
			if err != nil {
				return usage(err)
			}
			format, _ := cmd.Flags().GetString("output")
			return usage(config.Print(cmd.OutOrStdout(), cfg, origins, format))
		},
	}
	config.AddFlags(p.Flags(), config.DefaultWorker())
	p.Flags().StringP("output", "o", "table", "output format: table or json")
	c.AddCommand(p, workerHealthCmd())
	return c
}
