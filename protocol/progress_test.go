package protocol

import (
	"strings"
	"testing"
)

func TestCheckProgress(t *testing.T) {
	t.Parallel()
	for _, ok := range []string{`null`, `0`, `{"done":3,"of":7}`, `"` + strings.Repeat("x", MaxProgress-2) + `"`, `"\\u0000"`, `"é\n"`, `[1, 2]`} {
		if err := CheckProgress([]byte(ok)); err != nil {
			t.Errorf("%.40s: %v", ok, err)
		}
	}
	for bad, want := range map[string]string{
		``: "not JSON", `{`: "not JSON", `1 2`: "not JSON", "\"\xff\"": "not JSON", `"a\u0000b"`: "NUL", `{"\u0000":1}`: "NUL", `"\\\u0000"`: "NUL",
		`"` + strings.Repeat("x", MaxProgress-1) + `"`: "4097 bytes",
	} {
		if err := CheckProgress([]byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: got %v, want an error about %s", bad, err, want)
		}
	}
}
