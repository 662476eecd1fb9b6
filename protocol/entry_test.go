package protocol

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func genEntry() *rapid.Generator[*TaskEntry] {
	return rapid.Custom(func(t *rapid.T) *TaskEntry {
		e := &TaskEntry{
			ID:         genID().Draw(t, "id"),
			Type:       genName(1, maxName).Draw(t, "type"),
			Payload:    []byte(genName(1, 2000).Draw(t, "payload")),
			Tenant:     genName(1, maxName).Draw(t, "tenant"),
			Attempt:    rapid.IntRange(1, 1<<31-1).Draw(t, "attempt"),
			Delivery:   rapid.Int64Range(1, 1<<62).Draw(t, "delivery"),
			MaxRetries: rapid.IntRange(0, 1<<31-1).Draw(t, "max_retries"),
			Timeout:    time.Duration(rapid.Int64Range(1, 1<<31-1).Draw(t, "timeout")) * time.Millisecond,
			TraceID:    genName(0, maxName).Draw(t, "trace_id"),
			EnqueuedAt: genTime().Draw(t, "enqueued_at"),
		}
		e.TaskID = rapid.OneOf(rapid.Just(e.ID.String()), genName(1, maxName)).Draw(t, "task_id")
		e.HeartbeatTimeout = time.Duration(rapid.SampledFrom([]int64{0, 0, 1, 60_000, 1<<31 - 1}).Draw(t, "heartbeat_timeout")) * time.Millisecond
		e.Solo = rapid.Bool().Draw(t, "solo")
		e.IdempotencyKey = rapid.OneOf(rapid.Just(e.TaskID), rapid.Just(e.ID.String()), genName(1, maxName)).Draw(t, "key")
		e.KeyOwn = rapid.Bool().Draw(t, "key_own")
		e.IdempotencyScope = rapid.OneOf(rapid.Just(e.Tenant), genName(1, maxName)).Draw(t, "scope")
		return e
	})
}

func TestTaskEntryRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := genEntry().Draw(t, "entry")
		values := wire(e.Values())
		values["a field of a later release"] = "?"
		got, err := DecodeTask(values)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, e) {
			t.Fatalf("came back as %+v", got)
		}
	})
}

// Redis stores the names of a node's fields once if every entry has the same
// ones in the same order.
func TestTaskEntriesHaveTheSameFields(t *testing.T) {
	t.Parallel()
	names := func(e *TaskEntry) (out []any) {
		for i, v := range e.Values() {
			if i%2 == 0 {
				out = append(out, v)
			}
		}
		return out
	}
	want := []any{
		"v", "id", "task_id", "tool_name", "payload", "tenant", "attempt", "max_retries", "delivery",
		"timeout_ms", "idempotency_key", "trace_id", "enqueued_at",
	}
	rapid.Check(t, func(t *rapid.T) {
		e := genEntry().Draw(t, "entry")
		e.HeartbeatTimeout, e.Solo = 0, false // what few tasks have
		e.KeyOwn, e.IdempotencyScope = e.IdempotencyKey == e.TaskID, e.Tenant
		e.ScheduledAt, e.Approvals, e.Dependencies = time.Time{}, nil, nil
		if got := names(e); !slices.Equal(got, want) {
			t.Fatalf("fields are %v, want %v", got, want)
		}
	})
}

func TestTaskEntryLeavesOutWhatIsImplied(t *testing.T) {
	t.Parallel()
	id := testID(3)
	e := TaskEntry{ID: id, TaskID: id.String(), IdempotencyKey: id.String(), Type: "mail", Payload: []byte("{}"), Attempt: 1, Delivery: 1, Timeout: time.Second, EnqueuedAt: epoch}
	values := wire(e.Values())
	if values["task_id"] != "" || values["idempotency_key"] != "" || values["v"] != "1" {
		t.Errorf("values are %v", values)
	}
	got, err := DecodeTask(values)
	if err != nil {
		t.Fatal(err)
	}
	if got.TaskID != id.String() || got.IdempotencyKey != id.String() || got.Tenant != "default" {
		t.Errorf("came back as %+v", got)
	}
	delete(values, "task_id")
	values["task_id"] = "order-1001"
	if got, err = DecodeTask(values); err != nil || got.TaskID != "order-1001" || got.IdempotencyKey != "order-1001" {
		t.Errorf("named: %+v, %v", got, err)
	}
}

// badFields damages one field of a good entry after the other: each fault is
// named. A nil value takes the field away.
func badFields(t *testing.T, good map[string]any, decode func(map[string]any) error, bad map[string][]any) {
	t.Helper()
	if err := decode(good); err != nil {
		t.Fatalf("the good entry: %v", err)
	}
	for field, list := range bad {
		for _, v := range list {
			values := maps.Clone(good)
			values[field] = v
			if v == nil {
				delete(values, field)
			}
			err := decode(values)
			if err == nil {
				t.Errorf("field %s = %.60q is accepted", field, fmt.Sprint(v))
				continue
			}
			wantFault(t, err, field)
			if len(err.Error()) > 400 {
				t.Errorf("field %s: the error has %d bytes", field, len(err.Error()))
			}
		}
	}
}

