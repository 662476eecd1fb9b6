package streams_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// age sets how long entries have been idle.
func (f *fixture) age(t *testing.T, consumer string, idle time.Duration, ids ...string) {
	t.Helper()
	args := []any{"XCLAIM", stream, group, consumer, 0}
	for _, id := range ids {
		args = append(args, id)
	}
	args = append(args, "IDLE", idle.Milliseconds(), "JUSTID")
	if err := f.raw.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

// claimAll follows the cursor and returns what it got and how many pages were
// empty.
func (f *fixture) claimAll(t *testing.T, consumer string, minIdle time.Duration) (got, ghosts []string, empty int) {
	t.Helper()
	for from, pages := "0-0", 0; from != ""; pages++ {
		es, gs, next, err := f.Claim(t.Context(), stream, group, consumer, from, minIdle)
		if err != nil {
			t.Fatal(err)
		}
		if pages > 1000 {
			t.Fatal("the cursor does not come to an end")
		}
		if len(es)+len(gs) == 0 && next != "" {
			empty++
		}
		for _, e := range es {
			if e.Values == nil {
				t.Errorf("entry %s without values among the claimed", e.ID)
			}
		}
		got, ghosts, from = append(got, ids(es)...), append(ghosts, gs...), next
	}
	return got, ghosts, empty
}

// Claim does the same with XAUTOCLAIM and, where that is missing, by hand.
func TestClaim(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"XAUTOCLAIM": devtest.Redis(t), "by hand": startRedis(t, testkit.NoXAutoClaim...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const healthy = 3000
			f, all := setUp(t, url, healthy+300)
			f.take(t, "a", healthy+300)
			// Many young entries first; then 250 idle ones, of which 2 were deleted.
			idle := all[healthy : healthy+250]
			for chunk := range slices.Chunk(idle, 100) {
				f.age(t, "a", time.Hour, chunk...)
			}
			if err := f.raw.XDel(t.Context(), stream, idle[3], idle[120]).Err(); err != nil {
				t.Fatal(err)
			}
			got, ghosts, empty := f.claimAll(t, "b", time.Minute)
			want := slices.DeleteFunc(slices.Clone(idle), func(id string) bool { return id == idle[3] || id == idle[120] })
			equal(t, "claimed", got, want)
			if name == "XAUTOCLAIM" {
				equal(t, "ghosts", ghosts, []string{idle[3], idle[120]})
				if empty == 0 {
					t.Error("no page was empty: this test no longer tests that an empty page is not the end")
				}
			}
			// Ghosts are gone from the pending list, or are once acknowledged.
			f.ack(t, ghosts...)
			if owned, err := f.Owned(t.Context(), stream, group, "a", []string{idle[3], idle[120]}); err != nil || owned[0] != streams.Gone || owned[1] != streams.Gone {
				t.Errorf("ghosts: %v, %v", owned, err)
			}
			f.checkOwners(t, all[:healthy], "a")
			f.checkOwners(t, want, "b")
			f.checkOwners(t, all[healthy+250:], "a")
			if got, ghosts, _ := f.claimAll(t, "c", time.Minute); len(got)+len(ghosts) > 0 {
				t.Errorf("claimed again at once: %v, %v; claiming must reset the idle time", got, ghosts)
			}
		})
	}
}

func (f *fixture) checkOwners(t *testing.T, ids []string, consumer string) {
	t.Helper()
	owned, err := f.Owned(t.Context(), stream, group, consumer, ids)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range owned {
		if o != streams.Held {
			t.Fatalf("entry %d (%s) is not held by %s: %v", i, ids[i], consumer, o)
		}
	}
}

func TestOwnedAndRenew(t *testing.T) {
	t.Parallel()
	f, all := setUp(t, devtest.Redis(t), 4)
	ctx := t.Context()
	f.take(t, "a", 3)
	f.ack(t, all[0])
	f.age(t, "b", 0, all[1])
	f.age(t, "a", time.Hour, all[2])
	owned, err := f.Owned(ctx, stream, group, "a", append(slices.Clone(all), "1-1"))
	want := []streams.Ownership{streams.Gone, streams.Taken, streams.Held, streams.Gone, streams.Gone}
	if err != nil || !slices.Equal(owned, want) {
		t.Fatalf("owned: %v, %v, want %v", owned, err, want)
	}
	// Renewing what is held does nothing to the others; renewing an
	// acknowledged or undelivered one does not bring it to life.
	if _, err := f.Renew(ctx, stream, group, "a", []string{all[0], all[2], all[3]}); err != nil {
		t.Fatal(err)
	}
	ps, more, err := f.PendingAfter(ctx, stream, group, "", 0)
	if err != nil || more || len(ps) != 2 || ps[0].ID != all[1] || ps[0].Consumer != "b" || ps[1].ID != all[2] || ps[1].Consumer != "a" {
		t.Fatalf("pending: %v, %t, %v", ps, more, err)
	}
	if ps[1].Idle > time.Minute {
		t.Errorf("the renewed entry is still idle for %s", ps[1].Idle)
	}
	if i := f.info(t); i.Undelivered != 1 {
		t.Errorf("%d undelivered, want 1", i.Undelivered)
	}
}

