package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func TestDeadLetterList(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(250)...)
	r := script(t, f, "list", "--type", "email.send", "--code", "X", "--tenant", "acme", "--queue", "q", "--status", "open", "--fingerprint", "4f", "--since", "2026-01-01T00:00:00Z", "--until", "2026-02-01T00:00:00Z")
	want(t, "list", r, ExitOK, "--page-token 100")
	says(t, r, "DLQ ID", "CODE                  CAUSE", "TASK_RETRY_EXHAUSTED  TASK_EXECUTION_FAILED  ", letter(100).DlqId, "TASK_EXECUTION_FAILED: no  [31mroute to host")
	q := asked[*penstockv1.ListDeadLettersRequest](f)[0]
	if q.Type != "email.send" || q.ErrorCode != "X" || q.Tenant != "acme" || q.Queue != "q" || q.Status != "open" || q.Fingerprint != "4f" ||
		q.FailedAfter.AsTime().Year() != 2026 || q.FailedBefore.AsTime().Month() != time.February || q.PageSize != 100 {
		t.Errorf("asked for %v", q)
	}

	r = script(t, f, "list", "--limit", "0", "-o", "jsonl")
	want(t, "jsonl", r, ExitOK)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if len(lines) != 250 || decode(t, lines[249])["dlq_id"] != letter(250).DlqId {
		t.Errorf("%d lines, last %s", len(lines), lines[len(lines)-1])
	}
	for _, c := range []struct {
		limit, token, next string
		n                  int
	}{{"150", "", "150", 150}, {"0", "200", "", 50}, {"200", "50", "", 200}} {
		r = script(t, f, "list", "--limit", c.limit, "--page-token", c.token, "-o", "json")
		want(t, "json", r, ExitOK)
		m := decode(t, r.out)
		if n := len(m["dead_letters"].([]any)); n != c.n || m["next_page_token"] != c.next {
			t.Errorf("limit %s from %q: %d items, next %v", c.limit, c.token, n, m["next_page_token"])
		}
	}
	if p := decode(t, lines[0])["payload"].(map[string]any); p["n"] != 1.0 {
		t.Errorf("payload %v", p)
	}

	f.letters = nil
	r = script(t, f, "list", "-o", "json")
	if want(t, "empty", r, ExitOK); r.out != "{\"dead_letters\":[],\"next_page_token\":\"\"}\n" {
		t.Errorf("empty: %q", r.out)
	}
	if r = script(t, f, "list", "-o", "jsonl"); r.out != "" || r.code != 0 {
		t.Errorf("empty: %+v", r)
	}
	for _, bad := range [][]string{
		{"--type", ""}, {"--tenant="}, {"--older-than", "yesterday"}, {"--older-than", "-1h"}, {"--older-than", ""}, {"--since", "yesterday"}, {"--limit", "-1"},
		{"--older-than", "1h", "--until", "2026-01-01T00:00:00Z"}, {"--newer-than", "1h", "--since", "2026-01-01T00:00:00Z"},
		{"--group-by", "error"}, {"--group-by", "type", "--page-token", "x"}, {"--group-by", "type", "--limit", "1001"}, {"-o", "yaml"}, {"x"},
	} {
		want(t, fmt.Sprint(bad), script(t, f, append([]string{"list"}, bad...)...), ExitUsage)
	}
}

func TestAges(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]time.Duration{
		"90m": 90 * time.Minute, "7d": 168 * time.Hour, "1w2d3h": (9*24 + 3) * time.Hour, "0s": 0, "1d1.5h": 25*time.Hour + 30*time.Minute,
	} {
		var a age
		if err := a.Set(s); err != nil || a.d != want {
			t.Errorf("%s: %v, %v", s, a.d, err)
		}
	}
	f := newFake(t, letters(1)...)
	before := time.Now()
	want(t, "list", script(t, f, "list", "--older-than", "1d", "--newer-than", "2w"), ExitOK)
	q := asked[*penstockv1.ListDeadLettersRequest](f)[0]
	if d := before.Sub(q.FailedBefore.AsTime()); d > 24*time.Hour || d < 23*time.Hour {
		t.Errorf("older than 1d: %s", d)
	}
	if d := before.Sub(q.FailedAfter.AsTime()); d > 336*time.Hour || d < 335*time.Hour {
		t.Errorf("newer than 2w: %s", d)
	}
}

func TestDeadLetterGroups(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	r := script(t, f, "list", "--group-by", "fingerprint", "--type", "email.send", "--limit", "0")
	want(t, "groups", r, ExitOK)
	says(t, r, "COUNT  FINGERPRINT", "3      4f2a90c1d3e8", letter(1).DlqId, "\n1      -  ")
	want(t, "by code", script(t, f, "list", "--group-by", "code"), ExitOK)
	q := asked[*penstockv1.GroupDeadLettersRequest](f)
	if q[0].GroupBy != "fingerprint" || q[0].Limit != 1000 || q[0].Type != "email.send" || q[1].GroupBy != "error_code" || q[1].Limit != 100 {
		t.Errorf("asked for %v", q)
	}
	r = script(t, f, "list", "--group-by", "type", "-o", "json")
	if g := decode(t, r.out)["groups"].([]any); len(g) != 2 || g[0].(map[string]any)["count"] != 3.0 {
		t.Errorf("json: %s", r.out)
	}
	r = script(t, f, "list", "--group-by", "tenant", "-o", "jsonl")
	if lines := strings.Split(strings.TrimSpace(r.out), "\n"); len(lines) != 2 || decode(t, lines[1])["count"] != 1.0 {
		t.Errorf("jsonl: %s", r.out)
	}
}