var (
	longName    = strings.Repeat("n", maxName+1)
	longContent = strings.Repeat("c", maxContent+1)
	notUTF8     = "caf\xe9"
	withNUL     = "a\x00b"
)

// integers makes wrong values for a whole number between lo and hi.
func integers(lo, hi int64) []any {
	bad := []any{"one", "1.5", "0x10", "1e3", " 1", "1 ", "１", "9223372036854775808", "-9223372036854775809", longName, withNUL, strconv.FormatInt(lo-1, 10)}
	return append(bad, strconv.FormatInt(hi+1, 10))
}

var (
	badVersions = []any{nil, "", "0", "2", "01", "1.0", "v1", longName, notUTF8}
	badIDs      = []any{nil, "", "x", strings.ToUpper(testID(0xab).String()), "{" + testID(3).String() + "}", longName, notUTF8, withNUL}
	badNames    = []any{longName, notUTF8, withNUL}
)

func TestDecodeTaskNamesTheField(t *testing.T) {
	t.Parallel()
	e := TaskEntry{ID: testID(3), TaskID: "order-1001", Type: "mail", Payload: []byte("{}"), Attempt: 1, Delivery: 1, MaxRetries: 3, Timeout: time.Second, EnqueuedAt: epoch}
	badFields(t, wire(e.Values()), func(m map[string]any) error { _, err := DecodeTask(m); return err }, map[string][]any{
		"v":               badVersions,
		"id":              badIDs,
		"task_id":         badNames,
		"tool_name":       append([]any{nil, ""}, badNames...),
		"payload":         {nil, "", longContent, notUTF8, withNUL},
		"tenant":          badNames,
		"attempt":         append(integers(1, 1<<31-1), nil, ""),
		"max_retries":     append(integers(0, 1<<31-1), nil, ""),
		"delivery":        append(integers(1, 1<<62), nil, ""),
		"timeout_ms":      append(integers(1, 1<<31-1), nil, ""),
		"idempotency_key": badNames,
		"trace_id":        badNames,
		"enqueued_at":     append(integers(0, maxMillis), nil, ""),
	})
}

// The largest values that are allowed.
func TestDecodeTaskLimits(t *testing.T) {
	t.Parallel()
	e := TaskEntry{
		ID: testID(3), TaskID: longName[1:], Type: longName[1:], Payload: []byte(longContent[1:]), Tenant: longName[1:],
		Attempt: 1<<31 - 1, Delivery: 1 << 62, MaxRetries: 1<<31 - 1, Timeout: (1<<31 - 1) * time.Millisecond,
		IdempotencyKey: longName[2:], TraceID: longName[1:], EnqueuedAt: time.UnixMilli(maxMillis).UTC(), IdempotencyScope: longName[1:],
	}
	got, err := DecodeTask(wire(e.Values()))
	if err != nil || !reflect.DeepEqual(got, &e) {
		t.Errorf("error %v, or it came back otherwise", err)
	}
}

// The first fault in the order of the fields is reported; an empty entry has
// no version.
func TestDecodersOfNothing(t *testing.T) {
	t.Parallel()
	for _, values := range []map[string]any{nil, {}, {"": ""}, {"hello": "world"}} {
		_, err := DecodeTask(values)
		wantFault(t, err, "v")
		_, err = DecodeOutcome(values)
		wantFault(t, err, "v")
		_, err = DecodeDeadLetter(values)
		wantFault(t, err, "v")
	}
}

// Other clients of Redis may hand over numbers.
func TestDecodeTakesNumbers(t *testing.T) {
	t.Parallel()
	e := TaskEntry{ID: testID(3), TaskID: "a", Type: "mail", Payload: []byte("{}"), Attempt: 2, Delivery: 7, Timeout: time.Second, EnqueuedAt: epoch}
	values := wire(e.Values())
	values["attempt"], values["delivery"], values["v"] = 2, int64(7), 1
	if got, err := DecodeTask(values); err != nil || got.Attempt != 2 || got.Delivery != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}

// PairOf needs nothing but the identity.
func TestPairOf(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := genEntry().Draw(t, "entry")
		values := wire(e.Values())
		if p, ok := PairOf(values); !ok || p != (Pair{e.ID, e.Delivery}) {
			t.Fatalf("PairOf = %+v, %v", p, ok)
		}
		delete(values, rapid.SampledFrom([]string{"id", "delivery"}).Draw(t, "missing"))
		if p, ok := PairOf(values); ok {
			t.Fatalf("PairOf = %+v of an entry that is no task", p)
		}
	})
	if _, ok := PairOf(map[string]any{"id": testID(1).String(), "delivery": "1"}); !ok {
		t.Error("needs more than id and delivery")
	}
}
