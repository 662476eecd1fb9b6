package api

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
)

// row is the n-th of a list.
type row struct {
	n        int
	place    int64
	admitted bool
}

// Pages hold each row that is admitted once and in order, whatever is admitted and
// however large they are; no call reads more than it may, and each gets on.
func TestLookPages(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(0, 4*lookRows).Draw(t, "rows")
		size := int32(rapid.IntRange(1, 50).Draw(t, "size"))
		every := rapid.IntRange(1, 3*lookRows).Draw(t, "every") // one in so many is admitted
		burst := rapid.IntRange(0, total).Draw(t, "burst")      // and some that follow each other
		ok := func(n int) bool { return n%every == 0 || n >= burst && n < burst+int(size)*2 }
		var want, got []int
		for n := range total {
			if ok(n) {
				want = append(want, n)
			}
		}
		at := 0
		for calls := 0; ; calls++ {
			read := 0
			rows, next, short, err := look[row]{
				read: func(_ *dbsqlc.Queries, maxLook, maxRows int32) (out []row, err error) {
					read += int(maxLook)
					for n := at; n < total && n < at+int(maxLook) && len(out) < int(maxRows); n++ {
						if r := (row{n, int64(n - at + 1), ok(n)}); r.admitted || r.place == int64(maxLook) {
							out = append(out, r)
						}
					}
					return out, nil
				},
				of:   func(r row) looked { return looked{r.place, r.admitted} },
				move: func(r row) { at = r.n + 1 },
			}.looks(nil, size)
			if err != nil {
				t.Fatal(err)
			}
			if len(rows) > int(size) || read > lookRows {
				t.Fatalf("a page of %d rows, %d looked at", len(rows), read)
			}
			for _, r := range rows {
				got = append(got, r.n)
			}
			if next == nil {
				if short {
					t.Fatal("the last page is short")
				}
				break
			}
			if len(rows) < int(size) && !short {
				t.Fatalf("a page of %d rows that is neither full nor short nor the last", len(rows))
			}
			if calls > total {
				t.Fatal("calls do not get on")
			}
			at = (*next).n + 1
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%d rows, want %d", len(got), len(want))
		}
	})
}
