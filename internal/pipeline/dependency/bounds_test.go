package dependency_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// While there is work, what is to happen between transactions happens, once for
// each, and its error ends the round.
func TestSettleEach(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ups := r.Enqueue(t, testkit.Requests(250, "t")...)
	if _, err := r.Enqueuer.Enqueue(t.Context(), onTasks(ups...)); err != nil {
		t.Fatal(err)
	}
	finish(t, r, true, ups...)
	rounds := 0
	stop := errors.New("stop")
	n, err := r.Dependency.SettleEach(t.Context(), func() error { rounds++; return stop })
	if n != 100 || !errors.Is(err, stop) || rounds != 1 {
		t.Fatalf("%d counted in %d rounds, %v; want 100 of 250 in 1", n, rounds, err)
	}
	if n, err = r.Dependency.SettleEach(t.Context(), func() error { rounds++; return nil }); n != 150 || err != nil || rounds < 3 {
		t.Errorf("%d counted, %v, in %d rounds; want the other 150 in at least 2 more", n, err, rounds)
	}
	consistent(t, r)
}

// big gives a task a result that Postgres stores out of its row.
func big(t *testing.T, r *testkit.Rig, id protocol.ID, size int) {
	t.Helper()
	b := make([]byte, size/2)
	_, _ = rand.Read(b)
	if _, err := r.DB.Exec(t.Context(), "UPDATE tasks SET result = $2::text::json WHERE id = $1", pgid.ID(id), fmt.Sprintf("%q", hex.EncodeToString(b))); err != nil {
		t.Fatal(err)
	}
}

// Results that do not fit are not even read from where they are stored; those that
// do are, in order, up to the first that does not.
func TestLongResultsAreNotRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ups := r.Enqueue(t, testkit.Requests(4, "t")...)
	res, err := r.Enqueuer.Enqueue(t.Context(), onTasks(ups...))
	if err != nil {
		t.Fatal(err)
	}
	finish(t, r, true, ups...)
	for i, size := range []int{20_000, 1 << 20, 1 << 20, 10} {
		big(t, r, ups[i], size)
	}
	read := func(most int64) (rows []*dbsqlc.DependencyResultsRow, blocks int) {
		err := pgx.BeginFunc(t.Context(), r.DB, func(tx pgx.Tx) (err error) {
			fetched := func() (n int, err error) { // by this connection lately
				err = tx.QueryRow(t.Context(), `SELECT sum(pg_stat_get_xact_blocks_fetched(c.reltoastrelid))::int
					FROM pg_class c WHERE c.reltoastrelid <> 0 AND c.relname LIKE 'tasks%' AND c.relnamespace = current_schema()::regnamespace`).Scan(&n)
				return n, err
			}
			before, err := fetched()
			if err != nil {
				return err
			}
			if rows, err = dbsqlc.New(tx).DependencyResults(t.Context(), dbsqlc.DependencyResultsParams{
				TaskIds: []pgid.ID{res.Task().ID}, AfterPosition: -1, MaxRows: 10, MaxBytes: most,
			}); err != nil {
				return err
			}
			after, err := fetched()
			blocks = after - before
			return err
		})
		if err != nil || len(rows) != 4 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		return rows, blocks
	}
	rows, blocks := read(64 << 10)
	if rows[0].Cut || len(rows[0].Result) != 20_002 || !rows[1].Cut || !rows[2].Cut || !rows[3].Cut || rows[1].Result != nil {
		t.Errorf("cut %t (%d bytes) %t %t %t", rows[0].Cut, len(rows[0].Result), rows[1].Cut, rows[2].Cut, rows[3].Cut)
	}
	if blocks > 50 { // of the first result; each of the long ones has 128
		t.Errorf("%d blocks of long results were read", blocks)
	}
	if rows, blocks = read(3 << 20); rows[3].Cut || len(rows[2].Result) != 1<<20+2 || blocks < 250 {
		t.Errorf("with room for all: cut %t, %d bytes, %d blocks", rows[3].Cut, len(rows[2].Result), blocks)
	}
}

// Results that cannot be read do not keep their task, or others, from being
// dispatched: its handler has to ask.
func TestUnreadableResults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	g := graph(t, r, req("a"), req("b", "a"))
	finish(t, r, true, g["a"])
	settle(t, r)
	other := r.Enqueue(t, testkit.Requests(1, "t")...)[0]
	if _, err := r.DB.Exec(t.Context(), "ALTER TABLE task_dependencies RENAME TO gone"); err != nil {
		t.Fatal(err)
	}
	r.StartDispatch(t)
	got := map[protocol.ID]string{}
	for _, h := range r.Fetch(t, "w", 2) {
		got[h.ID] = string(h.Dependencies)
	}
	if got[g["b"]] != `{"complete":false,"tasks":[]}` || got[other] != "" || len(got) != 2 {
		t.Errorf("dispatched %q", got)
	}
}
