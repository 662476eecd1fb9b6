package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
)

func TestGuardAndApprovalCommands(t *testing.T) {
	t.Parallel()
	cfg := testkit.NewStores(t).Config()
	cfg.Auth.TokensFile = filepath.Join(t.TempDir(), "tokens")
	tokens := map[string]string{"root": "admin", "alice": "producer,operator,approver", "bob": "approver,payloads", "carol": "approver,payloads"}
	var lines strings.Builder
	for name, roles := range tokens {
		lines.WriteString(name + " a-long-token-of-" + name + " roles=" + roles + "\n")
	}
	if err := os.WriteFile(cfg.Auth.TokensFile, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	o := testkit.StartOrchestrator(t, cfg)
	as := func(name string, args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append(args, "--server", o.URL, "--token", "a-long-token-of-"+name)...)
	}
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := as("root", "guard", "list")
		return r.code == 0, r.err
	})

	expression := `task.type == "refund" && task.payload.amount > 1000`
	want(t, "no admin", as("alice", "guard", "save", "large", expression), ExitDenied, "admin")
	want(t, "no CEL", as("root", "guard", "save", "large", "task.type ="), ExitUsage, "expression")
	want(t, "unknown field", as("root", "guard", "save", "large", "task.typo == 'x'"), ExitUsage, "task has no such field (fields: task.type")
	want(t, "three people", as("root", "guard", "save", "large", expression, "--required", "3"), ExitUsage, "required")
	tells(t, as("root", "guard", "save", "large", expression, "--required", "2"), "rule large, revision 1")
	want(t, "another revision", as("root", "guard", "save", "large", expression, "--expected-revision", "7"), ExitConflict, "revision")
	tells(t, as("bob", "guard", "list"), "large", "2 of role:approver")
	tells(t, as("bob", "guard", "show", "large"), expression)

	enqueue := func(id, amount string) {
		t.Helper()
		want(t, "enqueue "+id, as("alice", "enqueue", "refund", `{"amount":`+amount+`}`, "--id", id), ExitOK)
	}
	enqueue("small", "10")
	enqueue("large", "5000")
	enqueue("larger", "6000")
	r := as("bob", "approval", "list", "-o", "json")
	list, _ := decode(t, r.out)["approvals"].([]any)
	ids := map[string]string{}
	for _, a := range list {
		m := a.(map[string]any)
		ids[m["task_id"].(string)] = m["approval_id"].(string)
	}
	if len(ids) != 2 || ids["large"] == "" || ids["larger"] == "" {
		t.Fatalf("inbox: %s%s", r.out, r.err)
	}
	tells(t, as("alice", "task", "get", "large"), "waiting_approval", "orchestrator approval list --task large")
	tells(t, as("bob", "approval", "show", ids["large"]), "5000", expression, "alice", "2 of role:approver")

	want(t, "her own", as("alice", "approval", "approve", ids["large"]), ExitDenied, "had a hand")
	tells(t, as("bob", "approval", "approve", ids["large"], "--reason", "ok"), "1 of 2")
	tells(t, as("bob", "approval", "approve", ids["large"]), "by you before; 1 of 2")
	tells(t, as("carol", "approval", "approve", ids["large"]), "the task goes on")
	tells(t, as("carol", "approval", "approve", ids["large"]), "by you before; 2 of 2")
	want(t, "too late", as("carol", "approval", "reject", ids["large"], "--reason", "no"), ExitConflict, "approved")
	want(t, "no reason", as("bob", "approval", "reject", ids["larger"]), ExitUsage, "--reason")
	tells(t, as("bob", "approval", "reject", ids["larger"], "--reason", "too much"), "cancelled")
	tells(t, as("alice", "task", "get", "larger"), "cancelled", "TASK_APPROVAL_REJECTED")
	want(t, "nothing there", as("bob", "approval", "show", "00000000-0000-0000-0000-000000000001"), ExitNotFound)

	tells(t, as("root", "guard", "delete", "large"), "large")
	enqueue("after", "7000")
	if r := as("bob", "approval", "list", "-o", "json"); strings.Contains(r.out, `"after"`) {
		t.Errorf("a deleted rule stopped a task: %s", r.out)
	}
}
