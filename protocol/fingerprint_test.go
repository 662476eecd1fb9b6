package protocol_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/protocol"
)

func TestNormaliseError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                "",
		"Connection refused":              "connection refused",
		"dial tcp 10.0.0.7:5432: timeout": "dial tcp <n>:<n>: timeout",
		"order 41 not found\nstack …":     "order <n> not found",
		`no user "alice" in 'eu-west'`:    "no user <text> in <text>",
		"task 01a21ff7-a47a-7454-89ea-cadc311e2cc4 gone": "task <uuid> gone",
		"at 2026-11-28T02:24:12.977Z: late":              "at <time>: late",
		"panic at 0xC000123ABC":                          "panic at <hex>",
		"blob 9f86d081884c7d65 missing":                  "blob <hex> missing",
		"TASK_TIMEOUT: start-to-close timeout:  slow   ": "task_timeout: start-to-close timeout: slow",
		"can't read alpha: it's gone":                    "can't read alpha: it's gone",
		"no column total_v2 in t1, line 17":              "no column total_v2 in t1, line <n>",
		"face cafe decade":                               "face cafe decade",
		"took 1.5s, then 12.25 s":                        "took <n>s, then <n> s",
	} {
		if got := protocol.NormaliseError(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	fp := protocol.Fingerprint
	a := fp("email.send", protocol.CodeRetryExhausted, "TASK_EXECUTION_FAILED: mailbox 17 is full")
	if b := fp("email.send", protocol.CodeRetryExhausted, "TASK_EXECUTION_FAILED: mailbox 918 is full"); a != b || len(a) != 12 {
		t.Errorf("%s and %s, want the same 12 digits", a, b)
	}
	for _, other := range []string{
		fp("email.read", protocol.CodeRetryExhausted, "TASK_EXECUTION_FAILED: mailbox 17 is full"),
		fp("email.send", protocol.CodeTimeout, "mailbox 17 is full"),
		fp("email.send", protocol.CodeRetryExhausted, "TASK_TIMEOUT: mailbox 17 is full"),
	} {
		if other == a {
			t.Errorf("%s for another type, code or cause", other)
		}
	}
	if once := fp("email.send", protocol.CodeExecutionFailed, "mailbox 4 is full"); once != a {
		t.Errorf("%s without retries, %s with: the cause is the same", once, a)
	}
}

// Numbers never matter, whatever surrounds them, and normalising twice is
// normalising once.
func TestFingerprintProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,8}`), 1, 6).Draw(t, "words")
		with := func(label string) string {
			return strings.Join(words, " "+rapid.StringMatching(`[1-9][0-9]{0,5}`).Draw(t, label)+" ")
		}
		if a, b := with("a"), with("b"); protocol.Fingerprint("x", "", a) != protocol.Fingerprint("x", "", b) {
			t.Fatalf("%q and %q differ", a, b)
		}
		text := rapid.String().Draw(t, "text")
		once := protocol.NormaliseError(text)
		if protocol.NormaliseError(text+"\nmore") != once {
			t.Fatalf("a second line of %q counts", text)
		}
	})
}
