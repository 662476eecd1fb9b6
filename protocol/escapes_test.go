package protocol_test

import (
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/protocol"
)

// One rule for all JSON that is kept: payloads, results, progress, effects.
func TestCheckEscapes(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		`1`: "", `"\\u0000"`: "", `"\\\\u0000"`: "", `"\ud83d\ude00"`: "", `{"a":"\n\u00fc"}`: "", `"x\"\u1234"`: "",
		`"\u0000"`: "NUL", `"\\\u0000"`: "NUL", `{"\u0000":1}`: "NUL", `"\u00001"`: "NUL",
		`"\ud800"`: "half a surrogate pair, \\ud800", `["\ud83d","\ude00"]`: "half", `"\ude00\ud83d"`: "half", `"\ud83d\n"`: "half", `"\ud83d\ud83d"`: "half", `"\ud83d\\ude00"`: "half",
	} {
		for what, err := range map[string]error{
			"escapes": protocol.CheckEscapes([]byte(doc)), "progress": protocol.CheckProgress([]byte(doc)), "effect": protocol.CheckEffectResult([]byte(doc)),
		} {
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s: %s: %v, want %q", what, doc, err, want)
			}
		}
	}
}