func TestPendingPages(t *testing.T) {
	t.Parallel()
	f, all := setUp(t, devtest.Redis(t), 1203)
	f.take(t, "a", 1203)
	f.age(t, "a", time.Hour, all[1000:1203]...)
	list := func(minIdle time.Duration) (got []string) {
		after := ""
		for more := true; more; {
			ps, m, err := f.PendingAfter(t.Context(), stream, group, after, minIdle)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range ps {
				got, after = append(got, p.ID), p.ID
			}
			more = m
		}
		return got
	}
	equal(t, "all", list(0), all)
	equal(t, "idle", list(time.Minute), all[1000:])
	es, err := f.Fetch(t.Context(), stream, append(slices.Clone(all), "1-1"))
	if err != nil || len(es) != 1204 || es[1203].Values != nil || es[1202].Values["n"] != "1202" {
		t.Errorf("fetched %d, %v", len(es), err)
	}
	var seen []string
	if err := f.Range(t.Context(), stream, all[99], func(e streams.Entry) bool {
		seen = append(seen, e.ID)
		return len(seen) < 1001
	}); err != nil {
		t.Fatal(err)
	}
	equal(t, "range", seen, all[100:1101])
}

func TestLeaveGroup(t *testing.T) {
	t.Parallel()
	f, all := setUp(t, devtest.Redis(t), 1)
	f.take(t, "a", 1)
	if left, err := f.LeaveGroup(t.Context(), stream, group, "a"); left || err != nil {
		t.Errorf("with a pending entry: %t, %v; want it to stay", left, err)
	}
	f.checkOwners(t, all, "a")
	f.ack(t, all...)
	if left, err := f.LeaveGroup(t.Context(), stream, group, "a"); !left || err != nil {
		t.Errorf("with nothing pending: %t, %v", left, err)
	}
	if n := f.info(t).Consumers; n != 0 {
		t.Errorf("%d consumers left", n)
	}
}

// WaitApplied waits for what is in the stream when it is called, no more.
func TestWaitApplied(t *testing.T) {
	t.Parallel()
	f, all := setUp(t, devtest.Redis(t), 3)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	wait := func() { go func() { done <- f.WaitApplied(ctx, stream, group) }() }
	notYet := func(when string) {
		t.Helper()
		short, stop := context.WithTimeout(t.Context(), 60*time.Millisecond)
		defer stop()
		if err := f.WaitApplied(short, stream, group); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v, want to wait", when, err)
		}
	}
	notYet("undelivered")
	f.take(t, "a", 3)
	notYet("pending")
	f.ack(t, all[1], all[2])
	notYet("the first is pending")
	wait()
	looks := f.looks(t)
	testkit.Eventually(t, "it has begun to wait", func() (bool, string) { n := f.looks(t); return n > looks+3, fmt.Sprint(n) })
	f.add(t, 1)
	f.take(t, "b", 1)
	f.ack(t, all[0])
	if err := <-done; err != nil {
		t.Errorf("all applied but a later one: %v", err)
	}
	notYet("a later call")
	wait()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// looks counts the server's XINFO commands.
func (f *fixture) looks(t *testing.T) int {
	t.Helper()
	info := f.raw.InfoMap(t.Context(), "commandstats").Item("Commandstats", "cmdstat_xinfo|groups")
	var n int
	_, _ = fmt.Sscanf(info, "calls=%d", &n)
	return n
}

func TestRequirements(t *testing.T) {
	t.Parallel()
	f := open(t, startRedis(t, "--maxmemory-policy", "noeviction"))
	if err := f.Requirements(t.Context()); err != nil {
		t.Errorf("a fitting server: %v", err)
	}
	if up, err := f.Uptime(t.Context()); err != nil || up < 0 || up > time.Hour {
		t.Errorf("uptime %s, %v", up, err)
	}
	if err := f.raw.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	if err := f.Requirements(t.Context()); err == nil {
		t.Error("a server that evicts streams is accepted")
	}
}
