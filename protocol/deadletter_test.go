package protocol

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func genDeadLetter() *rapid.Generator[*DeadLetter] {
	return rapid.Custom(func(t *rapid.T) *DeadLetter {
		l := &DeadLetter{
			DLQID:      genID().Draw(t, "dlq_id"),
			ID:         rapid.OneOf(rapid.Just(ID{}), genID()).Draw(t, "id"),
			TaskID:     genName(0, maxName).Draw(t, "task_id"),
			Type:       genName(0, maxName).Draw(t, "type"),
			Tenant:     genName(0, maxName).Draw(t, "tenant"),
			Payload:    []byte(genText(2000).Draw(t, "payload")),
			Code:       rapid.SampledFrom([]Code{"", CodeRetryExhausted, CodeWorkerLost, CodeInputInvalid}).Draw(t, "code"),
			Error:      genText(maxText).Draw(t, "error"),
			RetryCount: rapid.IntRange(0, 1<<31-1).Draw(t, "retry_count"),
			FailedAt:   time.Unix(0, rapid.Int64Range(0, 4e18).Draw(t, "failed_at")).UTC(),
			Stream:     rapid.SampledFrom([]string{"", "stream:task", "stream:result"}).Draw(t, "stream"),
			MessageID:  rapid.SampledFrom([]string{"", "1772020800000-0"}).Draw(t, "message_id"),
		}
		if rapid.Bool().Draw(t, "garbage") {
			l.Raw = rapid.MapOfN(genName(0, 20), genText(200), 0, 5).Draw(t, "raw")
		}
		return l
	})
}

func TestDeadLetterRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := genDeadLetter().Draw(t, "dead letter")
		values := wire(l.Values())
		values["a field of a later release"] = "?"
		got, err := DecodeDeadLetter(values)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, l) {
			t.Fatalf("came back as %+v", got)
		}
	})
}

// The task queue protocol, section 7, fixes these names.
func TestDeadLetterFields(t *testing.T) {
	t.Parallel()
	l := &DeadLetter{DLQID: DLQID(testID(1)), ID: testID(1), TaskID: "order-1001", Type: "mail", Payload: []byte(`{"a":1}`), Code: CodeRetryExhausted, Error: "boom", RetryCount: 3, FailedAt: epoch}
	values := wire(l.Values())
	for field, want := range map[string]string{
		"task_id": "order-1001", "tool_name": "mail", "payload": `{"a":1}`, "error": "boom", "retry_count": "3",
		"failed_at": "2026-02-25T12:00:00Z", "dlq_id": DLQID(testID(1)).String(), "error_code": "TASK_RETRY_EXHAUSTED",
	} {
		if values[field] != want {
			t.Errorf("%s = %q, want %q", field, values[field], want)
		}
	}
}

func TestDecodeDeadLetterNamesTheField(t *testing.T) {
	t.Parallel()
	l := DeadLetter{
		DLQID: DLQID(testID(1)), ID: testID(1), TaskID: "order-1001", Type: "mail", Tenant: "t", Payload: []byte("{}"), Code: CodeTimeout,
		Error: "slow", RetryCount: 3, FailedAt: epoch, Stream: "stream:task", MessageID: "1-0", Raw: map[string]string{"a": "b"},
	}
	badFields(t, wire(l.Values()), func(m map[string]any) error { _, err := DecodeDeadLetter(m); return err }, map[string][]any{
		"v":           badVersions,
		"dlq_id":      badIDs,
		"id":          {"x", strings.ToUpper(testID(0xab).String()), longName, notUTF8, withNUL},
		"task_id":     badNames,
		"tool_name":   badNames,
		"tenant":      badNames,
		"payload":     {longContent, notUTF8, withNUL},
		"error_code":  badNames,
		"error":       {longContent},
		"retry_count": append(integers(0, 1<<31-1), nil, ""),
		"failed_at": {
			nil, "", "yesterday", "1772020800000", "2026-02-25", "2026-02-25T12:00:00", "2026-02-30T12:00:00Z", longName, notUTF8,
			"0000-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", // outside the years 0 to 9999 in UTC
		},
		"stream":     badNames,
		"message_id": badNames,
		"raw":        {"{", "[]", `{"a":1}`, `"text"`, notUTF8, withNUL, strings.Repeat(" ", 2*maxContent+1)},
	})
}

