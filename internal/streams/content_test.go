package streams_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// An entry that is nowhere was acknowledged and trimmed only if nothing can have
// been lost since it was seen.
func TestAckedAndTrimmedIsToldFromLost(t *testing.T) {
	t.Parallel()
	remake := func(t *testing.T, f *fixture) {
		if _, err := f.CreateTaskGroup(t.Context(), stream, group); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		lose func(t *testing.T, f *fixture, id string)
		want bool
	}{
		"acknowledged and trimmed": {func(t *testing.T, f *fixture, id string) {
			f.ack(t, id)
			f.raw.XDel(t.Context(), stream, id)
		}, true},
		"stream lost": {func(t *testing.T, f *fixture, _ string) {
			f.raw.Del(t.Context(), stream)
			remake(t, f)
		}, false},
		"group lost": {func(t *testing.T, f *fixture, _ string) {
			f.raw.XGroupDestroy(t.Context(), stream, group)
			remake(t, f)
		}, false},
		"everything lost": {func(t *testing.T, f *fixture, _ string) {
			f.raw.FlushDB(t.Context())
			remake(t, f)
		}, false},
		"everything lost and begun anew": {func(t *testing.T, f *fixture, _ string) {
			f.raw.FlushDB(t.Context())
			remake(t, f)
			begin(t, f, "second")
		}, false},
		"put back by hand": {func(t *testing.T, f *fixture, id string) {
			if err := f.Remade(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.ack(t, id)
			f.raw.XDel(t.Context(), stream, id)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, all := setUp(t, devtest.Redis(t), 1)
			begin(t, f, "first")
			seen, err := f.Content(t.Context())
			if err != nil || !seen.Known() {
				t.Fatalf("%v, %v", seen, err)
			}
			f.take(t, "a", 1)
			c.lose(t, f, all[0])
			f.pass(t, all[0])
			f.add(t, 1) // its id is greater: it passes the old one
			f.take(t, "b", 1)
			if o, err := f.Owned(t.Context(), stream, group, "a", all); err != nil || o[0] != streams.Gone {
				t.Fatalf("owned: %v, %v; want it gone", o, err)
			}
			for known, want := range map[streams.Content]bool{seen: c.want, {}: false} {
				got, err := f.Acked(t.Context(), stream, group, all, []streams.Content{known})
				if err != nil || got[0] != want {
					t.Errorf("acknowledged: %v, %v; want %t", got, err, want)
				}
			}
		})
	}
}

// pass waits until Redis' clock is beyond an id: a new stream gives ids of the same
// millisecond again.
func (f *fixture) pass(t *testing.T, id string) {
	t.Helper()
	ms, err := strconv.ParseInt(id[:strings.Index(id, "-")], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a later millisecond", func() (bool, string) {
		now, err := f.raw.Time(t.Context()).Result()
		return err == nil && now.UnixMilli() > ms, fmt.Sprint(now, err)
	})
}

func begin(t *testing.T, f *fixture, id string) {
	t.Helper()
	if _, err := f.BeginEpoch(t.Context(), "deployment", id, ""); err != nil {
		t.Fatal(err)
	}
}

// Renewing an entry that a stranger deleted ends its lease; the caller is told.
func TestRenewTellsWhatItDropped(t *testing.T) {
	t.Parallel()
	f, all := setUp(t, devtest.Redis(t), 3)
	f.take(t, "a", 3)
	if err := f.raw.XDel(t.Context(), stream, all[1]).Err(); err != nil {
		t.Fatal(err)
	}
	dropped, err := f.Renew(t.Context(), stream, group, "a", all)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "dropped", dropped, all[1:2])
}
