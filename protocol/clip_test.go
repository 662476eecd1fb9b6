package protocol

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// What an error shows of a text is valid UTF-8 wherever it is cut.
func TestClip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, n := rapid.StringN(0, 100, 255).Draw(t, "s"), rapid.IntRange(utf8.UTFMax, 200).Draw(t, "n")
		got := Clip(s, n)
		if len(s) <= n {
			if got != s {
				t.Fatalf("%q became %q", s, got)
			}
			return
		}
		shown, cut := strings.CutSuffix(got, "…")
		if !cut || !utf8.ValidString(got) || !strings.HasPrefix(s, shown) || len(shown) > n || len(shown) <= n-utf8.UTFMax {
			t.Fatalf("%q at %d became %q", s, n, got)
		}
	})
}
