package e2e

import (
	"context"
	"encoding/json"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/app"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// The lines with a prefix are those without one, with a prefix.
func TestRightsWithAndWithoutAPrefix(t *testing.T) {
	t.Parallel()
	page, err := testkit.RightsPage()
	if err != nil {
		t.Fatal(err)
	}
	blocks := testkit.Blocks(page, "acl")
	if len(blocks) != 2 || strings.ReplaceAll(blocks[1], "shop:", "") != blocks[0] || blocks[1] == blocks[0] {
		t.Errorf("the two blocks of docs/redis-rights.md differ in more than the prefix:\n%s", strings.Join(blocks, "\n\n"))
	}
}

// A whole run with exactly the listed rights, without a prefix: nothing is refused.
func TestTheListedRightsAreEnough(t *testing.T) {
	t.Parallel()
	d := deployment(t, testkit.StartRedis(t), "")
	d.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	d.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("other", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	for range 20 {
		d.ends(t, d.enqueue(t, "ok"), "succeeded")
		d.ends(t, d.enqueue(t, "other"), "succeeded")
	}
	refused(t, d.Redis(t))
}

// A right that is missing is told in words: the command, the user, the page.
func TestAMissingRight(t *testing.T) {
	t.Parallel()
	s := testkit.Stores{PostgresURL: testkit.Database(t), RedisURL: testkit.StartRedis(t)}.Restricted(t)
	raw := s.Redis(t)
	missing := func(target, right string) string {
		t.Helper()
		u, err := url.Parse(target)
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Do(t.Context(), "ACL", "SETUSER", u.User.Username(), right).Err(); err != nil {
			t.Fatal(err)
		}
		return u.User.Username()
	}
	user := missing(s.OrchestratorRedis(), "-info")
	cfg := s.Config()
	cfg.Server.StartDeadline = 1
	_, err := app.NewOrchestrator(t.Context(), cfg, testkit.Log(t))
	if err == nil || !strings.Contains(err.Error(), "user "+user+" has not the right to INFO (docs/redis-rights.md lists the rights that it needs)") {
		t.Errorf("without INFO: %v", err)
	}
	missing(s.OrchestratorRedis(), "+info")
	url := testkit.StartOrchestrator(t, cfg).URL
	c := testkit.Client(t, url)

	// A worker may lack what only makes it slower.
	for _, right := range []string{"-info", "-client|id", "-client|list", "-client|unblock", "-subscribe", "-zadd", "-publish", "-zmscore"} {
		user = missing(s.WorkerRedis(), right)
	}
	w := s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	d := tenantOf{Stores: s, client: c}
	d.ends(t, d.enqueue(t, "ok"), "succeeded")

	missing(s.WorkerRedis(), "-xreadgroup")
	testkit.Eventually(t, "the worker says what it may not do", func() (bool, string) {
		err := w.Check()
		return err != nil && strings.Contains(err.Error(), "user "+user+" has not the right to XREADGROUP (docs/redis-rights.md"), ""
	})
}

// An orchestrator whose login has the listed rights in Postgres, on a database that
// an owner with the listed rights has migrated.
func TestTheListedRightsInPostgres(t *testing.T) {
	t.Parallel()
	page, err := testkit.RightsPage()
	if err != nil {
		t.Fatal(err)
	}
	sql := testkit.Blocks(page, "sql")
	if len(sql) != 1 {
		t.Fatalf("docs/redis-rights.md has %d blocks of SQL, want 1", len(sql))
	}
	stack := devtest.Stack(t, devstack.Options{Postgres: true})
	admin, err := pgx.Connect(t.Context(), stack.PostgresURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close(context.Background()) })
	const database = "listed"
	for _, line := range strings.Split(strings.Replace(sql[0], "DATABASE penstock", "DATABASE "+database, 1), "\n") {
		// The stack's superuser has the name penstock.
		if _, err := admin.Exec(t.Context(), strings.Replace(line, "ROLE penstock LOGIN", "ROLE penstock_login LOGIN", 1)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	as := func(user string) string {
		u, err := url.Parse(stack.PostgresURL)
		if err != nil {
			t.Fatal(err)
		}
		u.User, u.Path = url.UserPassword(user, "secret"), "/"+database
		return u.String()
	}
	if _, err := store.Migrate(t.Context(), as("penstock_owner")); err != nil {
		t.Fatalf("migrate as the owner: %v", err)
	}
	s := testkit.Stores{PostgresURL: as("penstock_login"), RedisURL: devtest.Redis(t)}
	cfg := s.Config()
	cfg.Postgres.AutoMigrate = false
	d := tenantOf{Stores: s, client: testkit.Client(t, testkit.StartOrchestrator(t, cfg).URL)}
	d.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("ok", func(context.Context, *task.Raw) (json.RawMessage, error) { return nil, nil })
	})
	d.ends(t, d.enqueue(t, "ok"), "succeeded")
	for _, forbidden := range []string{"DELETE FROM event_log", "UPDATE event_log SET seq = 0", "CREATE TABLE x (i int)", "DROP TABLE tasks"} {
		if _, err := d.SQL(t).Exec(t.Context(), forbidden); err == nil {
			t.Errorf("the login may %s", forbidden)
		}
	}
}
