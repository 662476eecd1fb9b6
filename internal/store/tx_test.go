package store_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A statement that waits for the next one, and is refused, undoes the transaction and
// is its error, whatever it went with: another statement, or the commit. The
// connection is as good as new after it.
func TestErrorOfAStatementThatWaited(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t).Store(t)
	wrong := func(q *dbsqlc.Queries) error { // no such task: the log's check of seq refuses it
		return s.Later(q).InsertEvents(t.Context(), dbsqlc.InsertEventsParams{
			TaskIds: []pgid.ID{pgid.ID(protocol.NameID("t", "n"))}, Seqs: []int32{1}, Types: []string{"x"}, Froms: []string{""}, Tos: []string{""}, Attempts: []int32{1},
			Deliveries: []int64{1}, Keys: []string{""}, NextRetryAts: nil, Codes: []string{""}, Reasons: []string{""}, Backoffs: []int64{-1}, Actors: []string{"a"},
			WorkerIds: []string{""}, MessageIds: []string{""}, TraceIds: []string{"t"}, Datas: []string{"no JSON"}, Times: nil,
		})
	}
	for with, last := range map[string]func(q *dbsqlc.Queries) error{
		"the commit": func(*dbsqlc.Queries) error { return nil },
		"a query": func(q *dbsqlc.Queries) error {
			_, err := q.LiveQueues(t.Context())
			return err
		},
		"a row": func(q *dbsqlc.Queries) error {
			_, err := q.GuardRevision(t.Context())
			return err
		},
		"a statement": func(q *dbsqlc.Queries) error { return q.RemoveInstance(t.Context(), pgid.ID{}) },
	} {
		var told bool
		err := s.Tx(t.Context(), func(q *dbsqlc.Queries) error {
			s.AfterCommit(q, func() { told = true })
			if err := q.TouchInstance(t.Context(), dbsqlc.TouchInstanceParams{ID: pgid.ID(protocol.NameID("t", with))}); err != nil {
				return err
			}
			return errors.Join(wrong(q), last(q))
		})
		if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code[:2] != "22" && e.Code[:2] != "23" {
			t.Errorf("with %s: %v, want what Postgres has against the statement", with, err)
		}
		if told {
			t.Errorf("with %s: it is told of as committed", with)
		}
	}
	// An error that is passed over is no commit either.
	err := s.Tx(t.Context(), func(q *dbsqlc.Queries) error {
		_ = wrong(q)
		_, _ = q.LiveQueues(t.Context())
		return nil
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("a commit after a failure: %v", err)
	}
	err = s.Tx(t.Context(), func(q *dbsqlc.Queries) error {
		return q.TouchInstance(t.Context(), dbsqlc.TouchInstanceParams{ID: pgid.ID(protocol.NameID("t", "last"))})
	})
	if n, e := s.Instances(t.Context()); err != nil || e != nil || n != 1 {
		t.Errorf("%d instances are stored, want that of the last transaction alone; %v", n, err)
	}
}
