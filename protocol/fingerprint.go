package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// maxFingerprintText bounds how much of an error counts for its fingerprint.
const maxFingerprintText = 512

// What differs between two occurrences of the same error. The order matters:
// the longer patterns first.
var variable = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "<uuid>"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[t ]\d\d:\d\d:\d\d(\.\d+)?(z|[+-]\d\d:?\d\d)?`), "<time>"},
	{regexp.MustCompile(`0x[0-9a-f]+`), "<hex>"},
	{regexp.MustCompile(`\b[0-9a-f]*\d[0-9a-f]*[a-f][0-9a-f]{6,}\b|\b[0-9a-f]*[a-f][0-9a-f]*\d[0-9a-f]{6,}\b`), "<hex>"},
	{regexp.MustCompile(`"[^"]*"|\B'[^']*'\B`), "<text>"},
	{regexp.MustCompile(`\b\d+(\.\d+)*`), "<n>"}, // total_v2 and total_v3 are names
	{regexp.MustCompile(`\s+`), " "},
}

// NormaliseError reduces an error text to what its occurrences have in common:
// the first line, without case, ids, times, numbers and quoted parts.
func NormaliseError(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	if len(text) > maxFingerprintText {
		text = strings.ToValidUTF8(text[:maxFingerprintText], "")
	}
	text = strings.ToLower(text)
	for _, v := range variable {
		text = v.pattern.ReplaceAllString(text, v.with)
	}
	return strings.TrimSpace(text)
}

// Fingerprint groups dead letters: 12 hexadecimal digits that are equal for
// the same type, and code and normalised text of what failed last (see Cause):
// whether it was retried before does not matter.
func Fingerprint(typ string, code Code, text string) string {
	code, text = Cause(code, text)
	h := sha256.New()
	for _, s := range []string{typ, string(code), NormaliseError(text)} {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}
