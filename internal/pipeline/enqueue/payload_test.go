package enqueue

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/protocol"
)

var limits = Limits{MaxPayloadBytes: 1 << 10, MaxPayloadDepth: 8, MaxScheduleAhead: 24 * time.Hour, Defaults: Defaults{Timeout: time.Minute, MaxRetries: 3, Policy: protocol.DefaultRetryPolicy()}}

func TestNesting(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]int{
		``: 0, `1`: 0, `[]`: 1, `[[],[{}]]`: 3, `"[[[["`: 0, `"\"[["`: 0, `"\\"`: 0, `["\\"]`: 1, `{"\u0000":1}`: 1, `"\`: 0, `]]][`: 0,
	} {
		if got := nesting([]byte(in)); got != want {
			t.Errorf("nesting(%s) = %d, want %d", in, got, want)
		}
	}
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":[2,{"c":3,"d":4}]}`, " {\n\"b\" : [2,{\"d\":4,\"c\":3}], \"a\":1 }", true},
		{`"\u00fc\/"`, `"ü/"`, true}, {`"\ud83d\ude00"`, `"😀"`, true}, {`"<>&"`, `"\u003c\u003e\u0026"`, true},
		{`[1,2]`, `[2,1]`, false}, {`1`, `1.0`, false}, {`1e2`, `100`, false}, {`"1"`, `1`, false}, {`null`, `{}`, false},
		{`12345678901234567890`, `12345678901234567891`, false}, {`9007199254740993`, `9007199254740992`, false}, {`{"a":null}`, `{}`, false},
	} {
		if got := canonical([]byte(c.a)) == canonical([]byte(c.b)); got != c.same {
			t.Errorf("%s and %s: same = %v, want %v (%s, %s)", c.a, c.b, got, c.same, canonical([]byte(c.a)), canonical([]byte(c.b)))
		}
	}
}

// jsonValue draws any JSON value.
func jsonValue(depth int) *rapid.Generator[any] {
	leaves := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.String().AsAny(), rapid.Int64().AsAny(), rapid.Float64Range(-1e9, 1e9).AsAny(),
	}
	if depth > 0 {
		leaves = append(leaves, rapid.SliceOfN(jsonValue(depth-1), 0, 4).AsAny(), rapid.MapOfN(rapid.String(), jsonValue(depth-1), 0, 4).AsAny())
	}
	return rapid.OneOf(leaves...)
}

// TestCanonicalProperties: the form does not depend on how a value was
// written, is stable, and keeps the value.
func TestCanonicalProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := jsonValue(4).Draw(t, "value")
		b, err := json.Marshal(v)
		if err != nil {
			t.Skip("no JSON form")
		}
		indented, err := json.MarshalIndent(v, " ", "\t")
		if err != nil {
			t.Fatal(err)
		}
		c := canonical(b)
		if c != canonical(indented) || c != canonical([]byte(c)) {
			t.Fatalf("not canonical: %s", b)
		}
	})
}

func FuzzCheckPayload(f *testing.F) {
	for _, s := range []string{`{"a":[1,"\u0000"]}`, `"\\u0000"`, "\xff", "[[[[[[[[[[", ` 1`, `"\ud800"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		got, err := checkPayload(p, &limits, nil)
		if err != nil {
			if protocol.CodeOf(err) != protocol.CodeInputInvalid {
				t.Errorf("%v", err)
			}
			return
		}
		var v any
		if e := json.Unmarshal(got, &v); e != nil || !utf8.Valid(got) || len(got) > limits.MaxPayloadBytes {
			t.Errorf("accepted %q: %v", p, e)
		}
		if holdsNUL(v) {
			t.Errorf("accepted a NUL: %q", p)
		}
		if c := canonical(got); c != canonical([]byte(c)) {
			t.Errorf("canonical form of %q is not stable", p)
		}
	})
}

func holdsNUL(v any) bool {
	switch v := v.(type) {
	case string:
		return strings.ContainsRune(v, 0)
	case []any:
		for _, e := range v {
			if holdsNUL(e) {
				return true
			}
		}
	case map[string]any:
		for k, e := range v {
			if strings.ContainsRune(k, 0) || holdsNUL(e) {
				return true
			}
		}
	}
	return false
}

// TestValidateFirstField: of several wrong fields the same one is always named.
func TestValidateFirstField(t *testing.T) {
	t.Parallel()
	for range 50 {
		_, err := validate(&Request{Type: "x", TaskID: "\n", IdempotencyKey: "\n", IdempotencyScope: "\n", TraceID: "\n"}, &limits, time.Now())
		if e, ok := err.(*protocol.Error); !ok || e.Field != "task_id" { //nolint:errorlint // validate's own
			t.Fatalf("%v", err)
		}
	}
}

func TestValidateDefaults(t *testing.T) {
	t.Parallel()
	now := time.Now()
	it, err := validate(&Request{Type: "x"}, &limits, now)
	if err != nil {
		t.Fatal(err)
	}
	if it.tenant != "default" || it.queue != "default" || it.scope != "default" || it.key != "" || it.schedule != "now" || it.timeoutMS != 60_000 ||
		it.maxRetries != 3 || it.given != 0 || string(it.payload) != "null" || it.id.Version() != 7 || it.name != "" || !it.stale.IsZero() {
		t.Errorf("%+v", it)
	}
	if want := "trace-run-" + it.id.String() + ":1-"; !strings.HasPrefix(it.traceID, want) {
		t.Errorf("trace id %q, want prefix %q", it.traceID, want)
	}
	n := int32(math.MaxInt32)
	it, err = validate(&Request{Type: "x", Tenant: "t", TimeoutMS: &n, TraceID: "mine", ScheduleType: "at", ScheduledAt: now.Add(time.Hour)}, &limits, now)
	if err != nil || it.scope != "t" || it.timeoutMS != n || it.given != givenTimeout|givenTrace || it.traceID != "mine" || it.scheduledAt.Nanosecond()%1000 != 0 {
		t.Errorf("%+v, %v", it, err)
	}
}

func TestTaskIDKinds(t *testing.T) {
	t.Parallel()
	now := time.Now()
	v7 := func(at time.Time) string {
		var id protocol.ID
		ms := at.UnixMilli()
		for i := range 6 {
			id[i] = byte(ms >> (40 - 8*i))
		}
		id[6], id[8] = 0x70, 0x80
		return id.String()
	}
	for _, c := range []struct {
		id           string
		named, stale bool
	}{
		{v7(now), false, false}, {v7(now.Add(-23 * time.Hour)), false, false}, {v7(now.Add(59 * time.Minute)), false, false},
		{v7(now.Add(-25 * time.Hour)), true, true}, {v7(now.Add(2 * time.Hour)), true, true}, {strings.ToUpper(v7(now)), true, false},
		{"6a7a5c7c-0000-4000-8000-000000000000", true, false}, {"order-1", true, false},
	} {
		it, err := validate(&Request{Type: "x", TaskID: c.id}, &limits, now)
		if err != nil {
			t.Fatal(err)
		}
		if it.id.Named() != c.named || it.stale.IsZero() == c.stale || it.taskID() != c.id {
			t.Errorf("%s: named %v, stale %v, task id %s", c.id, it.id.Named(), it.stale, it.taskID())
		}
	}
}
