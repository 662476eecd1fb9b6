package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// verifyFlags are the flags of `orchestrator verify`.
type verifyFlags struct {
	since, until, tenant, dataDir string
	all, noRedis                  bool
	maxDifferences                int
}

func verifyCmd() *cobra.Command {
	var f verifyFlags
	c := &cobra.Command{
		Use: "verify [TASK_ID...]", Short: "Compare tasks with their event log, their dead letters and Redis; exit code 1 if anything differs",
		Args: args(cobra.ArbitraryArgs),
		Long: `Fold the event log of some tasks, or of all, and compare the result with their
rows, their dead letters and what Redis holds; recompute every retry delay that
came from a policy. It only reads, works while the system runs, and needs little
memory however many tasks there are. docs/verify.md says what is checked.

It reads Postgres and Redis directly (postgres.url and redis.url). Without both
it uses the servers of an ` + "`orchestrator dev`" + ` that runs on this machine.`,
		Example: "  orchestrator verify\n  orchestrator verify --since 2h\n  orchestrator verify 0198c0de-0000-7000-8000-000000000001 -o json",
		RunE:    func(cmd *cobra.Command, taskIDs []string) error { return runVerify(cmd, taskIDs, f) },
	}
	config.AddFlags(c.Flags(), config.DefaultOrchestrator())
	c.Flags().StringVar(&f.since, "since", "", "only tasks created at or after this time: RFC 3339, or a duration ago such as 2h")
	c.Flags().StringVar(&f.until, "until", "", "only tasks created before this time: RFC 3339, or a duration ago")
	c.Flags().BoolVar(&f.all, "all", false, "all tasks, and what belongs to none; the default if neither ids nor a time are given")
	c.Flags().BoolVar(&f.noRedis, "no-redis", false, "do not look at Redis")
	c.Flags().IntVar(&f.maxDifferences, "max-differences", 100, "print at most this many differences; all are counted")
	c.Flags().StringVar(&f.tenant, "tenant", protocol.DefaultTenant, "tenant of the tasks whose names are given")
	c.Flags().StringVar(&f.dataDir, "data-dir", devstack.DefaultDir(), "data directory of the orchestrator dev to use if no URLs are configured")
	c.Flags().StringP("output", "o", "table", "output format: table or json")
	return c
}

func runVerify(cmd *cobra.Command, taskIDs []string, f verifyFlags) error {
	w, asJSON, err := output(cmd)
	if err != nil {
		return err
	}
	o, err := f.options(taskIDs, time.Now())
	if err != nil {
		return usage(err)
	}
	closeAll, err := f.open(cmd, &o)
	if err != nil {
		return err
	}
	defer closeAll()
	for _, id := range taskIDs {
		resolved, err := verify.Resolve(cmd.Context(), o.Store, f.tenant, id)
		if err != nil {
			return err
		}
		o.IDs = append(o.IDs, resolved)
	}
	r := &verifyReport{w: w, json: asJSON, max: f.maxDifferences, progress: newVerifyProgress(cmd)}
	o.Report, o.Progress = r.add, r.progress.show
	sum, err := verify.Run(cmd.Context(), o)
	r.progress.clear()
	if err != nil {
		return err
	}
	if err := r.finish(sum, o.Redis != nil); err != nil {
		return err
	}
	if sum.Differences > 0 {
		return &exitError{ExitFailed, fmt.Errorf("%d differences", sum.Differences)}
	}
	return nil
}

// options checks the flags and turns them into what to verify.
func (f verifyFlags) options(taskIDs []string, now time.Time) (o verify.Options, err error) {
	chosen := 0
	for _, given := range []bool{len(taskIDs) > 0, f.since != "" || f.until != "", f.all} {
		if given {
			chosen++
		}
	}
	if chosen > 1 {
		return o, errors.New("task ids, --since/--until and --all exclude each other")
	}
	if f.maxDifferences < 0 || f.maxDifferences > 1_000_000 {
		return o, fmt.Errorf("--max-differences is %d, want 0 to 1000000", f.maxDifferences)
	}
	if o.Since, err = moment("--since", f.since, now); err != nil {
		return o, err
	}
	if o.Until, err = moment("--until", f.until, now); err != nil {
		return o, err
	}
	if !o.Until.IsZero() && !o.Since.Before(o.Until) {
		return o, fmt.Errorf("--since (%s) is not before --until (%s)", clock(o.Since), clock(o.Until))
	}
	return o, nil
}