func TestDeadLetterTimesAreUTC(t *testing.T) {
	t.Parallel()
	l := DeadLetter{DLQID: testID(1), FailedAt: epoch.In(time.FixedZone("CET", 3600))}
	values := wire(l.Values())
	if values["failed_at"] != "2026-02-25T12:00:00Z" {
		t.Errorf("failed_at = %s", values["failed_at"])
	}
	values["failed_at"] = "2026-02-25T13:00:00.5+01:00"
	got, err := DecodeDeadLetter(values)
	if err != nil || got.FailedAt != epoch.Add(500*time.Millisecond) {
		t.Errorf("%v, %v", got, err)
	}
}

var errCause = errors.New("TASK_INPUT_INVALID: v: is \"\"")

func TestGarbage(t *testing.T) {
	t.Parallel()
	values := map[string]any{"hello": "world", "n": 7, "bin": "caf\xe9", "nul\x00key": withNUL, "long": strings.Repeat("x", maxText+1)}
	l := Garbage("stream:task", "1-0", values, errCause, epoch)
	want := map[string]string{"hello": "world", "n": "7", "bin": "caf\uFFFD", "nul\uFFFDkey": "a\uFFFDb", "long": strings.Repeat("x", maxText-3) + "…"}
	if !maps.Equal(l.Raw, want) {
		t.Errorf("raw is %.200q", l.Raw)
	}
	if l.Code != CodeInputInvalid || l.Error != errCause.Error() || !l.ID.IsZero() || l.Stream != "stream:task" || l.MessageID != "1-0" {
		t.Errorf("%+v", l)
	}
	if l.DLQID[0] != 0xfd || l.DLQID.Version() != 8 || l.DLQID.Named() {
		t.Errorf("dlq_id is %s", l.DLQID)
	}
}

// What is found twice has one dead letter; other entries have others.
func TestGarbageIsRecognised(t *testing.T) {
	t.Parallel()
	values := func() map[string]any { return map[string]any{"a": "1", "b": "2", "c": "3"} }
	l := Garbage("stream:task", "1-0", values(), errCause, epoch)
	if again := Garbage("stream:task", "1-0", values(), errors.New("another reader's words"), epoch.Add(time.Hour)); again.DLQID != l.DLQID {
		t.Error("the same entry has two dead letters")
	}
	other := values()
	other["c"] = "4"
	seen := []ID{l.DLQID}
	for _, o := range []*DeadLetter{
		Garbage("stream:task", "1-1", values(), errCause, epoch), Garbage("stream:result", "1-0", values(), errCause, epoch),
		Garbage("stream:task", "1-0", other, errCause, epoch), Garbage("stream:task", "1-0", nil, errCause, epoch),
	} {
		if slices.Contains(seen, o.DLQID) {
			t.Errorf("%+v shares its dead letter", o)
		}
		seen = append(seen, o.DLQID)
	}
	// Names that become one when they are made fit.
	clash := map[string]any{"\xff": "1", "\xfe": "2", "\xfd": "3", "\xfc": "4"}
	first := Garbage("s", "1-0", clash, errCause, epoch)
	for range 50 {
		if again := Garbage("s", "1-0", maps.Clone(clash), errCause, epoch); again.DLQID != first.DLQID {
			t.Fatal("depends on the order of the fields in memory")
		}
	}
}

func TestGarbageRoundTrip(t *testing.T) {
	t.Parallel()
	text := rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 40), func(b []byte) string { return string(b) })
	rapid.Check(t, func(t *rapid.T) {
		values := map[string]any{}
		for k, v := range rapid.MapOfN(rapid.OneOf(text, rapid.SampledFrom([]string{"v", "id", "error"})), text, 0, 6).Draw(t, "fields") {
			values[k] = v
		}
		l := Garbage("stream:task", "1-0", values, errCause, epoch)
		got, err := DecodeDeadLetter(wire(l.Values()))
		if err != nil {
			t.Fatal(err)
		}
		l.Payload = []byte{}
		if !reflect.DeepEqual(got, l) {
			t.Fatalf("came back as %+v, want %+v", got, l)
		}
	})
}
