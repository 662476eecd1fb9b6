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
	var suffix string
	if err := owner.QueryRow(t.Context(), "SELECT to_char((now() AT TIME ZONE 'UTC')::date + 1, '_YYYYMMDD')").Scan(&suffix); err != nil {
		t.Fatal(err)
	}
	exec(t, owner, "DROP TABLE tasks"+suffix+", event_log"+suffix)
	exec(t, reader, "BEGIN")
	exec(t, reader, "SELECT count(*) FROM event_log")
	made := make(chan error, 1)
	go func() { made <- st.EnsurePartitions(t.Context()) }()
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
	if err := st.EnsurePartitions(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := get[int](t, owner, "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname IN ('tasks"+suffix+"', 'event_log"+suffix+"')"); n != 2 {
		t.Errorf("%d partitions, want 2", n)
	}
}
