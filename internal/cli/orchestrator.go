package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/logging"
	"github.com/penstock-dev/penstock/internal/store"
)

// Orchestrator is the command tree of the orchestrator program.
func Orchestrator() *cobra.Command { return orchestrator(systemConsole()) }

func orchestrator(con *console) *cobra.Command {
	c := root("orchestrator", "Accepts tasks, dispatches them to workers, and keeps the record", `
Penstock's orchestrator. Producers enqueue tasks through its RPC; it stores
them in Postgres, puts due ones into Redis Streams, and applies what workers
report. Any number of orchestrators share one Postgres and one Redis.

Try it:   orchestrator dev                     a whole system on this machine
          orchestrator enqueue echo '{"n":1}'  (in a second terminal)
          orchestrator task list`)
	c.AddCommand(serveCmd(), devCmd(), demoCmd(), migrateCmd(), enqueueCmd(), taskCmd(con), eventsCmd(), scheduleCmd(), approvalCmd(), guardCmd(), queueCmd(), effectCmd(), workersCmd(), deploymentCmd(), tokenCmd(), configCmd(), withAcceptance(withGate(verifyCmd())), reconcileCmd(), orchestratorHealthCmd())
	return completed(c)
}

// load reads the orchestrator's configuration and makes its log.
func load(cmd *cobra.Command) (config.Orchestrator, *config.Origins, *slog.Logger, error) {
	cfg, origins, err := config.LoadOrchestrator(configFile(cmd), cmd.Flags())
	if err != nil {
		return cfg, origins, nil, usage(err)
	}
	log, err := logging.New(os.Stderr, cfg.Log)
	if err != nil {
		return cfg, origins, nil, usage(err)
	}
	slog.SetDefault(log)
	return cfg, origins, log, nil
}

func serveCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "serve", Short: "Run an orchestrator", Args: args(cobra.NoArgs),
		Long: `Run an orchestrator until SIGTERM or SIGINT; open calls and outcomes in hand are
finished first, within server.shutdown_grace. After a second signal it ends within
2 s, with exit code 130. It needs postgres.url and redis.url (PENSTOCK_POSTGRES_URL,
PENSTOCK_REDIS_URL). Every setting is in docs/configuration.md; see also:
orchestrator config print.`,
		Example: "  PENSTOCK_POSTGRES_URL=postgres://penstock@localhost/penstock \\\n  PENSTOCK_REDIS_URL=redis://localhost:6379/0 orchestrator serve",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, _, log, err := load(cmd)
			if err != nil {
				return err
			}
			if err := errors.Join(cfg.RequirePostgres(), cfg.RequireRedis()); err != nil {
				return usage(err)
			}
			o, err := app.NewOrchestrator(cmd.Context(), cfg, log)
			if err != nil {
				return err
			}
			defer onSecondSignal(cmd.Context(), o.Hurry)()
			return o.Run(cmd.Context())
		},
	}
	config.AddFlags(c.Flags(), config.DefaultOrchestrator())
	return c
}

func migrateCmd() *cobra.Command {
	c := group(&cobra.Command{Use: "migrate", Short: "Create or update the database schema"})
	up := &cobra.Command{
		Use: "up", Short: "Apply pending migrations", Args: args(cobra.NoArgs),
		Long: "Apply pending migrations. Safe to run from several places at once: one migrates, the others wait.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := migrateConfig(cmd)
			if err != nil {
				return err
			}
			applied, err := store.Migrate(cmd.Context(), cfg.Postgres.URL)
			if err != nil {
				return err
			}
			for _, a := range applied {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), "applied", a)
			}
			if len(applied) == 0 {
				_, _ = fmt.Fprintln(cmd.OutOrStdout(), "nothing to apply: the schema is up to date")
			}
			return nil
		},
	}
	status := &cobra.Command{
		Use: "status", Short: "Show which migrations are applied; exit code 1 if some are not", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := migrateConfig(cmd)
			if err != nil {
				return err
			}
			return migrateStatus(cmd.Context(), cmd, cfg)
		},
	}
	status.Flags().StringP("output", "o", "table", "output format: table or json")
	for _, s := range []*cobra.Command{up, status} {
		config.AddFlags(s.Flags(), config.DefaultOrchestrator())
		c.AddCommand(s)
	}
	return c
}

func migrateConfig(cmd *cobra.Command) (config.Orchestrator, error) {
	cfg, _, _, err := load(cmd)
	if err != nil {
		return cfg, err
	}
	return cfg, usage(cfg.RequirePostgres())
}

func migrateStatus(ctx context.Context, cmd *cobra.Command, cfg config.Orchestrator) error {
	w, asJSON, err := output(cmd)
	if err != nil {
		return err
	}
	ms, err := store.Migrations(ctx, cfg.Postgres.URL)
	if err != nil {
		return err
	}
	pending := 0
	for _, m := range ms {
		if !m.Applied {
			pending++
		}
	}
	if asJSON {
		err = writeJSON(w, ms)
	} else {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(tw, "VERSION\tNAME\tAPPLIED")
		for _, m := range ms {
			at := "no"
			if m.Applied {
				at = clock(m.AppliedAt)
			}
			_, _ = fmt.Fprintf(tw, "%d\t%s\t%s\n", m.Version, m.Name, at)
		}
		err = tw.Flush()
	}
	if err == nil && pending > 0 {
		return &exitError{ExitFailed, fmt.Errorf("%d migrations are pending: run orchestrator migrate up", pending)}
	}
	return err
}

func configCmd() *cobra.Command {
	c := group(&cobra.Command{Use: "config", Short: "Show the configuration"})
	p := &cobra.Command{
		Use: "print", Short: "Print every setting, its value and where it comes from", Args: args(cobra.NoArgs),
		Long: "Print every setting of `orchestrator serve`, its value and where it comes from: default, file,\nenvironment or flag. Passwords are not shown.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, origins, _, err := load(cmd)
			if err != nil {
				return err
			}
			format, _ := cmd.Flags().GetString("output")
			return usage(config.Print(cmd.OutOrStdout(), cfg, origins, format))
		},
	}
	config.AddFlags(p.Flags(), config.DefaultOrchestrator())
	p.Flags().StringP("output", "o", "table", "output format: table or json")
	c.AddCommand(p)
	return c
}
