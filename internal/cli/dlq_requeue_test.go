package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// none fails if a command changed anything.
func none(t *testing.T, what string, f *fakeServer) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if n := string(c.ProtoReflect().Descriptor().Name()); !strings.HasPrefix(n, "Get") && !strings.HasPrefix(n, "List") {
			t.Errorf("%s: called %s", what, n)
		}
	}
}

func TestRequeueByID(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(2500)...)
	one, two, three := letter(1).DlqId, letter(2).DlqId, letter(3).DlqId
	r := script(t, f, "requeue", one, two, one, "--reason", "fixed", "--original")
	want(t, "two", r, ExitOK)
	says(t, r, "DLQ ID", one+"  new-task-1\n", two+"  new-task-2\n")
	q := asked[*penstockv1.RequeueDeadLettersRequest](f)[0]
	if len(q.DlqIds) != 2 || q.Again || !q.Original || q.Reason != "fixed" {
		t.Errorf("asked for %v", q)
	}

	r = script(t, f, "requeue", one, three)
	want(t, "one of two", r, ExitFailed, one+": TASK_INVALID_TRANSITION", "refused: 1 of 2")
	says(t, r, three+"  new-task-3")
	r = script(t, f, "requeue", one, two)
	want(t, "all in conflict", r, ExitConflict, "refused: 2 of 2")
	says(t, r)
	if r.out != "" {
		t.Errorf("an empty table: %q", r.out)
	}
	want(t, "unknown", script(t, f, "requeue", "0199eeee-0000-7000-8000-000000000000"), ExitNotFound, "no dead letter")
	want(t, "for different reasons", script(t, f, "requeue", one, "0199eeee-0000-7000-8000-000000000000"), ExitFailed, "refused: 2 of 2")
	want(t, "again", script(t, f, "requeue", one, "--again"), ExitOK)

	var ids []string
	for i := 4; i <= 2500; i++ {
		ids = append(ids, letter(i).DlqId)
	}
	f.calls = nil
	r = operator{stdin: strings.Join(ids, "\n")}.run(t, f, "requeue", "-", "-o", "jsonl")
	want(t, "from standard input", r, ExitOK)
	if n := strings.Count(r.out, "\n"); n != len(ids) || decode(t, r.out[:strings.Index(r.out, "\n")])["task_id"] != "new-task-4" {
		t.Errorf("%d lines: %.200s", n, r.out)
	}
	if calls := asked[*penstockv1.RequeueDeadLettersRequest](f); len(calls) != 3 || len(calls[0].DlqIds) != 1000 || len(calls[2].DlqIds) != 497 {
		t.Errorf("%d calls", len(calls))
	}
	r = script(t, f, "requeue", one, "-o", "json")
	want(t, "refused, as JSON", r, ExitConflict)
	res := decode(t, r.out)["results"].([]any)
	if e := res[0].(map[string]any)["error"].(map[string]any); len(res) != 1 || e["code"] != "TASK_INVALID_TRANSITION" {
		t.Errorf("results: %s", r.out)
	}
}

func TestRequeueBrokenOff(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(1500)...)
	n := 0
	f.before = func(m proto.Message) error {
		if _, ok := m.(*penstockv1.RequeueDeadLettersRequest); ok {
			if n++; n == 2 {
				return rpc.Unavailable(nil)
			}
		}
		return nil
	}
	var ids []string
	for _, d := range f.letters {
		ids = append(ids, d.DlqId)
	}
	r := operator{stdin: strings.Join(ids, " ")}.run(t, f, "requeue", "-")
	want(t, "broken off", r, ExitFailed, "1000 of 1500 were answered; repeating the command is safe")
	says(t, r, "new-task-1000")
	n = 0
	want(t, "again", operator{stdin: strings.Join(ids, " ")}.run(t, f, "requeue", "-", "--again"), ExitFailed, "1000 of 1500", "requeue twice")
}

