package once_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// turn is what one Reserve of a script comes to, after a while.
type turn struct {
	after   time.Duration
	verdict protocol.EffectVerdict
	err     error
	end     bool // the execution is over by then
}

// script answers turn by turn, and notes the tokens of the calls.
type script struct {
	turns           []turn
	end             context.CancelCauseFunc
	asked, released []protocol.ID
}

func (s *script) Reserve(_ context.Context, r *once.Request) (*once.Answer, error) {
	now := s.turns[len(s.asked)]
	s.asked = append(s.asked, r.Token)
	time.Sleep(now.after)
	if now.end {
		s.end(errX)
	}
	return &once.Answer{Verdict: now.verdict}, now.err
}

func (s *script) Complete(context.Context, string, protocol.ID, json.RawMessage, string) error {
	return errors.New("nothing has happened")
}

func (s *script) Release(_ context.Context, _ string, token protocol.ID) error {
	s.released = append(s.released, token)
	return errY // nobody waits for its success
}

// A reservation that the ledger may have, and that certainly was not used, is
// given back, whatever the last answer was: else a person is asked, in vain.
func TestUnusedReservationIsReleased(t *testing.T) {
	t.Parallel()
	const granted, late = protocol.EffectGranted, 2 * time.Second
	replaced := protocol.Errorf(protocol.CodeInvalidTransition, "delivery", "does not run any more")
	check := func(context.Context) (bool, json.RawMessage, error) { return false, nil, nil }
	for name, c := range map[string]struct {
		turns []turn
		want  error // nil: any
		keep  bool
	}{
		"no answer":                                {turns: []turn{{err: errY}}, want: errY},
		"a grant whose reply was lost, and a no":   {turns: []turn{{err: replaced}}, want: replaced},
		"a late grant, and a no":                   {turns: []turn{{after: late, verdict: granted}, {err: replaced}}, want: replaced},
		"a late grant, and no answer":              {turns: []turn{{after: late, verdict: granted}, {err: errY}}, want: errY},
		"a grant at the end":                       {turns: []turn{{verdict: granted, end: true}}, want: errX},
		"a late grant at the end":                  {turns: []turn{{after: late, verdict: granted, end: true}}, want: errX},
		"a late grant, and another at the end":     {turns: []turn{{after: late, verdict: granted}, {verdict: granted, end: true}}, want: errX},
		"a no at the end":                          {turns: []turn{{err: replaced, end: true}}, want: errX},
		"a check whose word is refused":            {turns: []turn{{verdict: protocol.EffectInDoubt}, {err: replaced}}, want: replaced},
		"a late grant by a check, and a no":        {turns: []turn{{verdict: protocol.EffectInDoubt}, {after: late, verdict: granted}, {err: replaced}}, want: replaced},
		"another's, in doubt, at the end":          {turns: []turn{{verdict: protocol.EffectInDoubt, end: true}}, want: errX, keep: true},
		"another's, which runs":                    {turns: []turn{{verdict: protocol.EffectBusy}}, keep: true},
		"a late grant, and another's since, known": {turns: []turn{{after: late, verdict: granted}, {verdict: protocol.EffectKnown}}, keep: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancelCause(t.Context())
				s := &script{turns: c.turns, end: end}
				_, err := once.Do(once.With(ctx, s), "a", func(context.Context) (json.RawMessage, error) {
					t.Error("it was run")
					return nil, nil
				}, once.Options{Check: check})
				if len(s.asked) != len(c.turns) || c.want != nil && !errors.Is(err, c.want) {
					t.Errorf("asked %d times, %v; want %d times, %v", len(s.asked), err, len(c.turns), c.want)
				}
				for _, token := range s.asked {
					if token != s.asked[0] {
						t.Error("asked with another token")
					}
				}
				want := 1
				if c.keep {
					want = 0
				}
				if len(s.released) != want || want > 0 && s.released[0] != s.asked[0] {
					t.Errorf("asked with %v, released %v, want %d", s.asked, s.released, want)
				}
				end(nil)
			})
		})
	}
}
