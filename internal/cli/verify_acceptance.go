package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/acceptance"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/logging"
)

// acceptanceFlags are the flags of `orchestrator verify --acceptance`.
type acceptanceFlags struct {
	on      bool
	only    []string
	timeout time.Duration
	line    time.Duration
	steps   int
	// approver is the file with the token of who approves.
	approver string
}

// withAcceptance gives verify the flag --acceptance, which makes it another
// command: it runs the acceptance lists instead.
func withAcceptance(c *cobra.Command) *cobra.Command {
	var f acceptanceFlags
	c.Flags().BoolVar(&f.on, "acceptance", false, "run the acceptance lists instead, through the RPC, Redis and Postgres, and print a line for each; exit code 1 if one fails, 7 if one is not known")
	c.Flags().StringSliceVar(&f.only, "only", nil, "with --acceptance: only these lines, or those whose names begin so, e.g. TQP,MEN-create")
	c.Flags().DurationVar(&f.timeout, "timeout", 0, "with --acceptance: at most this long; what is not known then stays so; 0: longer than the lines' own times")
	c.Flags().DurationVar(&f.line, "line-timeout", 0, "with --acceptance: at most this long for a line, besides what it waits for or measures; then it fails; 0: 1m")
	c.Flags().StringVar(&f.approver, "approver-token-file", "", "with --acceptance: the token of somebody else with the role approver, for TQP-8-approval; of an orchestrator dev: carol's, by default")
	c.Flags().IntVar(&f.steps, "steps", 0, "with --acceptance: how many steps of each kind are measured, at least 20; 0: 100")
	c.Long += `

With --acceptance it runs the acceptance lists, each line by its name, through real
tasks on queues and with workers of its own. That needs the RPC (--server), Redis
and Postgres (redis.url and postgres.url, or those of a running orchestrator dev).
Lines that wait for the visibility timeout (recovery.visibility_timeout must be the
system's) take as long as that is. docs/acceptance.md says what each line proves.`
	c.Example += "\n  orchestrator verify --acceptance\n  orchestrator verify --acceptance --only RP,MEN,ASTER-replay -o json"
	verify := c.RunE
	c.RunE = func(cmd *cobra.Command, a []string) error {
		if f.on {
			return runAcceptance(cmd, a, f)
		}
		for _, name := range []string{"only", "timeout", "line-timeout", "steps", "approver-token-file"} {
			if cmd.Flags().Changed(name) {
				return usage(fmt.Errorf("--%s is for --acceptance", name))
			}
		}
		return verify(cmd, a)
	}
	return c
}

func runAcceptance(cmd *cobra.Command, a []string, f acceptanceFlags) error {
	w, asJSON, err := output(cmd)
	if err != nil {
		return err
	}
	if err := acceptanceAlone(cmd, a); err != nil {
		return usage(err)
	}
	slow, err := acceptance.Slow(f.only)
	if err != nil {
		return usage(err)
	}
	if f.timeout < 0 || f.line < 0 {
		return usage(fmt.Errorf("--timeout is %s, --line-timeout %s; want times above 0, or 0 for the defaults", f.timeout, f.line))
	}
	if f.steps != 0 && f.steps < 20 {
		return usage(fmt.Errorf("--steps is %d, want at least 20 steps, or 0 for the default", f.steps))
	}
	o, err := acceptanceOptions(cmd, f.approver)
	if err != nil {
		return err
	}
	defer func() { _ = o.Client.Close() }()
	if o.Approver != nil {
		defer func() { _ = o.Approver.Close() }()
	}
	o.Only, o.Timeout, o.LineTimeout, o.Steps = f.only, f.timeout, f.line, f.steps
	if o.Timeout == 0 {
		o.Timeout = acceptance.DefaultTimeout(o)
	}
	if len(slow) > 0 {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s wait for the visibility timeout, %s; all is over after %s at the latest\n", strings.Join(slow, ", "), o.VisibilityTimeout, o.Timeout)
	}
	if !asJSON {
		o.Report = func(l acceptance.Line) { acceptanceLine(w, l) }
	}
	r, err := acceptance.Run(cmd.Context(), o)
	if err != nil {
		return err
	}
	if r.Left != "" {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "left behind: %s\n", r.Left)
	}
	if err := acceptanceEnd(w, r, asJSON); err != nil {
		return err
	}
	switch {
	case r.Failed > 0:
		return &exitError{ExitFailed, fmt.Errorf("acceptance: %d of %d lines failed: %s", r.Failed, len(r.Lines), namesOf(r, acceptance.Fail))}
	case r.Inconclusive > 0:
		return &exitError{ExitNotFinished, fmt.Errorf("acceptance: %d of %d lines are not known: %s", r.Inconclusive, len(r.Lines), namesOf(r, acceptance.Inconclusive))}
	}
	return nil
}

