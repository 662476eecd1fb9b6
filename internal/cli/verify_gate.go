package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/gate"
	"github.com/penstock-dev/penstock/internal/logging"
)

// withGate gives verify the flag --gate-b2, which makes it another command: it
// runs the acceptance replays instead.
func withGate(c *cobra.Command) *cobra.Command {
	on := c.Flags().Bool("gate-b2", false, "run the acceptance replays RP-001 to RP-005 instead, through the RPC and Redis; exit code 1 unless all pass")
	config.AddFlags(c.Flags(), config.DefaultClient())
	c.Long += `

With --gate-b2 it looks at nothing that is there: it runs RP-001 to RP-005 through
real tasks, on a queue and with a worker of its own, and prints what became of
each. That needs the RPC (--server) and Redis (redis.url, or that of a running
orchestrator dev). docs/gate-b2.md has an example.`
	c.Example += "\n  orchestrator verify --gate-b2"
	verify := c.RunE
	c.RunE = func(cmd *cobra.Command, a []string) error {
		if *on {
			return runGate(cmd, a)
		}
		return verify(cmd, a)
	}
	return c
}

func runGate(cmd *cobra.Command, a []string) error {
	w, asJSON, err := output(cmd)
	if err != nil {
		return err
	}
	if err := gateAlone(cmd, a); err != nil {
		return usage(err)
	}
	o, err := gateOptions(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = o.Client.Close() }()
	r, err := gate.Run(cmd.Context(), o)
	if err != nil {
		return err
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false) // "->" is to be read
		err = enc.Encode(r)
	} else {
		err = gateTable(w, r)
	}
	if r.Left != "" {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "left behind: %s\n", r.Left)
	}
	if err == nil && !r.Passed {
		failed := 0
		for _, res := range r.Results {
			if !res.Passed {
				failed++
			}
		}
		err = &exitError{ExitFailed, fmt.Errorf("gate B-2: %d of %d replays failed", failed, len(r.Results))}
	}
	return err
}

// gateAlone refuses what says which tasks to verify.
func gateAlone(cmd *cobra.Command, a []string) error {
	if len(a) > 0 {
		return errors.New("--gate-b2 takes no task ids")
	}
	for _, f := range []string{"since", "until", "all", "tenant", "no-redis", "max-differences"} {
		if cmd.Flags().Changed(f) {
			return fmt.Errorf("--gate-b2 and --%s exclude each other", f)
		}
	}
	return nil
}

// gateOptions finds the system.
func gateOptions(cmd *cobra.Command) (o gate.Options, err error) {
	cfg, origins, log, err := load(cmd)
	if err != nil {
		return o, err
	}
	if origins.Of("log.level").Source == config.SourceDefault {
		cfg.Log.Level = "error" // of the gate's worker; the report is what matters here
		if log, err = logging.New(cmd.ErrOrStderr(), cfg.Log); err != nil {
			return o, usage(err)
		}
	}
	o.Log, o.RedisKeyPrefix = log, cfg.Redis.KeyPrefix
	dir, _ := cmd.Flags().GetString("data-dir")
	if err := findServers(&cfg, dir, false, true); err != nil {
		return o, err
	}
	o.RedisURL = cfg.Redis.URL
	o.Client, err = dial(cmd)
	return o, err
}

// gateTable prints a line for each replay, and below it what was expected and
// what else was found.
func gateTable(w io.Writer, r *gate.Report) error {
	return (&printer{w: w}).columns(func(w io.Writer) {
		row := func(cells ...any) { _, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cells...) }
		row("REPLAY", "RESULT", "RETRY_COUNT", "JOB_ID", "TRACE_ID", "STATUS_TRANSITION")
		passed := 0
		for _, res := range r.Results {
			verdict := "FAIL"
			if res.Passed {
				verdict = "PASS"
				passed++
			}
			row(res.ReplayID, verdict, strconv.Itoa(res.RetryCount), res.JobID, res.TraceID, res.StatusTransition)
			row("", "", strconv.Itoa(res.ExpectedRetryCount), "", "expected", res.ExpectedTransition)
			if res.DLQID != "" {
				row("", "", "", "", "dlq_id", res.DLQID)
			}
			if res.ErrorCode != "" {
				row("", "", "", "", "error_code", res.ErrorCode)
			}
			for _, s := range res.Wrong {
				row("", "", "", "", "wrong", line(s, 300))
			}
		}
		_, _ = fmt.Fprintf(w, "\nGate B-2: %d of %d replays passed, on queue %s.\n", passed, len(r.Results), r.Queue)
	})
}
