package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/pipeline/reconcile"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// stores is all that both stores hold, as text.
func stores(t *testing.T, r *testkit.Rig) string {
	t.Helper()
	var b strings.Builder
	for _, table := range append(slices.Clone(kept), "dlq_batches") {
		rows, err := r.DB.Query(t.Context(), fmt.Sprintf("SELECT x::text FROM %s x ORDER BY 1", table))
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, table, strings.Join(lines, "\n"))
	}
	keys := r.Raw.Keys(t.Context(), "*").Val()
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(&b, "%s %q\n", k, r.Raw.Dump(t.Context(), k).Val())
	}
	return b.String()
}

// plan makes one, and checks that it changed nothing.
func plan(t *testing.T, r *testkit.Rig) *reconcile.Plan {
	t.Helper()
	before := stores(t, r)
	p, err := r.Reconcile.Plan(t.Context(), r.DeadLetter)
	if err != nil {
		t.Fatal(err)
	}
	if after := stores(t, r); after != before {
		t.Errorf("a plan changed the stores from\n%s\nto\n%s", before, after)
	}
	return p
}

// A plan tells what the round after it does, and changes nothing itself.
func TestPlan(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, short(s))
	results := r.Start(t, r.Results.Run)
	letters := r.Start(t, r.DeadLetter.Run)
	ingest := r.Start(t, r.DeadLetter.RunIngest)
	dispatch := r.StartDispatch(t)
	if p := plan(t, r); p.Empty() || p.Epoch.State != "unset" || p.Epoch.RedisID != "" {
		t.Errorf("of new stores: %+v", p)
	}
	history(t, r)
	round(t, r)
	healthy := r.Enqueue(t, testkit.Requests(3, "t")...)
	held := r.Fetch(t, "w", 2)
	r.Report(t, held[0].Outcome(protocol.OutcomeClaimed))
	r.WaitState(t, protocol.StateRunning, held[0].ID)
	testkit.VerifyEvents(t, s)
	for _, stop := range []func(){dispatch, results, letters, ingest} {
		stop()
	}
	round(t, r)
	if p := plan(t, r); !p.Empty() || p.Epoch.State != "ok" {
		t.Errorf("of healthy tasks: %+v", p)
	}

	// An outcome that nobody has applied is no loss.
	r.Report(t, held[1].Outcome(protocol.OutcomeSucceeded))
	r.Ack(t, held[1])
	if p := plan(t, r); !p.Empty() {
		t.Errorf("with an outcome under way: %+v", p)
	}

	r.Ack(t, held[0]) // by a stranger
	add(t, r, healthy[0], 77)
	if err := r.Raw.Del(t.Context(), protocol.StreamDLQ).Err(); err != nil {
		t.Fatal(err)
	}
	p := plan(t, r)
	if len(p.Tasks) != 1 || p.Tasks[0].ID != held[0].ID.String() || !strings.HasPrefix(p.Tasks[0].Action, "interrupt, unless it ends within") {
		t.Errorf("tasks: %+v", p.Tasks)
	}
	if len(p.Groups) != 1 || p.Groups[0].Stream != protocol.StreamDLQ || len(p.DeadLetters) != 2 || len(p.Stale) != 1 || p.Stale[0].Delivery != 77 || p.Epoch.Action != "" {
		t.Errorf("%+v", p)
	}

	if err := r.Raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p = plan(t, r)
	if p.Epoch.State != string(reconcile.EpochMissing) || len(p.Groups) != 3 || len(p.Tasks) != 3 || len(p.DeadLetters) != 2 || len(p.Stale) != 0 {
		t.Errorf("of an empty Redis: %+v", p)
	}
	for _, x := range p.Tasks {
		if x.Missing != "the group of "+protocol.StreamTask {
			t.Errorf("%+v", x)
		}
	}
	r.Start(t, r.Results.Run)
	round(t, r)
	p = plan(t, r)
	if len(p.DeadLetters) != 0 || len(p.Groups) != 0 {
		t.Errorf("after the round: %+v", p)
	}
}
