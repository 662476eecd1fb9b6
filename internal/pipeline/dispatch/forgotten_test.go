package dispatch_test

import (
	"testing"

	"github.com/penstock-dev/penstock/internal/testkit"
)

// A row that is seen between its commit and Expect is not taken for forgotten,
// however long that takes and however long the transaction took; one whose commit
// nobody saw is.
func TestForgottenOutbox(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	_, end := r.Dispatch.Begin()
	var id int64
	if err := r.DB.QueryRow(t.Context(), `INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries, created_at)
		VALUES ($1, 'default', '0-0', '{}', '{}', now() - interval '10 minutes') RETURNING id`, r.Instance[:]).Scan(&id); err != nil {
		t.Fatal(err)
	}
	look := func(want int) {
		t.Helper()
		if got, err := r.Dispatch.LookForForgotten(t.Context()); err != nil || len(got) != want {
			t.Errorf("%v, %v are taken for forgotten, want %d", got, err, want)
		}
	}
	for range 3 {
		look(0)
	}
	_, late := r.Dispatch.Begin() // began after the row was seen: tells nothing about it
	defer late()
	end()
	look(1)
	known := int64(0)
	if err := r.DB.QueryRow(t.Context(), `INSERT INTO dispatch_outbox (owner, queue, after_id, task_ids, deliveries)
		VALUES ($1, 'default', '0-0', '{}', '{}') RETURNING id`, r.Instance[:]).Scan(&known); err != nil {
		t.Fatal(err)
	}
	r.Dispatch.Expect(known)
	for range 3 {
		look(1)
	}
}
