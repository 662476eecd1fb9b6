package verify_test

import (
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/internal/verify"
	"github.com/penstock-dev/penstock/protocol"
)

// Nothing differs wherever a healthy task may be.
func TestCleanWorld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sum := clean(t, w.Stores, verify.Options{})
	if sum.Tasks != 20 || sum.DeadLetters != 6 || sum.Live != 7 || sum.Retries != 2 || sum.Events < 60 {
		t.Errorf("%+v", sum)
	}
	for name, id := range w.ids {
		if name == "batch" || name == "discard-batch" {
			continue
		}
		if sum := clean(t, w.Stores, verify.Options{IDs: []protocol.ID{id}}); sum.Tasks != 1 || sum.Events == 0 {
			t.Errorf("%s: %+v", name, sum)
		}
	}
}

func TestEmptyDatabase(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	if sum := clean(t, s, verify.Options{}); sum.Tasks+sum.Events+sum.Live != 0 {
		t.Errorf("%+v", sum)
	}
	if sum := clean(t, s, verify.Options{IDs: []protocol.ID{{1}}}); sum.Tasks != 0 {
		t.Errorf("%+v", sum)
	}
}

// Only what was asked for is verified: by id, or by the time of creation.
func TestSelection(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	old := []string{"done", "retried", "dead", "queued"}
	for i, name := range old { // one a minute
		if _, err := w.DB.Exec(t.Context(), "UPDATE tasks SET created_at = $2, worker_id = 'x' WHERE id = $1", idOf(w, name), at.Add(time.Duration(i)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	for name, x := range map[string]struct {
		o     verify.Options
		tasks int64
		want  string
	}{
		"two ids":                               {verify.Options{IDs: []protocol.ID{w.ids["done"], w.ids["tried"], w.ids["done"]}}, 2, "row done"},
		"a whole hour":                          {verify.Options{Since: at, Until: at.Add(time.Hour)}, 4, "row dead, row done, row queued, row retried"},
		"the end is excluded, the begin is not": {verify.Options{Since: at.Add(time.Minute), Until: at.Add(2 * time.Minute)}, 1, "row retried"},
		"no begin":                              {verify.Options{Until: at.Add(time.Second)}, 1, "row done"},
		"no end":                                {verify.Options{Since: at.Add(time.Hour)}, 16, ""},
	} {
		sum, found := run(t, w.Stores, x.o)
		if got := brief(found, w.names()); got != x.want || sum.Tasks != x.tasks {
			t.Errorf("%s: %d tasks, %q; want %d, %q", name, sum.Tasks, got, x.tasks, x.want)
		}
	}
}

func idOf(w *world, name string) []byte {
	id := w.ids[name]
	return id[:]
}

func TestResolve(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, s := range map[string]string{"retried": "order-17", "done": w.ids["done"].String()} {
		if id, err := verify.Resolve(t.Context(), w.Store, "default", s); err != nil || id != w.ids[name] {
			t.Errorf("%s: %s, error %v", s, id, err)
		}
	}
	for _, tt := range []struct{ tenant, id string }{{"default", "nobody"}, {"other", "order-17"}, {"default", "01900000-0000-7000-8000-00000000dead"}} {
		if _, err := verify.Resolve(t.Context(), w.Store, tt.tenant, tt.id); protocol.CodeOf(err) != protocol.CodeNotFound {
			t.Errorf("%+v: error %v", tt, err)
		}
	}
}

// Without Redis, what is there is not missed.
func TestWithoutRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.Raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	n := 0
	sum, err := verify.Run(t.Context(), verify.Options{Store: w.Store, Report: func(d verify.Difference) { n++; t.Errorf("%s  %s", d.Check, d) }})
	if err != nil || n > 0 || sum.Live != 0 || sum.Tasks != 20 {
		t.Errorf("%+v, error %v", sum, err)
	}
	if _, found := run(t, w.Stores, verify.Options{}); len(found) < 7 {
		t.Errorf("Redis is empty, and only %d differences are found", len(found))
	}
}
