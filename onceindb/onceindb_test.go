package onceindb_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql driver

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/onceindb"
	"github.com/penstock-dev/penstock/task"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// open makes the table beside an account to debit.
func open(t *testing.T) (*pgxpool.Pool, *sql.DB) {
	t.Helper()
	url := testkit.Database(t)
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for _, q := range []string{onceindb.Schema, onceindb.Schema, "CREATE TABLE account (balance int NOT NULL)", "INSERT INTO account VALUES (100)"} {
		if _, err := pool.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return pool, db
}

const debit = "UPDATE account SET balance = balance - 1 RETURNING balance"

// However many transactions do it, of either kind, and some fail after it, it is
// done once, and all get its result.
func TestOnce(t *testing.T) {
	t.Parallel()
	pool, db := open(t)
	key := onceindb.Key(task.Info{Tenant: "default", IdempotencyKey: "order-7"})
	boom := errors.New("boom")
	var wg sync.WaitGroup
	var calls atomic.Int64
	for i := range 40 {
		wg.Go(func() {
			var got int
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
				got, err = onceindb.Do(t.Context(), onceindb.Pgx(tx), key, "debit", func(ctx context.Context) (n int, err error) {
					calls.Add(1)
					if err = tx.QueryRow(ctx, debit).Scan(&n); err == nil && i%2 == 0 {
						err = boom
					}
					return n, err
				})
				return err
			})
			if err == nil && got != 99 || err != nil && !errors.Is(err, boom) {
				t.Errorf("%d, %v", got, err)
			}
		})
	}
	wg.Wait()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := onceindb.Do(t.Context(), onceindb.SQL(tx), key, "debit", func(context.Context) (int, error) { t.Error("done again"); return 0, nil })
	if err != nil || got != 99 {
		t.Errorf("%d, %v", got, err)
	}
	if _, err := onceindb.Do(t.Context(), onceindb.SQL(tx), key, "debit", func(context.Context) (string, error) { return "", nil }); !task.IsPermanent(err) {
		t.Errorf("a result of another type: %v", err)
	}
	if n, err := onceindb.Do(t.Context(), onceindb.SQL(tx), key, "credit", func(context.Context) (int, error) { return 5, nil }); n != 5 || err != nil {
		t.Errorf("another effect: %d, %v", n, err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var balance int
	if err := pool.QueryRow(t.Context(), "SELECT balance FROM account").Scan(&balance); err != nil || balance != 99 || calls.Load() < 1 {
		t.Errorf("balance %d, %v after %d calls", balance, err, calls.Load())
	}
}

func TestBadKeys(t *testing.T) {
	t.Parallel()
	_, db := open(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	for _, c := range [][2]string{{"", "a"}, {"a", ""}, {strings.Repeat("k", 10_000), "a"}, {"a", strings.Repeat("k", 10_000)}} {
		if _, err := onceindb.Do(t.Context(), onceindb.SQL(tx), c[0], c[1], func(context.Context) (int, error) { t.Error("ran"); return 0, nil }); !task.IsPermanent(err) {
			t.Errorf("%.10q %.10q: %v", c[0], c[1], err)
		}
	}
	seen := map[string]int{}
	for i, info := range []task.Info{
		{Tenant: "a", IdempotencyKey: "bc"}, {Tenant: "ab", IdempotencyKey: "c"}, {Tenant: "a", IdempotencyScope: "a", IdempotencyKey: "bc"},
		{Tenant: "a", IdempotencyScope: "b", IdempotencyKey: "bc"}, {Tenant: "a", IdempotencyScope: "bb", IdempotencyKey: "c"},
		{Tenant: "a", IdempotencyScope: "a", IdempotencyKey: "bc", IdempotencyKeyOwn: true},
	} {
		if at, ok := seen[onceindb.Key(info)]; ok {
			t.Errorf("%d and %d have the same key", at, i)
		}
		seen[onceindb.Key(info)] = i
	}
}
