package verify_test

import (
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
)

// What the view task_runs shows is checked as it is, whatever it was made of.
func TestRunsInTheView(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	db := s.SQL(t)
	const tasks, retried = 60, 3
	if _, err := db.Exec(t.Context(), manyTasks, tasks); err != nil {
		t.Fatal(err)
	}
	var view string
	if err := db.QueryRow(t.Context(), "SELECT pg_get_viewdef('task_runs')").Scan(&view); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ old, new, fields string }{
		"as it is":                  {"", "", ""},
		"one key for all of a task": {"(a.attempt - 1)", "0", "execution keys"},
		"one key for all":           {"((t.id)::text || ':'::text) || (a.attempt - 1)", "'k'::text", "execution keys"},
		"the key of a run":          {"(a.attempt - 1)", "a.attempt", "execution keys"},
		"from 0":                    {"generate_series(1, t.attempt)", "generate_series(0, t.attempt)", "runs, execution keys"},
		"without the first":         {"generate_series(1, t.attempt)", "generate_series(2, t.attempt)", "runs, attempts, execution keys"},
		"one attempt twice":         {"generate_series(1, t.attempt) a(attempt)", "(SELECT 2 AS attempt FROM generate_series(1, t.attempt)) a", "attempts, execution keys"},
		"each twice":                {"generate_series(1, t.attempt) a(attempt)", "(SELECT n % t.attempt + 1 AS attempt FROM generate_series(1, 2 * t.attempt) n(n)) a", "runs"},
	} {
		if c.old != "" && !strings.Contains(view, c.old) {
			t.Fatalf("%s: the view has no %q:\n%s", name, c.old, view)
		}
		if _, err := db.Exec(t.Context(), "CREATE OR REPLACE VIEW task_runs AS "+strings.Replace(view, c.old, c.new, 1)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		fields := map[string]int{}
		_, err := verify.Run(t.Context(), verify.Options{Store: s.Store(t), Report: func(d verify.Difference) {
			if d.Check != verify.CheckRuns || d.TaskID == "" {
				t.Errorf("%s: %s %s", name, d.Check, d)
			}
			fields[strings.TrimSuffix(d.Field, " in task_runs")]++
		}})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, f := range []string{"runs", "attempts", "execution keys"} {
			if n := fields[f]; n == retried {
				got = append(got, f)
			} else if n != 0 {
				t.Errorf("%s: %s of %d tasks differ, want all %d that ran twice", name, f, n, retried)
			}
		}
		if strings.Join(got, ", ") != c.fields {
			t.Errorf("%s: found %q, want %q", name, got, c.fields)
		}
	}
}