func TestRequeueUsage(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	id := letter(1).DlqId
	for _, c := range []struct{ line, text string }{
		{"requeue", "--all"},
		{"requeue --type x", "--yes"},
		{"requeue --all", "--yes"},
		{"requeue --all --type x --yes", "exclude"},
		{"requeue --tenant acme --all-tenants --yes", "exclude"},
		{"requeue --all-tenants --yes", "--all"},
		{"requeue --batch b --all-tenants", "--batch"},
		{"requeue " + id + " --all-tenants", "not both"},
		{"requeue --type= --yes", "--type is empty"},
		{"requeue " + id + " --type x", "not both"},
		{"requeue " + id + " --all", "not both"},
		{"requeue --all --yes --rate 0", "--rate"},
		{"requeue --all --yes --rate -1", "--rate"},
		{"requeue -", "no dead letter"},
		{"requeue --batch=", "--batch"},
		{"requeue --batch b --again", "--batch"},
		{"requeue --batch b --type x", "--batch"},
		{"requeue --batch b " + id, "--batch"},
		{"requeue --frobnicate", "frobnicate"},
	} {
		want(t, c.line, script(t, f, strings.Fields(c.line)...), ExitUsage, c.text)
	}
	var many []string
	for i := range maxBatchIDs + 1 {
		many = append(many, fmt.Sprint(i))
	}
	want(t, "too many", operator{stdin: strings.Join(many, " ")}.run(t, f, "requeue", "-", "--rate", "5"), ExitUsage, "10000")
	none(t, "usage errors", f)
}

func TestRequeueByFilter(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(5)...)
	r := script(t, f, "requeue", "--type", "email.send", "--yes", "--rate", "50", "--again", "--reason", "fixed")
	want(t, "with --yes", r, ExitOK)
	says(t, r, "finished: 5 requeued of 5 in 3.21s\n")
	q := asked[*penstockv1.CreateDeadLetterBatchRequest](f)[0]
	if q.DryRun || q.Filter.Type != "email.send" || q.Rate != 50 || !q.Again || q.Reason != "fixed" || len(q.BatchId) != 36 || q.BatchId[14] != '7' {
		t.Errorf("asked for %v", q)
	}
	if r.err != "" {
		t.Errorf("there is no terminal, but: %q", r.err)
	}
	r = script(t, f, "requeue", "--all", "--yes", "-o", "json")
	if m := decode(t, r.out); r.code != 0 || m["status"] != "finished" || m["done"] != 5.0 {
		t.Errorf("as JSON: %+v", r)
	}
	for _, c := range []struct{ line, tenant string }{
		{"requeue --all --yes", "default"}, {"requeue --type x --yes", "default"}, {"discard propose --type x --reason y", "default"},
		{"requeue --tenant acme --yes", "acme"}, {"requeue --all --all-tenants --yes", ""}, {"discard propose --type x --all-tenants --reason y", ""},
	} {
		f.calls = nil
		want(t, c.line, script(t, f, strings.Fields(c.line)...), ExitOK)
		var filter *penstockv1.DeadLetterFilter
		for _, q := range asked[*penstockv1.CreateDeadLetterBatchRequest](f) {
			filter = q.Filter
		}
		for _, q := range asked[*penstockv1.ProposeDiscardRequest](f) {
			filter = q.Filter
		}
		if filter == nil || filter.Tenant != c.tenant {
			t.Errorf("%s: filter %v, want tenant %q", c.line, filter, c.tenant)
		}
	}
	r = script(t, f, "requeue", letter(1).DlqId, "--rate", "5")
	want(t, "ids at a rate", r, ExitOK)
	says(t, r, "1 requeued of 1")
	f.skip = 2
	r = script(t, f, "requeue", "--all", "--yes")
	want(t, "some skipped", r, ExitFailed, "2 of 5 dead letters skipped", "batch show", "--items --item-status skipped", "--server "+f.url)
	says(t, r, "3 requeued, 2 skipped of 5")
	f.held = true
	r = script(t, f, "requeue", "--all", "--yes", "--detach")
	want(t, "detached", r, ExitOK, "dlq-replay batch watch")
	says(t, r, "is running: 5 dead letters")
}

