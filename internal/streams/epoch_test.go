package streams_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
)

// Of many that begin an epoch at once one gets through, and the generation only
// grows, in whatever order it is written.
func TestEpoch(t *testing.T) {
	t.Parallel()
	f := open(t, devtest.Redis(t))
	e, err := f.Epoch(t.Context())
	if err != nil || e.ID != "" || e.Generation != 0 || len(e.Server) < 80 {
		t.Fatalf("of an empty Redis: %+v, %v", e, err)
	}
	server := e.Server
	var mu sync.Mutex
	ids := map[string]bool{}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			id, err := f.BeginEpoch(t.Context(), "ours", fmt.Sprint("id-", i), "before")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			ids[id] = true
			mu.Unlock()
			for _, g := range []int64{int64(i), 20 - int64(i)} {
				if _, err := f.RaiseGeneration(t.Context(), id, 0, g); err != nil {
					t.Logf("%v", err) // so many at once may get in each other's way
				}
			}
		})
	}
	wg.Wait()
	if ok, err := f.RaiseGeneration(t.Context(), "another", 0, 99); ok || err != nil {
		t.Errorf("a generation of another epoch: %t, %v", ok, err)
	}
	if e, err = f.Epoch(t.Context()); err != nil || len(ids) != 1 || !ids[e.ID] || e.After != "before" || e.Generation < 11 || e.Generation > 20 || e.Server != server {
		t.Errorf("%+v, %v; begun: %v", e, err, ids)
	}
	var foreign *streams.ForeignError
	if _, err := f.BeginEpoch(t.Context(), "another", "id", ""); !errors.As(err, &foreign) || foreign.Deployment != "ours" || e.Owned("another") == nil || e.Owned("ours") != nil {
		t.Errorf("another deployment's epoch was begun: %v; it is %+v", err, e)
	}
	before := e.Generation
	if ok, err := f.RaiseGeneration(t.Context(), e.ID, 0, 3); !ok || err != nil {
		t.Errorf("an older generation: %t, %v", ok, err)
	}
	if e, err = f.Epoch(t.Context()); err != nil || e.Generation != before {
		t.Errorf("an older generation made %d of %d, %v", e.Generation, before, err)
	}
	if ok, err := f.RaiseGeneration(t.Context(), e.ID, before+1, before+2); ok || err != nil {
		t.Errorf("Redis knows less than was seen: %t, %v", ok, err)
	}
	if e, err = f.Epoch(t.Context()); err != nil || e.Generation != before {
		t.Errorf("that Redis went back was hidden: %d, was %d, %v", e.Generation, before, err)
	}
	if err := f.raw.HSet(t.Context(), "penstock:epoch", "generation", "many").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Epoch(t.Context()); err == nil {
		t.Error("what a stranger wrote is read without an error")
	}
	if err := f.raw.Set(t.Context(), "penstock:epoch", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Epoch(t.Context()); err == nil {
		t.Error("a key of another type is read without an error")
	}
}

func TestTaskStreams(t *testing.T) {
	t.Parallel()
	f := open(t, devtest.Redis(t))
	for _, s := range []string{"stream:task", "stream:task:q", "stream:tasks", "stream:result"} {
		if _, err := f.CreateGroup(t.Context(), s, group); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.raw.Set(t.Context(), "stream:task:text", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	got, err := f.TaskStreams(t.Context(), "stream:task")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	equal(t, "task streams", got, []string{"stream:task", "stream:task:q"})
}
