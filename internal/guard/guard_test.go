package guard_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/protocol"
)

func compile(t *testing.T, expression string) *guard.Compiled {
	t.Helper()
	c, err := (&guard.Rule{Name: "r", Expression: expression, Enabled: true, Revision: 1}).Check()
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return c
}

func TestExpressions(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		expression, payload string
		stops               bool
		problem             string
	}{
		{`task.type == "payment.refund" && task.payload.amount > 1000`, `{"amount": 1001}`, true, ""},
		{`task.type == "payment.refund" && task.payload.amount > 1000`, `{"amount": 1000}`, false, ""},
		{`task.payload.amount > 1000`, `{"amount": 1000.5}`, true, ""},
		{`task.payload.amount > 1000`, `{"amount": 1e6}`, true, ""},
		{`task.payload.amount > 1000`, `{"amount": 9223372036854775808}`, true, ""},
		{`task.payload.amount > 1000`, `{"amount": 123456789012345678901234567890}`, true, ""},
		{`task.payload.amount > 1000`, `{"amount": -5}`, false, ""},
		{`task.payload.amount > 1000.5`, `{"amount": 1001}`, true, ""},
		{`task.payload.amount > 1000.5`, `{"amount": 1000}`, false, ""},
		{`task.payload.amount == 1000`, `{"amount": 1000.0}`, true, ""},
		{`task.payload.amount == 9007199254740993`, `{"amount": 9007199254740993}`, true, ""},
		{`task.payload.amount == 9007199254740992`, `{"amount": 9007199254740993}`, false, ""},
		{`task.payload.amount + 1 > 1000`, `{"amount": 1000}`, true, ""},
		{`task.payload.amount > 1000`, `{}`, true, "no such key"},
		{`task.payload.amount > 1000`, `{"amount": "5000"}`, true, "another type than the expression needs"},
		{`task.payload.amount > 1000`, `null`, true, "no such"},
		{`task.payload.amount > 1000`, `{"amount": 1e999}`, true, "out of range"},
		{`task.payload.amount > 1000`, `{"amount": 1, "amount": 5000}`, true, "twice"},
		{`task.payload.amount > 1000`, `{"amount": 1, "Amount": 5000}`, true, "twice"},
		{`task.payload.kind == "x"`, `{"ſ": 1, "S": 2, "kind": "y"}`, true, "twice"},
		{`has(task.payload.amount) && task.payload.amount > 1000`, `{}`, false, ""},
		{`task.payload.to.exists(x, x.endsWith("@example.com"))`, `{"to": ["a@example.org", "b@example.com"]}`, true, ""},
		{`task.payload.a + "b" == "ab" && task.payload.l + [2] + [3] == [1, 2, 3] && task.payload.l.map(x, x + 1) + [1] == [2, 1]`, `{"a": "a", "l": [1]}`, true, ""},
		{`task.scheduled_at > timestamp("2029-01-01T00:00:00Z")`, `{}`, true, ""},
		{`task.max_retries == 3 && task.timeout_ms == 5000 && task.tenant == "acme" && task.queue == "default"`, `{}`, true, ""},
		{`task.requested_by == "alice" && task.task_id == "t-1" && task.idempotency_key == "k" && task.delay_ms == 7 && task.schedule_type == "at"`, `1`, true, ""},
		{`[1,2,3,4,5,6,7,8,9,10].all(a, [1,2,3,4,5,6,7,8,9,10].all(b, [1,2,3,4,5,6,7,8,9,10].all(c, [1,2,3,4,5,6,7,8,9,10].all(d, [1,2,3,4,5,6,7,8,9,10].all(e, [1,2,3,4,5,6,7,8,9,10].all(f, a+b+c+d+e+f > 0))))))`,
			`{}`, true, "too much work"},
	} {
		stops, problem := compile(t, c.expression).Test(t.Context(), &guard.Task{
			Type: "payment.refund", Queue: "default", Tenant: "acme", TaskID: "t-1", Payload: []byte(c.payload), ScheduleType: "at", ScheduledAt: at, DelayMS: 7,
			MaxRetries: 3, TimeoutMS: 5000, IdempotencyKey: "k", RequestedBy: "alice",
		})
		if stops != c.stops || (problem == nil) != (c.problem == "") || problem != nil && !strings.Contains(problem.Error(), c.problem) {
			t.Errorf("%s for %s: stops %v, problem %v; want %v, %q", c.expression, c.payload, stops, problem, c.stops, c.problem)
		}
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		``:                                "empty",
		`   `:                             "empty",
		`task.type = "x"`:                 "not usable",
		`task.typ == "x"`:                 "not usable",
		`tsk.type == "x"`:                 "not usable",
		`task.type > 5`:                   "not usable",
		`task.payload.amount`:             "want bool",
		`"true"`:                          "want bool",
		`1 + 1`:                           "want bool",
		`task.type.matches("(")`:          "",
		strings.Repeat("(", 200) + "true": "",
		`task.type == "` + strings.Repeat("x", guard.MaxExpression) + `"`: "bytes",
		"task.type == \"\x00": "not usable",
	} {
		_, err := (&guard.Rule{Name: "r", Expression: expression}).Check()
		if expression == `task.type.matches("(")` && err == nil { // an error of each task, if not of the rule
			continue
		}
		if protocol.CodeOf(err) != protocol.CodeInputInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s about %q", expression, err, protocol.CodeInputInvalid, want)
		}
	}
	for field, r := range map[string]guard.Rule{
		"name":        {Name: "a b"},
		"required":    {Name: "r", Required: 3},
		"timeout_ms":  {Name: "r", Timeout: time.Millisecond},
		"approvers":   {Name: "r", Approvers: []string{"a b"}},
		"description": {Name: "r", Description: strings.Repeat("x", 1001)},
	} {
		r.Expression = "true"
		if _, err := r.Check(); protocol.CodeOf(err) != protocol.CodeInputInvalid || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	one := guard.Rule{Name: "r", Expression: "true", Required: 2, Approvers: []string{"Bob", "bob"}}
	if _, err := one.Check(); err == nil {
		t.Error("two approvals of the only person who may approve: want an error")
	}
}

