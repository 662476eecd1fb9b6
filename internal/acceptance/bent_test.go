package acceptance_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/acceptance"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// A system that is not as it must be fails the lines that say how it must be,
// and no others.
func TestAcceptanceFails(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = 3 * time.Second
	o := testkit.StartOrchestrator(t, cfg)
	opts := options(t, s, o, cfg)
	owner := s.SQL(t)
	for _, sql := range []string{
		"ALTER TABLE tasks_live DROP CONSTRAINT tasks_next_retry_at",
		`CREATE OR REPLACE VIEW run_events AS SELECT 'x'::text AS event_id, 'run.status.changed'::text AS event_type, e.task_id, e.seq, '{}'::json AS payload, e.trace_id, e.occurred_at FROM event_log e`,
		`CREATE OR REPLACE VIEW workflow_state AS SELECT t.id AS workflow_id, t.state AS status, 1::bigint AS tasks, 0::bigint AS open_tasks, '{"currentAttempt":7,"lastBackoff":7}'::json AS retry_context,
			t.created_at, t.updated_at, t.tenant FROM tasks t`,
	} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	opts.Server = "" // workers can't reach the ledger of effects
	opts.Only = []string{"TQP-1", "TQP-4", "RP-001", "B2-8.1", "MEN-create", "P3C-fields", "P3C-events", "ASTER-replay"}
	rep, err := acceptance.Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"TQP-4": "the RPC's address is not known", "P3C-fields": "the database takes retry_scheduled without next_retry_at", "P3C-events": "has [], want run.status.changed",
		"ASTER-replay": "retry context",
	}
	for _, l := range rep.Lines {
		reasons := strings.Join(l.Reasons, "; ")
		if wrong, bent := want[l.Name]; bent != (l.Verdict == acceptance.Fail) || !strings.Contains(reasons, wrong) {
			t.Errorf("%s: %s %s, want %q", l.Name, l.Verdict, reasons, wrong)
		}
	}
	if rep.Passed != 4 || rep.Failed != 4 || rep.Left != "" {
		t.Errorf("%d passed, %d failed, left behind %q", rep.Passed, rep.Failed, rep.Left)
	}
}

// Without an end to its waiting a line is not known, and nothing is left behind
// all the same.
func TestAcceptanceTimesOut(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = 5 * time.Minute
	o := testkit.StartOrchestrator(t, cfg)
	opts := options(t, s, o, cfg)
	opts.Only, opts.Timeout = []string{"TQP-1", "TQP-3"}, 20*time.Second // less than the line's own time
	rep, err := acceptance.Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Passed != 1 || rep.Inconclusive != 1 || rep.Lines[1].Verdict != acceptance.Inconclusive || !strings.Contains(rep.Lines[1].Reasons[0], "has not ended, it is running") {
		t.Errorf("%+v", rep)
	}
	if rep.Left != "" {
		t.Errorf("left behind: %q", rep.Left)
	}
}

// What never happens is a failure once the line's own time is over, and without
// anybody to approve it is not known whether an approval counts.
func TestAcceptanceNeverEnds(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Recovery.VisibilityTimeout = 10 * time.Minute
	o := testkit.StartOrchestrator(t, cfg)
	opts := options(t, s, o, cfg)
	opts.VisibilityTimeout = 2 * time.Second // not the system's: nothing is reclaimed in time
	opts.Only, opts.LineTimeout, opts.Timeout = []string{"TQP-3", "TQP-8"}, 20*time.Second, 2*time.Minute
	rep, err := acceptance.Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if l := rep.Lines[0]; l.Verdict != acceptance.Fail || !strings.Contains(strings.Join(l.Reasons, "; "), "after 23s: task") || !strings.Contains(strings.Join(l.Reasons, "; "), "has not ended, it is running") {
		t.Errorf("%+v", l)
	}
	if l := rep.Lines[1]; l.Verdict != acceptance.Inconclusive || !strings.Contains(strings.Join(l.Reasons, "; "), "somebody else with the role approver") {
		t.Errorf("%+v", l)
	}
	if rep.Left != "" {
		t.Errorf("left behind: %q", rep.Left)
	}
}

// Without the role admin no rule can be saved: then it is not known what one
// does, whoever approves and whether the caller has a token.
func TestAcceptanceWithoutAdmin(t *testing.T) {
	t.Parallel()
	const rule, person = "saving a rule takes the role admin: give a token of an admin (--token", "somebody else with the role approver"
	for name, tt := range map[string]struct {
		token, approver bool
		want            []string
	}{
		"a token":                  {true, true, []string{rule}},
		"no token":                 {false, true, []string{rule}},
		"a token, nobody approves": {true, false, []string{rule, person}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testkit.NewStores(t)
			cfg := s.Config()
			carol, alice, token := people(t, &cfg)
			cfg.Auth.AnonymousRoles = withoutAdmin
			o := testkit.StartOrchestrator(t, cfg)
			opts := options(t, s, o, cfg)
			if tt.token {
				opts.Client, opts.REST, opts.Token = alice(o.URL), acceptance.NewREST(http.DefaultClient, o.URL, token), token
			}
			if tt.approver {
				opts.Approver = carol(o.URL)
			}
			opts.Only = []string{"TQP-8"}
			rep, err := acceptance.Run(t.Context(), opts)
			if err != nil {
				t.Fatal(err)
			}
			l := rep.Lines[0]
			if l.Verdict != acceptance.Inconclusive || len(l.Reasons) != len(tt.want) || rep.Inconclusive != 1 || rep.Left != "" {
				t.Fatalf("%+v", rep)
			}
			for i, want := range tt.want {
				if !strings.Contains(l.Reasons[i], want) {
					t.Errorf("%q, want %q", l.Reasons[i], want)
				}
			}
		})
	}
}

// What does not belong together is told before anything is enqueued.
func TestAcceptanceRefuses(t *testing.T) {
	t.Parallel()
	s, other := testkit.NewStores(t), testkit.NewStores(t)
	// Databases of tests are copies of one, which has an id already.
	if _, err := other.SQL(t).Exec(t.Context(), "UPDATE deployment SET id = gen_random_uuid()"); err != nil {
		t.Fatal(err)
	}
	o := testkit.StartOrchestrator(t, s.Config())
	for want, change := range map[string]func(o *acceptance.Options){
		"is postgres.url the orchestrator's?": func(o *acceptance.Options) { o.PostgresURL = other.PostgresURL },
		"is redis.url the orchestrator's?":    func(o *acceptance.Options) { o.RedisURL = other.RedisURL },
		"no line is called \"TQP-9\"":         func(o *acceptance.Options) { o.Only = []string{"TQP-9"} },
		"5 steps are too few":                 func(o *acceptance.Options) { o.Steps = 5 },
		"all needed":                          func(o *acceptance.Options) { o.RedisURL = "" },
	} {
		opts := options(t, s, o, s.Config())
		change(&opts)
		if _, err := acceptance.Run(t.Context(), opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	var n int
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT count(*) FROM tasks").Scan(&n); err != nil || n > 0 {
		t.Errorf("%d tasks, error %v", n, err)
	}
}