func TestRequeueAsks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer  string
		n       int
		exit    int
		control string
		text    string
	}{
		{"y\n", 3, ExitOK, "start", "Requeue 3 dead letters? [y/N]"},
		{"YES\n", 3, ExitOK, "start", "4f2a90c1d3e8"},
		{"n\n", 3, ExitFailed, "cancel", "nothing was requeued"},
		{"\n", 3, ExitFailed, "cancel", "nothing was requeued"},
		{"", 3, ExitFailed, "cancel", "nothing was requeued"},
		{"y\n", 1, ExitOK, "start", "Requeue 1 dead letter? [y/N]"},
		{"", 1, ExitFailed, "cancel", "nothing was requeued"},
	} {
		f := newFake(t, letters(c.n)...)
		r := operator{con: console{interactive: true}, stdin: c.answer}.run(t, f, "requeue", "--code", "X")
		want(t, fmt.Sprintf("%q", c.answer), r, c.exit, c.text)
		q := asked[*penstockv1.ControlDeadLetterBatchRequest](f)
		if len(q) != 1 || q[0].Action != c.control || !asked[*penstockv1.CreateDeadLetterBatchRequest](f)[0].DryRun {
			t.Errorf("%q: %v", c.answer, q)
		}
		if !strings.Contains(r.err, "[y/N]") {
			t.Errorf("%d match, no question: %s", c.n, r.err)
		}
	}
	f := newFake(t, letters(3)...)
	r := operator{con: console{interactive: true}}.run(t, f, "requeue", "--all", "--yes")
	if want(t, "--yes", r, ExitOK); strings.Contains(r.err, "[y/N]") {
		t.Errorf("asked in spite of --yes: %s", r.err)
	}
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(4)...)
	r := script(t, f, "requeue", "--type", "email.send", "--newer-than", "1d", "--dry-run")
	want(t, "dry run", r, ExitOK)
	q := asked[*penstockv1.CreateDeadLetterBatchRequest](f)[0]
	start := "dlq-replay requeue --batch " + q.BatchId + " --server " + f.url
	says(t, r, "COUNT  TYPE", "COUNT  FINGERPRINT", "2 settled otherwise", "7 more match the filter", "2026-02-26 12:00:00", start, fakeDigest)
	r = script(t, f, "requeue", letter(1).DlqId, "--dry-run", "-o", "json")
	if m := decode(t, r.out); r.code != 0 || m["status"] != "draft" || m["details"].(map[string]any)["new_matches"] != 7.0 {
		t.Errorf("as JSON: %+v", r)
	}
	if len(asked[*penstockv1.ControlDeadLetterBatchRequest](f)) != 0 {
		t.Error("a dry run was started")
	}

	r = operator{con: console{interactive: true}, stdin: "n\n"}.run(t, f, "requeue", "--batch", q.BatchId)
	want(t, "declined", r, ExitFailed, "2 settled otherwise", "nothing was requeued")
	if f.batches[q.BatchId].Status != "draft" {
		t.Error("a declined draft is gone")
	}
	r = script(t, f, "requeue", "--batch", q.BatchId)
	want(t, "started", r, ExitOK, "4 dead letters; since it was frozen: 2 settled otherwise")
	says(t, r, "finished: 4 requeued of 4")
	want(t, "started twice", script(t, f, "requeue", "--batch", q.BatchId), ExitConflict, "finished")
	want(t, "unknown", script(t, f, "requeue", "--batch", "0199eeee-0000-7000-8000-000000000000"), ExitNotFound)
}

func TestCtrlC(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	f.held = true
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan ran, 1)
	go func() { done <- operator{ctx: ctx}.run(t, f, "requeue", "--all", "--yes") }()
	testkit.Eventually(t, "the batch is followed", func() (bool, string) {
		return len(asked[*penstockv1.GetDeadLetterBatchRequest](f)) > 2, ""
	})
	stop()
	want(t, "while following", <-done, ExitInterrupted, "detached: batch", "goes on", "dlq-replay batch watch ")

	ctx, stop = context.WithCancel(t.Context())
	nobody := silence{make(chan struct{}), t.Context().Done()}
	go func() {
		done <- operator{ctx: ctx, con: console{interactive: true, in: bufio.NewReader(nobody)}}.run(t, f, "requeue", "--all")
	}()
	<-nobody.asked
	stop()
	want(t, "at the question", <-done, ExitInterrupted, "nothing was requeued")
	if q := asked[*penstockv1.ControlDeadLetterBatchRequest](f); len(q) != 1 || q[0].Action != "cancel" {
		t.Errorf("the draft was left behind: %v", q)
	}
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	looks := 0
	f.before = func(m proto.Message) error {
		if _, ok := m.(*penstockv1.GetDeadLetterBatchRequest); ok {
			if looks++; looks%2 == 1 {
				return rpc.Unavailable(nil)
			}
		}
		return nil
	}
	r := script(t, f, "requeue", "--all", "--yes")
	want(t, "an orchestrator restarts", r, ExitOK)
	says(t, r, "3 requeued of 3")
	f.before = func(proto.Message) error { return rpc.Unavailable(errors.New("postgres is away")) }
	want(t, "no answer", script(t, f, "requeue", "--all", "--yes"), ExitFailed, "is not known", "dlq-replay batch show ")
	f.before = func(proto.Message) error {
		return protocol.Errorf(protocol.CodeNotFound, "filter", "no open dead letter matches the filter")
	}
	r = script(t, f, "requeue", "--all", "--yes")
	if want(t, "nothing matches", r, ExitNotFound, "no open dead letter", "of tenant default", "--all-tenants"); strings.Contains(r.err, "not known") {
		t.Errorf("a refusal is an answer: %s", r.err)
	}
}
