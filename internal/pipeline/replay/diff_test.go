package replay_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/pipeline/replay"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ from, to, want string }{
		{`1`, `1`, `[]`},
		{`1`, `1.0`, `[{"op":"replace","path":"","from":1,"to":1.0}]`},
		{`null`, `{}`, `[{"op":"replace","path":"","from":null,"to":{}}]`},
		{`{}`, `[]`, `[{"op":"replace","path":"","from":{},"to":[]}]`},
		{`"a"`, `{"a":1}`, `[{"op":"replace","path":"","from":"a","to":{"a":1}}]`},
		{`{"a":1,"b":[1,2,3]}`, `{"b":[1,9]}`, `[{"op":"remove","path":"/a","from":1},{"op":"replace","path":"/b/1","from":2,"to":9},{"op":"remove","path":"/b/2","from":3}]`},
		{`{"a/b":{"c~d":1}}`, `{"a/b":{"c~d":2}}`, `[{"op":"replace","path":"/a~1b/c~0d","from":1,"to":2}]`},
		{`[]`, `[null]`, `[{"op":"add","path":"/0","to":null}]`},
		{``, `{}`, `[{"op":"replace","path":"","from":null,"to":{}}]`},
	} {
		got, err := replay.Diff([]byte(c.from), []byte(c.to))
		if err != nil || string(got) != c.want {
			t.Errorf("%s → %s: %s, %v; want %s", c.from, c.to, got, err, c.want)
		}
	}
}

func TestDiffIsBounded(t *testing.T) {
	t.Parallel()
	long := fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", 200_000))
	got, err := replay.Diff([]byte(long), []byte(`{"a":1}`))
	if err != nil || string(got) != `[{"op":"replace","path":"/a"}]` {
		t.Errorf("%.200s, %v", got, err)
	}
	var many []int
	for i := range 1000 {
		many = append(many, i)
	}
	b, _ := json.Marshal(many)
	got, err = replay.Diff([]byte(`[]`), b)
	if err != nil || len(got) > 20_000 || !strings.HasSuffix(string(got), `{"op":"more","path":"","to":800}]`) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// No difference exactly if the values are the same.
func TestDiffProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := value(3).Draw(t, "a"), value(3).Draw(t, "b")
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		got, err := replay.Diff(x, y)
		if err != nil {
			t.Fatal(err)
		}
		if (string(got) == "[]") != (string(x) == string(y)) {
			t.Fatalf("%s → %s: %s", x, y, got)
		}
	})
}

func value(depth int) *rapid.Generator[any] {
	scalar := rapid.OneOf(rapid.Just[any](nil), rapid.Map(rapid.IntRange(0, 3), func(n int) any { return n }), rapid.Map(rapid.SampledFrom([]string{"", "a", "/"}), func(s string) any { return s }))
	if depth == 0 {
		return scalar
	}
	inner := value(depth - 1)
	return rapid.OneOf(scalar,
		rapid.Map(rapid.SliceOfN(inner, 0, 3), func(v []any) any { return v }),
		rapid.Map(rapid.MapOfN(rapid.SampledFrom([]string{"a", "b/", "~c"}), inner, 0, 3), func(v map[string]any) any { return v }))
}
