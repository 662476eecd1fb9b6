package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/pipeline/deadletter"
	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/protocol"
)

// reconcileFlags are the flags of `orchestrator reconcile`.
type reconcileFlags struct {
	dryRun  bool
	dataDir string
	max     int
}

func reconcileCmd() *cobra.Command {
	var f reconcileFlags
	c := &cobra.Command{
		Use: "reconcile", Short: "Compare live tasks and dead letters with Redis and put right what it lost; with --dry-run only show it",
		Args: args(cobra.NoArgs),
		Long: `Look whether Redis holds what Postgres says it must: its epoch, the groups, an
entry for each dispatched task, the dead letters. What is missing is made again
out of Postgres, as every orchestrator does by itself at start, each
recovery.reconcile_interval, and when it notices a loss; docs/redis-loss.md tells
more.

With --dry-run it only reads, and exits with 0 if there is nothing to do and with
3 if something is not where it must be. A task that is on its way while it looks
is left out. Without --dry-run it prints the same and then makes one round. A
round waits until the outcomes that are in Redis are applied, and so needs a
running orchestrator if there are any.

It reads Postgres and Redis directly (postgres.url and redis.url). Without both
it uses the servers of an ` + "`orchestrator dev`" + ` that runs on this machine.`,
		Example: "  orchestrator reconcile --dry-run\n  orchestrator reconcile --dry-run -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return runReconcile(cmd, f) },
	}
	config.AddFlags(c.Flags(), config.DefaultOrchestrator())
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "change nothing; exit code 3 if there is something to do")
	c.Flags().IntVar(&f.max, "max-rows", 100, "print at most this many rows of a kind in a table; JSON has all")
	c.Flags().StringVar(&f.dataDir, "data-dir", devstack.DefaultDir(), "data directory of the orchestrator dev to use if no URLs are configured")
	c.Flags().StringP("output", "o", "table", "output format: table or json")
	return c
}

func runReconcile(cmd *cobra.Command, f reconcileFlags) error {
	w, asJSON, err := output(cmd)
	if err != nil {
		return err
	}
	if f.max < 0 {
		return usage(fmt.Errorf("--max-rows is %d, want at least 0", f.max))
	}
	r, letters, closeAll, err := f.open(cmd)
	if err != nil {
		return err
	}
	defer closeAll()
	plan, err := r.Plan(cmd.Context(), letters)
	if err != nil {
		return err
	}
	done := false
	if !f.dryRun {
		err = r.Round(cmd.Context())
		done = err == nil
	}
	if asJSON {
		err = errors.Join(err, writeJSON(w, struct {
			Clean bool `json:"clean"`
			// Done: a round was made.
			Done bool `json:"done"`
			*reconcile.Plan
		}{plan.Empty(), done, plan}))
	} else {
		err = errors.Join(err, planTable(w, plan, f.max, done))
	}
	if err == nil && f.dryRun && !plan.Empty() {
		return &exitError{ExitNotFound, errors.New("something is not where it must be: orchestrators that run put it right, and so does orchestrator reconcile")}
	}
	return err
}

// open opens the stores that are configured, or those of a running dev.
func (f reconcileFlags) open(cmd *cobra.Command) (r *reconcile.Reconciler, letters *deadletter.Stage, closeAll func(), err error) {
	cfg, _, log, err := load(cmd)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := findServers(&cfg, f.dataDir, true, true); err != nil {
		return nil, nil, nil, err
	}
	st, err := store.Open(cmd.Context(), store.Options{URL: cfg.Postgres.URL, Role: cfg.Postgres.Role, MaxConns: 2, Policy: app.Policies(cfg)})
	if err != nil {
		return nil, nil, nil, err
	}
	redis, err := streams.New(streams.Options{URL: cfg.Redis.URL, Prefix: cfg.Redis.KeyPrefix, Readers: 1, Name: "reconcile"})
	if err == nil {
		err = redis.Ping(cmd.Context())
	}
	if err != nil {
		st.Close()
		return nil, nil, nil, err
	}
	env := protocol.Env{Seed: st.Deployment().Seed, MaxInterruptions: cfg.Recovery.MaxInterruptions}
	letters = deadletter.New(deadletter.Options{Store: st, Redis: redis, Env: env, Log: log})
	r = reconcile.New(reconcile.Options{
		Store: st, Redis: redis, VisibilityTimeout: cfg.Recovery.VisibilityTimeout, Env: env, DeadLetters: letters,
		Wake: func(time.Time) {}, Log: log, // due tasks are found by whoever dispatches
	})
	return r, letters, func() { _ = redis.Close(); st.Close() }, nil
}

// planTable prints what is not where it must be, a kind at a time.
func planTable(w io.Writer, plan *reconcile.Plan, limit int, done bool) error {
	e := plan.Epoch
	p := &printer{w: w}
	err := p.columns(func(w io.Writer) {
		facts(w, [][2]string{
			{"epoch", e.State}, {"", line(e.Detail, 300)}, {"in Redis", orDash(line(e.RedisID, 64))}, {"in Postgres", orDash(e.PostgresID)},
			{"generation", fmt.Sprintf("%d in Redis, %d in Postgres, %d confirmed", e.RedisGeneration, e.PostgresGeneration, e.ConfirmedGen)},
			{"to do", orDash(e.Action)},
		})
	})
	rows := func(head string, n int, row func(w io.Writer, i int)) {
		if n == 0 || err != nil {
			return
		}
		err = p.columns(func(w io.Writer) {
			_, _ = fmt.Fprintln(w, "\n"+head)
			for i := range min(n, limit) {
				row(w, i)
			}
		})
		if err == nil && n > limit {
			_, err = fmt.Fprintf(w, "… and %d more: --max-rows, or -o json\n", n-limit)
		}
	}
	rows("STREAM\tMISSING\tACTION", len(plan.Groups), func(w io.Writer, i int) {
		g := plan.Groups[i]
		_, _ = fmt.Fprintf(w, "%s\tgroup %s\t%s\n", line(g.Stream, 100), g.Group, g.Action)
	})
	rows("TASK\tQUEUE\tSTATE\tDELIVERY\tMISSING\tACTION", len(plan.Tasks), func(w io.Writer, i int) {
		t := plan.Tasks[i]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", t.ID, line(t.Queue, 64), t.State, t.Delivery, line(t.Missing, 120), t.Action)
	})
	rows("STREAM\tENTRY\tSTALE\tDELIVERY\tACTION", len(plan.Stale), func(w io.Writer, i int) {
		s := plan.Stale[i]
		_, _ = fmt.Fprintf(w, "%s\t%s\ttask %s\t%d\t%s\n", line(s.Stream, 100), s.EntryID, s.TaskID, s.Delivery, s.Action)
	})
	rows("DEAD LETTER\tENTRY\tACTION", len(plan.DeadLetters), func(w io.Writer, i int) {
		d := plan.DeadLetters[i]
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", d.DLQID, orDash(line(d.EntryID, 64)), d.Action)
	})
	if err != nil {
		return err
	}
	verdict := fmt.Sprintf("%d tasks, %d groups, %d stale entries, %d dead letters to put right", len(plan.Tasks), len(plan.Groups), len(plan.Stale), len(plan.DeadLetters))
	if plan.Empty() {
		verdict = "nothing to do"
	}
	if done {
		verdict += "; one round made"
	}
	_, err = fmt.Fprintf(w, "\n%s\n", verdict)
	return err
}
