package batch_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/penstock-dev/penstock/internal/batch"
)

// Batches end where their size would pass MaxSize; one larger item goes alone;
// WaitingSize bounds what waits.
func TestSizes(t *testing.T) {
	t.Parallel()
	started, let := make(chan []int, 100), make(chan struct{})
	b := batch.NewSized(batch.Options{Max: 10, Flushes: 1, Waiting: 100, MaxSize: 10, WaitingSize: 60}, func(n int) int { return n },
		func(_ context.Context, items []int) []batch.Result[int] {
			started <- slices.Clone(items)
			<-let
			return double(items)
		})
	if err := b.Go(1); err != nil {
		t.Fatal(err)
	}
	<-started
	for _, n := range []int{4, 6, 1, 25, 3, 7, 1} {
		if err := b.Go(n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Submit(t.Context(), 14); !errors.Is(err, batch.ErrFull) { // 47 wait
		t.Errorf("got %v, want ErrFull", err)
	}
	close(let)
	for _, want := range [][]int{{4, 6}, {1}, {25}, {3, 7}, {1}} {
		if got := <-started; !slices.Equal(got, want) {
			t.Errorf("batch %v, want %v", got, want)
		}
	}
	if v, err := b.Submit(t.Context(), 59); err != nil || v != 118 {
		t.Errorf("got %d, %v after the queue emptied", v, err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}