// namesOf lists the lines with a verdict.
func namesOf(r *acceptance.Report, v acceptance.Verdict) string {
	var names []string
	for _, l := range r.Lines {
		if l.Verdict == v {
			names = append(names, l.Name)
		}
	}
	return strings.Join(names, ", ")
}

// acceptanceAlone refuses what says what else to verify.
func acceptanceAlone(cmd *cobra.Command, a []string) error {
	if len(a) > 0 {
		return errors.New("--acceptance takes no task ids")
	}
	for _, f := range []string{"gate-b2", "since", "until", "all", "tenant", "no-redis", "max-differences"} {
		if cmd.Flags().Changed(f) {
			return fmt.Errorf("--acceptance and --%s exclude each other", f)
		}
	}
	return nil
}

// acceptanceOptions finds the system.
func acceptanceOptions(cmd *cobra.Command, approver string) (o acceptance.Options, err error) {
	cfg, origins, log, err := load(cmd)
	if err != nil {
		return o, err
	}
	if origins.Of("log.level").Source == config.SourceDefault {
		cfg.Log.Level = "error" // of the workers; the report is what matters here
		if log, err = logging.New(cmd.ErrOrStderr(), cfg.Log); err != nil {
			return o, usage(err)
		}
	}
	o.Log, o.VisibilityTimeout, o.Role = log, cfg.Recovery.VisibilityTimeout, cfg.Postgres.Role
	dir, _ := cmd.Flags().GetString("data-dir")
	if file := filepath.Join(dir, "carol.token"); approver == "" && cfg.Postgres.URL == "" && cfg.Redis.URL == "" {
		if _, err := os.Stat(file); err == nil {
			approver = file
		}
	}
	if err := findServers(&cfg, dir, true, true); err != nil {
		return o, err
	}
	o.PostgresURL, o.RedisURL, o.RedisKeyPrefix = cfg.Postgres.URL, cfg.Redis.URL, cfg.Redis.KeyPrefix
	cl, _, err := config.LoadClient("", cmd.Flags())
	if err != nil {
		return o, usage(err)
	}
	if o.TLS, err = cl.TLS.Files().Config(); err != nil {
		return o, usage(fmt.Errorf("tls: %w", err))
	}
	transport := &http.Transport{TLSClientConfig: o.TLS, ForceAttemptHTTP2: true}
	o.Server, o.Token, o.REST = cl.Server, cl.Token, acceptance.NewREST(&http.Client{Transport: transport}, cl.Server, cl.Token)
	if o.Client, err = dial(cmd); err != nil {
		return o, err
	}
	if o.Approver, err = approverClient(cl.Server, approver, o, cmd.Flags().Changed("approver-token-file")); err != nil {
		return o, errors.Join(err, o.Client.Close())
	}
	return o, nil
}

// approverClient calls as who approves; nil if file is empty, or if nobody gave
// it and it is the caller's own.
func approverClient(server, file string, o acceptance.Options, given bool) (*client.Client, error) {
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, usage(fmt.Errorf("--approver-token-file: %w", err))
	}
	token := strings.TrimSpace(string(b))
	if token == o.Token && !given {
		return nil, nil
	}
	if token == "" || token == o.Token {
		return nil, usage(fmt.Errorf("--approver-token-file %s: has no token, or the one of who asks; want that of somebody else", file))
	}
	c, err := client.NewWith(server, client.Options{RetryFor: -1, Token: token, TLS: o.TLS})
	if err != nil {
		return nil, usage(err)
	}
	return c, nil
}

// acceptanceLine prints a line as soon as it is known.
func acceptanceLine(w io.Writer, l acceptance.Line) {
	verdict := map[acceptance.Verdict]string{acceptance.Pass: "pass", acceptance.Fail: "FAIL", acceptance.Inconclusive: "????"}[l.Verdict]
	text := l.Title
	if len(l.Reasons) > 0 {
		text = strings.Join(l.Reasons, "; ")
	}
	notes := ""
	if l.Name == "TQP-8-approval" || strings.HasPrefix(l.Name, "ASTER") || strings.HasPrefix(l.Name, "RP") {
		notes = " [" + strings.Join(l.Notes, "; ") + "]"
	}
	_, _ = fmt.Fprintf(w, "%s  %-18s %6.1f s  %s\n", verdict, l.Name, l.Seconds, line(text+notes, 1000))
}

func acceptanceEnd(w io.Writer, r *acceptance.Report, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false) // "->" is to be read
		return enc.Encode(r)
	}
	_, err := fmt.Fprintf(w, "\n%d of %d lines passed, %d failed, %d not known; queue %s\n", r.Passed, len(r.Lines), r.Failed, r.Inconclusive, r.Queue)
	return err
}
