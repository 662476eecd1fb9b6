package protocol

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What CheckApprovers lets through can be met, names each person once, and stays
// as it is when it is checked again; what it refuses it says with a field.
func TestCheckApproversProperty(t *testing.T) {
	t.Parallel()
	names := []string{"ada", "Ada", " ADA ", "bob", "role:approver", "ROLE:Approver", "role:", "", "anonymous", "a b", strings.Repeat("x", 256)}
	rapid.Check(t, func(t *rapid.T) {
		required := rapid.IntRange(-1, 3).Draw(t, "required")
		approvers := rapid.SliceOfN(rapid.SampledFrom(names), 0, 5).Draw(t, "approvers")
		timeout := rapid.SampledFrom([]time.Duration{-1, 0, 1, time.Second, time.Second + 1, time.Hour, MaxApprovalTimeout, MaxApprovalTimeout + time.Millisecond}).Draw(t, "timeout")
		given := slices.Clone(approvers)
		n, who, d, err := CheckApprovers(required, approvers, timeout)
		if !slices.Equal(given, approvers) {
			t.Fatal("the caller's list was changed")
		}
		if err != nil {
			e, ok := err.(*Error)
			if !ok || e.Code != CodeInputInvalid || !slices.Contains([]string{"required", "approvers", "timeout_ms"}, e.Field) {
				t.Fatalf("error %#v", err)
			}
			return
		}
		if n < 1 || n > 2 || d < MinApprovalTimeout || d > MaxApprovalTimeout || d%time.Millisecond != 0 || len(who) == 0 {
			t.Fatalf("%d of %q within %s", n, who, d)
		}
		role := slices.ContainsFunc(who, func(s string) bool { return strings.HasPrefix(s, RolePrefix) })
		if !role && len(who) < n {
			t.Fatalf("%d must approve, and there are only %q", n, who)
		}
		for i, name := range who {
			if name != Person(name) || i > 0 && who[i-1] >= name {
				t.Fatalf("%q is not in the form that votes are compared in", who)
			}
		}
		n2, who2, d2, err := CheckApprovers(n, who, d)
		if err != nil || n2 != n || !slices.Equal(who2, who) || d2 != d {
			t.Fatalf("checked again: %d %q %s, %v", n2, who2, d2, err)
		}
	})
}

// A request that was checked is the same after a way through the stream, and one
// about an effect can always be decided by whoever may resolve effects.
func TestApprovalRequestProperty(t *testing.T) {
	t.Parallel()
	text := rapid.SampledFrom([]string{"", "refund", "a\x00b", "\xff", "tab\t", strings.Repeat("n", 255), strings.Repeat("n", 256)})
	rapid.Check(t, func(t *rapid.T) {
		r := &ApprovalRequest{
			Kind: rapid.SampledFrom([]string{"", "handler", "effect", "guard"}).Draw(t, "kind"), Name: text.Draw(t, "name"), Prompt: text.Draw(t, "prompt"),
			Required: rapid.IntRange(0, 3).Draw(t, "required"), Approvers: rapid.SliceOfN(rapid.SampledFrom([]string{"ada", "Bob"}), 0, 2).Draw(t, "approvers"),
			TimeoutMS: rapid.SampledFrom([]int64{-1, 0, 999, 1000, MaxApprovalTimeout.Milliseconds(), MaxApprovalTimeout.Milliseconds() + 1}).Draw(t, "timeout"),
		}
		if rapid.Bool().Draw(t, "about an effect") {
			r.Effect = &EffectRef{Scope: text.Draw(t, "scope"), Key: text.Draw(t, "key"), Name: text.Draw(t, "effect"), KeyKind: rapid.SampledFrom([]string{"", KeyGiven, KeyOfTask, "x"}).Draw(t, "key kind")}
		}
		if err := r.Check(); err != nil {
			if e, ok := err.(*Error); !ok || e.Code != CodeInputInvalid || e.Field == "" {
				t.Fatalf("error %#v", err)
			}
			return
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseApproval(b)
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%s: %+v, %v, want %+v", b, got, err, r)
		}
		if r.Kind == ApprovalEffect && (r.Required != 1 || !slices.Equal(r.Approvers, []string{"role:approver", "role:operator"})) {
			t.Fatalf("about an effect: %+v", r)
		}
	})
}

func TestParseApprovalRefuses(t *testing.T) {
	t.Parallel()
	for in, field := range map[string]string{
		"": "approval", "[]": "approval", `{"name":7}`: "approval", `{"name":""}`: "approval.name",
		`{"name":"n","prompt":"` + strings.Repeat("p", 64<<10) + `"}`: "approval",
		`{"name":"n","effect":{"scope":"s","key":"k","name":"n"}}`:    "approval.effect", `{"name":"n","kind":"effect"}`: "approval.effect",
		`{"name":"n","required":2,"approvers":["ada"]}`: "approvers",
	} {
		_, err := ParseApproval([]byte(in))
		if e, ok := err.(*Error); !ok || e.Code != CodeInputInvalid || e.Field != field {
			t.Errorf("%.60s: %v, want field %s", in, err, field)
		}
	}
}