func TestDeadLetterShow(t *testing.T) {
	t.Parallel()
	d := letter(1)
	d.Status, d.RequeueCount, d.Revision, d.EditedPayload = "requeued", 2, 1, []byte(`{"n":2}`)
	d.Errors = []*penstockv1.AttemptError{
		{Attempt: 1, At: timestamppb.New(fakeTime), ErrorCode: "TASK_TIMEOUT", Error: "slow\x1b[2J", WorkerId: "w1", BackoffDelayMs: wrapperspb.Int64(1250)},
		{Attempt: 2, At: timestamppb.New(fakeTime), ErrorCode: "TASK_EXECUTION_FAILED", Error: "gone"},
	}
	d.Requeues = []*penstockv1.Requeue{{N: 1, TaskId: "new-0"}, {N: 2, TaskId: "new-1", Revision: 1, Principal: "bob"}}
	d.Edits = []*penstockv1.Edit{{Revision: 1, Payload: d.EditedPayload, Diff: []byte(`[{"op":"replace","path":"","from":1,"to":2},{"op":"more","path":"","to":9}]`), Principal: "bob", Reason: "typo"}}
	entry := &penstockv1.DeadLetter{DlqId: "0199ffff-0000-7000-8000-000000000000", Stream: "stream:task", MessageId: "1-0", Raw: []byte(`{"tool_name":"x"}`), Status: "open", FailedAt: timestamppb.New(fakeTime)}
	f := newFake(t, d, entry)

	r := script(t, f, "show", d.DlqId)
	want(t, "show", r, ExitOK)
	says(t, r, "requeued 2×, edited", "  \"z\": 1.50,\n  \"n\": 1,\n", "edited payload (revision 1 by bob", ": typo)", "~ the whole payload: 1 → 2", "… and 9 more changes",
		"slow [2J", "1.25s", "2  new-1    succeeded", "revision 1", "1  new-0    -", "running → retrying", "next in 1.25s")
	r = script(t, f, "show", d.DlqId, "-o", "json")
	want(t, "show as JSON", r, ExitOK)
	m := decode(t, r.out)
	if m["dlq_id"] != d.DlqId || m["payload"].(map[string]any)["z"] != 1.5 || len(m["timeline"].([]any)) != 2 || len(m["errors"].([]any)) != 2 {
		t.Errorf("show: %s", r.out)
	}
	if tasks := m["requeued_tasks"].([]any); len(tasks) != 1 || tasks[0].(map[string]any)["state"] != "succeeded" {
		t.Errorf("requeued tasks: %v", tasks)
	}
	if !strings.Contains(r.out, `"z": 1.50`) {
		t.Errorf("the number was changed: %s", r.out)
	}
	r = script(t, f, "show", entry.DlqId)
	want(t, "an entry that was no task", r, ExitOK)
	says(t, r, "stream:task", `"tool_name": "x"`)
	if strings.Contains(r.out, "payload") {
		t.Errorf("show: %s", r.out)
	}
	r = script(t, f, "show", entry.DlqId, "-o", "jsonl")
	if m := decode(t, r.out); len(m["timeline"].([]any)) != 0 || m["raw"].(map[string]any)["tool_name"] != "x" || strings.Count(r.out, "\n") != 1 {
		t.Errorf("show: %s", r.out)
	}
	want(t, "nobody", script(t, f, "show", "0199eeee-0000-7000-8000-000000000000"), ExitNotFound, "TASK_NOT_FOUND")
	want(t, "no id", script(t, f, "show"), ExitUsage)
}

func TestTerminalSafety(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"\x1b[31m", "\u009b31m", "a\rb", "\u202eevil", "\u2066x", "\u2028", "\x07", "\x7f"} {
		if got := line(s, 100); strings.ContainsFunc(got, unsafeRune) {
			t.Errorf("line(%q) = %q", s, got)
		}
		if got := block("a\n" + s); strings.ContainsFunc(strings.ReplaceAll(got, "\n", ""), unsafeRune) || !strings.HasPrefix(got, "a\n") {
			t.Errorf("block(%q) = %q", s, got)
		}
	}
	if got := prettyJSON([]byte(` {"b":1.0,"a":[1e2]} `)); got != "{\n  \"b\": 1.0,\n  \"a\": [\n    1e2\n  ]\n}" {
		t.Errorf("pretty: %s", got)
	}
	if got := shellWord("it's"); got != `'it'\''s'` {
		t.Errorf("shellWord: %s", got)
	}
}