func TestTheErrorOfAnExpressionNamesThePlace(t *testing.T) {
	t.Parallel()
	_, err := (&guard.Rule{Name: "r", Expression: `task.typ == "x"`}).Check()
	if err == nil || !strings.Contains(err.Error(), "1:") || !strings.Contains(err.Error(), "typ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

func TestARuleThatCannotBeEvaluatedStopsTheTask(t *testing.T) {
	t.Parallel()
	set := guard.NewSet(7, []*guard.Rule{
		{Name: "off", Expression: "true"},
		{Name: "broken", Expression: "task.no_such_field == 1", Enabled: true, Revision: 2},
		{Name: "big", Expression: "task.payload.amount > 10", Enabled: true, Revision: 3},
		{Name: "other", Expression: `task.type == "z"`, Enabled: true, Revision: 1},
	})
	var got []string
	for _, f := range set.Judge(&guard.Task{Type: "a", Queue: "default", Payload: []byte(`{}`)}) {
		got = append(got, fmt.Sprintf("%s %v %d", f.Rule.Name, f.Error != "", len(f.Digest)))
	}
	if strings.Join(got, ", ") != "broken true 64, big true 64" {
		t.Errorf("findings %v", got)
	}
	if f := set.Judge(&guard.Task{Type: "a", Queue: protocol.QueueInternal, Payload: []byte(`{}`)}); f != nil {
		t.Errorf("a job that is moved by hand was judged: %v", f)
	}
	if !guard.NewSet(1, []*guard.Rule{{Name: "off", Expression: "true"}}).Empty() {
		t.Error("a disabled rule counts")
	}
}

// Equal tasks have equal digests, whatever the form of their payload's JSON, and
// any change of what the digest binds changes it.
func TestDigestProperties(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 678_000, time.UTC)
	rapid.Check(t, func(t *rapid.T) {
		a := guard.Task{
			Type: rapid.StringMatching(`[a-z.]{1,8}`).Draw(t, "type"), ScheduleType: rapid.SampledFrom([]string{"now", "at", "delay"}).Draw(t, "schedule"),
			Payload: []byte(fmt.Sprintf(`{"a": %d, "b": [%q, null]}`, rapid.Int().Draw(t, "n"), rapid.StringMatching(`[a-z"<é]{0,6}`).Draw(t, "s"))),
			DelayMS: rapid.Int64Range(0, 1e9).Draw(t, "delay"), StartAt: at.Add(time.Duration(rapid.Int64Range(0, 1e12).Draw(t, "start")) * time.Microsecond),
		}
		name, revision := rapid.StringMatching(`[a-z]{1,8}`).Draw(t, "name"), rapid.Int64Range(1, 1e6).Draw(t, "revision")
		digest := a.Digest(protocol.ApprovalGuard, name, revision)
		b := a
		b.Payload = []byte(" " + strings.Replace(string(a.Payload), "{", "{ \n", 1))
		b.StartAt = a.StartAt.In(time.FixedZone("x", 3600)).Add(999) // below a microsecond
		b.RequestedBy, b.MaxRetries = "x", 9
		if b.Digest(protocol.ApprovalGuard, name, revision) != digest {
			t.Fatal("the same task, written in another way, has another digest")
		}
		seen := map[string]string{digest: "nothing"}
		changes := map[string]func(c *guard.Task) (string, int64){
			"type":     func(c *guard.Task) (string, int64) { c.Type += "x"; return name, revision },
			"payload":  func(c *guard.Task) (string, int64) { c.Payload = []byte(`{"a": "1"}`); return name, revision },
			"schedule": func(c *guard.Task) (string, int64) { c.ScheduleType += "x"; return name, revision },
			"at":       func(c *guard.Task) (string, int64) { c.ScheduledAt = at; return name, revision },
			"delay":    func(c *guard.Task) (string, int64) { c.DelayMS++; return name, revision },
			"start": func(c *guard.Task) (string, int64) {
				c.StartAt = c.StartAt.Add(time.Microsecond)
				return name, revision
			},
			"rule":     func(*guard.Task) (string, int64) { return name + "x", revision },
			"revision": func(*guard.Task) (string, int64) { return name, revision + 1 },
		}
		for what, change := range changes {
			c := a
			n, r := change(&c)
			d := c.Digest(protocol.ApprovalGuard, n, r)
			if before, ok := seen[d]; ok {
				t.Fatalf("changing %s gives the digest of changing %s", what, before)
			}
			seen[d] = what
		}
		if a.Digest(protocol.ApprovalHandler, name, revision) == digest {
			t.Fatal("a handler's request has the digest of a rule's")
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5,{"b":null}]}`, `[`, `{"a":1,"A":2}`, `1e999`, `"x" 1`, `{"a"`, `-0`, strings.Repeat(`[{"a":`, 600)} {
		f.Add([]byte(s))
	}
	c, err := (&guard.Rule{Name: "r", Expression: `task.payload.amount > 1000`}).Check()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := guard.Decode(b)
		if err == nil && !json.Valid(b) {
			t.Errorf("%q is no JSON, and was read", b)
		}
		stops, problem := c.Test(t.Context(), &guard.Task{Payload: b})
		if (err != nil || problem != nil) && !stops {
			t.Errorf("%q: can't be judged and passes", b)
		}
	})
}
