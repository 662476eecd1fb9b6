package protocol

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func genWireOutcome() *rapid.Generator[*Outcome] {
	return rapid.Custom(func(t *rapid.T) *Outcome {
		o := &Outcome{
			ID:        genID().Draw(t, "id"),
			Delivery:  rapid.Int64Range(1, 1<<62).Draw(t, "delivery"),
			Kind:      rapid.SampledFrom(OutcomeKinds()).Draw(t, "kind"),
			WorkerID:  genName(0, maxName).Draw(t, "worker_id"),
			MessageID: rapid.StringMatching(`[0-9]{1,13}-[0-9]`).Draw(t, "message_id"),
			Result:    []byte(genText(2000).Draw(t, "result")),
			Code:      rapid.SampledFrom([]Code{"", CodeTimeout, CodeExecutionFailed, CodeUnknownType, "MINE"}).Draw(t, "code"),
			Error:     genText(maxText).Draw(t, "error"),
			Retryable: rapid.Bool().Draw(t, "retryable"),
			Delay:     -1,
		}
		if rapid.Bool().Draw(t, "started") {
			o.StartedAt, o.FinishedAt = genTime().Draw(t, "started_at"), genTime().Draw(t, "finished_at")
		}
		if rapid.Bool().Draw(t, "delayed") {
			o.Delay = time.Duration(rapid.Int64Range(0, maxDelayMS).Draw(t, "delay")) * time.Millisecond
		}
		return o
	})
}

func TestOutcomeRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := genWireOutcome().Draw(t, "outcome")
		values := wire(o.Values())
		values["a field of a later release"] = "?"
		got, err := DecodeOutcome(values)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, o) {
			t.Fatalf("came back as %+v", got)
		}
	})
}

func TestEachOutcomeKind(t *testing.T) {
	t.Parallel()
	for _, kind := range []OutcomeKind{"claimed", "succeeded", "failed", "snoozed", "released", "approval_needed", "skipped"} {
		got, err := DecodeOutcome(map[string]any{"v": "1", "id": testID(1).String(), "delivery": "3", "kind": string(kind)})
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		want := &Outcome{ID: testID(1), Delivery: 3, Kind: kind, Result: []byte{}, Delay: -1}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", kind, got)
		}
	}
}

func TestDecodeOutcomeNamesTheField(t *testing.T) {
	t.Parallel()
	o := Outcome{
		ID: testID(3), Delivery: 1, Kind: OutcomeFailed, WorkerID: "w", MessageID: "1-0", StartedAt: epoch, FinishedAt: epoch,
		Result: []byte("{}"), Code: CodeTimeout, Error: "slow", Retryable: true, Delay: time.Second,
	}
	badFields(t, wire(o.Values()), func(m map[string]any) error { _, err := DecodeOutcome(m); return err }, map[string][]any{
		"v":           badVersions,
		"id":          badIDs,
		"delivery":    append(integers(1, 1<<62), nil, ""),
		"kind":        append([]any{nil, "", "Failed", "heartbeat", "succeeded ", strings.Repeat("é", 99)}, badNames...),
		"worker_id":   badNames,
		"message_id":  badNames,
		"started_at":  integers(0, maxMillis),
		"finished_at": integers(0, maxMillis),
		"result":      {longContent, notUTF8, withNUL},
		"error_code":  badNames,
		"error":       {longContent},
		"retryable":   badNames,
		"delay_ms":    integers(0, maxDelayMS),
	})
}

// An error text may be anything a program prints; it is made fit instead of
// refused, so that the outcome counts.
func TestOutcomeErrorIsMadeFit(t *testing.T) {
	t.Parallel()
	for _, text := range []string{notUTF8, withNUL, strings.Repeat("é", maxText), longContent[1:]} {
		got, err := DecodeOutcome(map[string]any{"v": "1", "id": testID(1).String(), "delivery": "3", "kind": "failed", "error": text})
		if err != nil || got.Error != Text(text) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// "0", in whatever form, is the time of an execution that never started.
func TestOutcomeTimesThatAreNone(t *testing.T) {
	t.Parallel()
	good := map[string]any{"v": "1", "id": testID(1).String(), "delivery": "3", "kind": "released"}
	for _, zero := range []string{"", "0", "00", "+0", "-0"} {
		values := maps.Clone(good)
		values["started_at"] = zero
		if got, err := DecodeOutcome(values); err != nil || !got.StartedAt.IsZero() {
			t.Errorf("started_at = %q: %+v, %v", zero, got, err)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxText)
	for in, want := range map[string]string{
		"":             "",
		"plain":        "plain",
		"日本語\n\t…":     "日本語\n\t…",
		"a\x00b":       "a\uFFFDb",
		"caf\xe9":      "caf\uFFFD",
		"\xed\xa0\x80": "\uFFFD\uFFFD\uFFFD", // a surrogate half
		long:           long,
		long + "y":     long[:maxText-3] + "…",
		// A cut never splits a character.
		strings.Repeat("é", maxText/2) + "é":  strings.Repeat("é", (maxText-3)/2) + "…",
		strings.Repeat("世", maxText/3) + "世世": strings.Repeat("世", (maxText-3)/3) + "…",
		// Replacing makes it longer.
		strings.Repeat("\x00", maxText): strings.Repeat("\uFFFD", (maxText-3)/3) + "…",
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%.20q, %d bytes) = %.20q, %d bytes, want %d", in, len(in), got, len(got), len(want))
		}
	}
}

func TestTextProperties(t *testing.T) {
	t.Parallel()
	gen := rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 200), func(b []byte) string { return string(b) }),
		rapid.Custom(func(t *rapid.T) string { // near the limit
			unit := rapid.SampledFrom([]string{"x", "é", "世", "😀", "\xff", "\x00"}).Draw(t, "unit")
			n := rapid.IntRange(maxText-8, maxText+8).Draw(t, "bytes")
			return strings.Repeat(unit, n/len(unit)) + rapid.String().Draw(t, "tail")
		}),
	)
	rapid.Check(t, func(t *rapid.T) {
		in := gen.Draw(t, "text")
		out := Text(in)
		if !utf8.ValidString(out) || strings.Contains(out, "\x00") || len(out) > 4096 {
			t.Fatalf("Text gave %d bytes: %q", len(out), out)
		}
		if Text(out) != out {
			t.Fatal("not idempotent")
		}
		if storable(in) && len(in) <= 4096 && out != in {
			t.Fatal("changed a good text")
		}
	})
}
