package enqueue

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// What an error shows of a caller's text is valid UTF-8 wherever it is cut: else
// the error reaches nobody.
func TestClip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringN(0, 100, 255).Draw(t, "s")
		got := clip(s)
		if len(s) <= 64 {
			if got != s {
				t.Fatalf("%q became %q", s, got)
			}
			return
		}
		shown, cut := strings.CutSuffix(got, "…")
		if !cut || !utf8.ValidString(got) || !strings.HasPrefix(s, shown) || len(shown) > 64 || len(shown) <= 64-utf8.UTFMax {
			t.Fatalf("%q became %q", s, got)
		}
	})
}
