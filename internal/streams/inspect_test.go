package streams_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
)

// Large entries are read few at a time, and none is left out or read twice.
func TestRangeAndFetchOfLargeEntries(t *testing.T) {
	t.Parallel()
	f, ids := setUp(t, devtest.Redis(t), 700)
	large := make([][]any, 20)
	for i := range large {
		large[i] = []any{"x", strings.Repeat("x", 1<<20)}
	}
	for _, a := range f.Add(t.Context(), stream, large) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		ids = append(ids, a.ID)
	}
	ids = append(ids, f.add(t, 700)...)
	var got []string
	if err := f.Range(t.Context(), stream, "", func(e streams.Entry) bool { got = append(got, e.ID); return true }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, ids) {
		t.Errorf("XRANGE gives %d entries, want %d in order", len(got), len(ids))
	}
	got = nil
	if err := f.Range(t.Context(), stream, ids[9], func(e streams.Entry) bool { got = append(got, e.ID); return len(got) < 100 }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, ids[10:110]) {
		t.Errorf("XRANGE stopped early gives %d entries, want the 100 after the tenth", len(got))
	}

	// Every third is gone, and so are the first hundred.
	gone := map[string]bool{}
	for i, id := range ids {
		if i < 100 || i%3 == 0 {
			gone[id] = true
		}
	}
	for id := range gone {
		if err := f.raw.XDel(t.Context(), stream, id).Err(); err != nil {
			t.Fatal(err)
		}
	}
	es, err := f.Fetch(t.Context(), stream, ids)
	if err != nil || len(es) != len(ids) {
		t.Fatalf("%d entries, error %v", len(es), err)
	}
	for i, e := range es {
		if e.ID != ids[i] || gone[e.ID] != (e.Values == nil) {
			t.Errorf("entry %d: %s, want %s; gone %t, found %t", i, e.ID, ids[i], gone[ids[i]], e.Values != nil)
		}
	}
}