// moment reads a time, or a duration before now. Empty is the zero time.
func moment(flag, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil && t.Year() >= 1970 {
		return t, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, fmt.Errorf("%s is %q, want an RFC 3339 time such as 2026-01-02T15:04:05Z, or a duration ago such as 2h", flag, s)
}

// open opens the stores that are configured, or those of a running dev.
func (f verifyFlags) open(cmd *cobra.Command, o *verify.Options) (closeAll func(), err error) {
	cfg, _, _, err := load(cmd)
	if err != nil {
		return nil, err
	}
	if err := findServers(&cfg, f.dataDir, true, !f.noRedis); err != nil {
		return nil, err
	}
	if o.Store, err = store.Open(cmd.Context(), store.Options{URL: cfg.Postgres.URL, Role: cfg.Postgres.Role, MaxConns: 2}); err != nil {
		return nil, err
	}
	if f.noRedis {
		return o.Store.Close, nil
	}
	if o.Redis, err = streams.New(streams.Options{URL: cfg.Redis.URL, Prefix: cfg.Redis.KeyPrefix, Readers: 1, Name: "verify"}); err == nil {
		err = o.Redis.Ping(cmd.Context())
	}
	if err != nil {
		o.Store.Close()
		return nil, err
	}
	return func() {
		_ = o.Redis.Close()
		o.Store.Close()
	}, nil
}

// verifyReport prints differences as they are found, or, as JSON, collects
// them; at most max.
type verifyReport struct {
	w        io.Writer
	json     bool
	max      int
	progress *verifyProgress

	found []verify.Difference
	n     int
}

func (r *verifyReport) add(d verify.Difference) {
	if r.n++; r.n > r.max {
		return
	}
	if r.json {
		r.found = append(r.found, d)
		return
	}
	r.progress.clear()
	_, _ = fmt.Fprintf(r.w, "%-11s  %s\n", d.Check, line(d.String(), 2000))
}

func (r *verifyReport) finish(s verify.Summary, redis bool) error {
	if r.json {
		if r.found == nil {
			r.found = []verify.Difference{}
		}
		return writeJSON(r.w, struct {
			Clean       bool                `json:"clean"`
			Redis       bool                `json:"redis_checked"`
			Summary     verify.Summary      `json:"summary"`
			Differences []verify.Difference `json:"differences"`
		}{s.Differences == 0, redis, s, r.found})
	}
	if left := r.n - r.max; left > 0 {
		_, _ = fmt.Fprintf(r.w, "… and %d more: --max-differences\n", left)
	}
	if r.n > 0 {
		_, _ = fmt.Fprintln(r.w)
	}
	where := fmt.Sprintf("%d live tasks located in Redis", s.Live)
	if !redis {
		where = "Redis not looked at"
	}
	_, err := fmt.Fprintf(r.w, "%d tasks, %d events, %d retry delays recomputed, %d dead letters, %s: %.1f s\n",
		s.Tasks, s.Events, s.Retries, s.DeadLetters, where, s.Seconds)
	if err == nil && s.Differences == 0 {
		_, err = fmt.Fprintln(r.w, "clean")
	}
	return err
}

// verifyProgress shows on a terminal how far a long verification is.
type verifyProgress struct {
	w     io.Writer // nil: no terminal
	last  time.Time
	shown bool
}

func newVerifyProgress(cmd *cobra.Command) *verifyProgress {
	p := &verifyProgress{last: time.Now()}
	if cmd.ErrOrStderr() == io.Writer(os.Stderr) && isatty.IsTerminal(os.Stderr.Fd()) {
		p.w = os.Stderr
	}
	return p
}

func (p *verifyProgress) show(s verify.Summary) {
	if p.w == nil || time.Since(p.last) < 500*time.Millisecond {
		return
	}
	p.last, p.shown = time.Now(), true
	_, _ = fmt.Fprintf(p.w, "\r\x1b[K%d tasks, %d events, %d differences, %.0f s", s.Tasks, s.Events, s.Differences, s.Seconds)
}

func (p *verifyProgress) clear() {
	if p.shown {
		p.shown = false
		_, _ = fmt.Fprint(p.w, "\r\x1b[K")
	}
}
