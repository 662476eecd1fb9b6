package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
)

func TestScheduleCommand(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	orch := func(args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append(args, "--server", o.URL)...)
	}
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := orch("schedule", "list")
		return r.code == 0, r.err
	})
	create := []string{"schedule", "create", "night", "report.build", `{"kind":"daily"}`, "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--overlap", "skip"}
	r := orch(create...)
	if want(t, "create", r, ExitOK); !strings.Contains(r.out, "30 2 * * * Europe/Berlin") || !strings.Contains(r.out, `{"kind":"daily"}`) {
		t.Errorf("create: %s", r.out)
	}
	if r = orch(append(create, "-o", "json")...); decode(t, r.out)["idempotent_hit"] != true {
		t.Errorf("again: %s%s", r.out, r.err)
	}
	want(t, "another cron", orch("schedule", "create", "night", "report.build", "--every", "1h"), ExitConflict, "TASK_DUPLICATE")
	want(t, "nonsense", orch("schedule", "create", "x", "report.build", "--cron", "at noon"), ExitUsage, "spec.cron")
	want(t, "no rule", orch("schedule", "create", "x", "report.build"), ExitUsage, "spec.cron")
	want(t, "bad start", orch("schedule", "create", "x", "t", "--every", "1h", "--start-at", "2030-01-01T00:00:00"), ExitUsage, "RFC 3339")

	r = orch("schedule", "next", "night", "-n", "3")
	if want(t, "next", r, ExitOK); len(strings.Fields(r.out)) != 3 {
		t.Errorf("next: %s", r.out)
	}
	r = orch("schedule", "next", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--after", "2026-03-28T12:00:00Z", "-n", "2")
	if want(t, "next of a rule", r, ExitOK); r.out != "2026-03-29T01:00:00Z\n2026-03-30T00:30:00Z\n" {
		t.Errorf("next of a rule: %s", r.out)
	}
	want(t, "next of nothing", orch("schedule", "next"), ExitUsage, "--cron")

	r = orch("schedule", "trigger", "night")
	want(t, "trigger", r, ExitOK)
	id := strings.TrimSpace(r.out)
	if r = orch("task", "get", id); !strings.Contains(r.out, "schedule_id") || !strings.Contains(r.out, "scheduled_at") {
		t.Errorf("get: %s%s", r.out, r.err)
	}
	want(t, "overlap", orch("schedule", "trigger", "night"), ExitFailed, "skipped_overlap")
	if r = orch("schedule", "fires", "night"); !strings.Contains(r.out, id) || !strings.Contains(r.out, "skipped_overlap") {
		t.Errorf("fires: %s%s", r.out, r.err)
	}
	if r = orch("schedule", "pause", "night"); !strings.Contains(r.out, "true") {
		t.Errorf("pause: %s%s", r.out, r.err)
	}
	r = orch("schedule", "update", "night", "--every", "90s", "--payload", `{"kind":"short"}`, "--missed", "skip")
	if want(t, "update", r, ExitOK); !strings.Contains(r.out, "every 1m30s") || !strings.Contains(r.out, "short") || !strings.Contains(r.out, "skip") {
		t.Errorf("update: %s", r.out)
	}
	want(t, "resume", orch("schedule", "resume", "night"), ExitOK)
	if r = orch("schedule", "list"); !strings.Contains(r.out, "night") || !strings.HasPrefix(r.out, "NAME") {
		t.Errorf("list: %s", r.out)
	}
	want(t, "delete", orch("schedule", "delete", "night"), ExitOK)
	want(t, "show", orch("schedule", "show", "night"), ExitNotFound, "TASK_NOT_FOUND")

	want(t, "enqueue", orch("enqueue", "x", "--id", "later", "--delay", "1h"), ExitOK)
	want(t, "no time", orch("task", "reschedule", "later"), ExitUsage, "--now")
	want(t, "bad time", orch("task", "reschedule", "later", "--at", "2030-01-01T00:00:00"), ExitUsage, "RFC 3339")
	year := time.Now().Year() + 2
	at, shown := fmt.Sprintf("%d-01-01T01:00:00+01:00", year), fmt.Sprintf("%d-01-01 00:00:00.000Z", year)
	if r = orch("task", "reschedule", "later", "--at", at, "--reason", "new year"); !strings.Contains(r.out, shown) {
		t.Errorf("reschedule: %s%s", r.out, r.err)
	}
	want(t, "now", orch("task", "reschedule", "later", "--now"), ExitOK)
	if r = orch("task", "events", "later"); strings.Count(r.out, "task.rescheduled") != 2 {
		t.Errorf("events: %s", r.out)
	}
	testkit.VerifyEvents(t, s)
}
