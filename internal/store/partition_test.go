package store_test

import (
	"fmt"
	"testing"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// At midnight partitions are made while others read: whoever has read one table
// and goes on to the other is not held up, and nobody is taken for a deadlock.
func TestPartitionsAreMadeBesideReaders(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	st, owner, reader := s.Store(t), s.SQL(t), s.SQL(t)
	exec(t, owner, "DROP TABLE "+get[string](t, owner, "SELECT string_agg(part::text, ', ') FROM dated_partitions"))
	exec(t, reader, "BEGIN")
	exec(t, reader, "SELECT count(*) FROM event_log")
	made := make(chan error, 1)
	go func() { made <- st.EnsurePartitions(t.Context(), 2) }()
	testkit.Eventually(t, "partitions are being made, and wait for the reader", func() (bool, string) {
		var n int
		if err := owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
			WHERE NOT l.granted AND l.relation = 'event_log_default'::regclass`).Scan(&n); err != nil {
			return false, err.Error()
		}
		return n > 0 || len(made) > 0, fmt.Sprint(n)
	})
	exec(t, reader, "SELECT count(*) FROM tasks")
	exec(t, reader, "COMMIT")
	if err := <-made; err != nil && !store.HasCode(err, "55P03") {
		t.Errorf("%v, want all made, or one left for later because the table was in use", err)
	}
	if err := st.EnsurePartitions(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if n := get[int](t, owner, "SELECT count(*) FROM dated_partitions WHERE next_day - first_day = 2"); n != 4 {
		t.Errorf("%d partitions, want 4", n)
	}
}
