package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
)

// cancelledTrees stores n graphs, each of one task that fails for good and as many
// tasks that depend on it as the graph's number, and waits until these are
// cancelled. It returns the dead letters by the number of the graph.
func (d *desk) cancelledTrees(t *testing.T, db *pgx.Conn, n int) []string {
	t.Helper()
	c := testkit.Client(t, d.url)
	dead, want := make([]string, n+1), 0
	for i := 1; i <= n; i++ {
		var g client.Graph
		g.Add("root", &task.Request{TaskID: fmt.Sprint("root ", i), Type: "pay", Payload: []byte(`{"amount": -1}`)})
		for j := range i {
			g.Add(fmt.Sprint(j), &task.Request{Type: "flaky", Payload: []byte(`{}`)}, "root")
		}
		if _, err := c.EnqueueGraph(t.Context(), &g); err != nil {
			t.Fatal(err)
		}
		want += i
	}
	testkit.Eventually(t, "the graphs are cancelled", func() (bool, string) {
		var got int
		err := db.QueryRow(t.Context(), "SELECT count(*) FROM tasks WHERE type = 'flaky' AND state = 'cancelled'").Scan(&got)
		return got == want, fmt.Sprint(got, err)
	})
	d.dead("pay", n)
	for i := 1; i <= n; i++ {
		if err := db.QueryRow(t.Context(), "SELECT d.dlq_id::text FROM dlq_items d JOIN tasks t ON t.id = d.task_id WHERE t.name = $1", fmt.Sprint("root ", i)).Scan(&dead[i]); err != nil {
			t.Fatal(err)
		}
	}
	return dead
}

// --graph has the cancelled tasks made anew by each route that takes it, and the
// output tells how many.
func TestRequeueGraphFlag(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	db := d.stores.SQL(t)
	dead := d.cancelledTrees(t, db, 7)
	clones := func(what string, n int, numbers ...int) {
		t.Helper()
		ids := []string{}
		for _, i := range numbers {
			ids = append(ids, dead[i])
		}
		var got, all int
		if err := db.QueryRow(t.Context(), "SELECT count(*) FILTER (WHERE dlq_id = ANY($1::text[]::uuid[])), count(*) FROM task_clones", ids).Scan(&got, &all); err != nil {
			t.Fatal(err)
		}
		if got != n {
			t.Errorf("%s: %d clones, want %d (%d in all)", what, got, n, all)
		}
	}
	r := d.replay("alice", "requeue", dead[1])
	want(t, "without the flag", r, ExitOK)
	if strings.Contains(r.out, "CLONES") {
		t.Errorf("clones are told of: %s", r.out)
	}
	clones("without the flag", 0, 1)

	r = d.replay("alice", "requeue", "--graph", dead[2])
	want(t, "one id", r, ExitOK)
	if f := strings.Fields(r.out); len(f) != 8 || strings.Join(f[:5], " ") != "DLQ ID TASK ID CLONES" || f[5] != dead[2] || f[7] != "2" {
		t.Errorf("one id: %s", r.out)
	}
	clones("one id", 2, 2)

	r = d.replay("alice", "requeue", "--graph", dead[3], dead[4], "-o", "json")
	want(t, "several ids", r, ExitOK)
	told := map[string]any{}
	for _, x := range decode(t, r.out)["results"].([]any) {
		told[x.(map[string]any)["dlq_id"].(string)] = x.(map[string]any)["clones"]
	}
	if len(told) != 2 || told[dead[3]] != 3.0 || told[dead[4]] != 4.0 {
		t.Errorf("several ids: %s", r.out)
	}
	clones("several ids", 7, 3, 4)

	r = operator{stdin: dead[5] + "\n"}.run(t, d.server(), "requeue", "-", "--graph", "-o", "jsonl", "--token-file", d.tokens["alice"])
	want(t, "standard input", r, ExitOK)
	if m := decode(t, r.out); m["clones"] != 5.0 {
		t.Errorf("standard input: %s", r.out)
	}
	clones("standard input", 5, 5)

	// Again: the first time had no graph, so that its tasks are still cancelled.
	want(t, "again", d.replay("alice", "requeue", dead[1], "--again", "--graph"), ExitOK)
	clones("again", 1, 1)
	d.refusedGraphs(t, dead)
	clones("what was refused", 0, 6, 7)
	testkit.VerifyLog(t, d.stores)
}

// server is the system as operators address it.
func (d *desk) server() *fakeServer { return &fakeServer{url: d.url} }

// refusedGraphs tries --graph where a batch is made, which has none: it must not be
// passed over in silence.
func (d *desk) refusedGraphs(t *testing.T, dead []string) {
	t.Helper()
	for _, line := range []string{
		"requeue --graph --type pay --yes", "requeue --graph --all --yes", "requeue --graph --rate 5 " + dead[6], "requeue --graph --dry-run " + dead[6],
		"requeue --graph --detach " + dead[6] + " " + dead[7], "requeue --graph --newer-than 1h --dry-run",
	} {
		want(t, line, d.replay("alice", strings.Fields(line)...), ExitUsage, "--graph is for dead letters named by id")
	}
	r := d.replay("alice", "requeue", "--dry-run", dead[6], "-o", "json")
	want(t, "a dry run", r, ExitOK)
	batch := decode(t, r.out)["batch_id"].(string)
	want(t, "its batch", d.replay("alice", "requeue", "--batch", batch, "--graph"), ExitUsage, "--batch takes the id of a dry run")
	r = d.replay("", "batch", "list", "-o", "json")
	if n := len(decode(t, r.out)["batches"].([]any)); n != 1 {
		t.Errorf("%d batches, want that of the dry run", n)
	}
}
