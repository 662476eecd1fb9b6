package once_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/penstock-dev/penstock/internal/once"
	"github.com/penstock-dev/penstock/protocol"
)

// book grants everything, and notes what it is told.
type book map[string]string

func (b book) Reserve(context.Context, *once.Request) (*once.Answer, error) {
	return &once.Answer{Verdict: protocol.EffectGranted}, nil
}

func (b book) Complete(_ context.Context, name string, _ protocol.ID, _ json.RawMessage, note string) error {
	b[name] = "done " + note
	return nil
}

func (b book) Release(_ context.Context, name string, _ protocol.ID) error {
	b[name] = "free"
	return nil
}

var errX, errY = errors.New("x"), errors.New("y")

func fails(err error) func(context.Context) (json.RawMessage, error) {
	return func(context.Context) (json.RawMessage, error) { return nil, err }
}

// What an error says of an effect: nothing, unless all of it is marked.
func TestMarks(t *testing.T) {
	t.Parallel()
	marked := once.NotDone(errX)
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"marked": {marked, "free"}, "wrapped": {fmt.Errorf("a: %w", marked), "free"}, "marked twice": {once.NotDone(marked), "free"},
		"not marked": {errX, ""}, "joined with another": {errors.Join(marked, errY), ""}, "the other way round": {errors.Join(errY, marked), ""},
		"both marked": {errors.Join(marked, once.NotDone(errY)), "free"}, "two wrapped": {fmt.Errorf("%w: %w", errY, marked), ""},
		"joined, wrapped and marked": {once.NotDone(fmt.Errorf("a: %w", errors.Join(marked, errY))), "free"},
		"lost result":                {once.WithoutResult(errX), "done x"}, "lost result, joined": {errors.Join(once.WithoutResult(errX), errY), ""},
		"both kinds": {errors.Join(once.WithoutResult(errX), marked), ""},
	} {
		b := book{}
		_, err := once.Do(once.With(t.Context(), b), "a", fails(c.err), once.Options{})
		if b["a"] != c.want || !errors.Is(err, c.err) || err.Error() != c.err.Error() {
			t.Errorf("%s: the effect is %q, want %q; error %v", name, b["a"], c.want, err)
		}
	}
}

// What an effect inside another says of itself it does not say of that other.
func TestMarksAreSpent(t *testing.T) {
	t.Parallel()
	for name, inner := range map[string]error{"free": once.NotDone(errX), "done x": once.WithoutResult(errX), "": errors.Join(once.NotDone(errX), errY)} {
		for how, wrap := range map[string]func(error) error{
			"as it is": func(err error) error { return err }, "wrapped": func(err error) error { return fmt.Errorf("b: %w", err) },
		} {
			b := book{}
			ctx := once.With(t.Context(), b)
			_, err := once.Do(ctx, "outer", func(ctx context.Context) (json.RawMessage, error) {
				_, err := once.Do(ctx, "inner", fails(inner), once.Options{})
				return nil, wrap(err)
			}, once.Options{})
			if b["inner"] != name || b["outer"] != "" || !errors.Is(err, errX) {
				t.Errorf("%q %s: inner %q, outer %q, %v", name, how, b["inner"], b["outer"], err)
			}
		}
	}
	b := book{}
	ctx := once.With(t.Context(), b)
	if _, err := once.Do(ctx, "outer", func(ctx context.Context) (json.RawMessage, error) {
		_, err := once.Do(ctx, "inner", fails(once.NotDone(errX)), once.Options{})
		return nil, once.NotDone(err)
	}, once.Options{}); err == nil || b["outer"] != "free" {
		t.Errorf("marked anew: outer %q, %v", b["outer"], err)
	}
}
