package cli

import (
	"errors"
	"io"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// silence is a terminal at which nobody types.
type silence struct {
	asked chan struct{} // closed when there was a question
	over  <-chan struct{}
}

func (s silence) Read([]byte) (int, error) {
	close(s.asked)
	<-s.over
	return 0, io.EOF
}

func TestDiscardPropose(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	for _, line := range []string{"discard propose --reason x", "discard propose --type= --reason x", "discard propose --type x", "discard propose a", "discard propose a --reason= ", "discard", "discard prop"} {
		r := script(t, f, strings.Fields(line)...)
		if line == "discard" { // alone it is a question for help
			want(t, line, r, ExitOK)
			continue
		}
		want(t, line, r, ExitUsage)
	}
	none(t, "usage errors", f)
	r := script(t, f, "discard", "propose", "--older-than", "30d", "--reason", "test data")
	want(t, "propose", r, ExitOK)
	q := asked[*penstockv1.ProposeDiscardRequest](f)[0]
	says(t, r, fakeDigest, "alice", "test data", "2026-02-26 12:00:00", "COUNT  FINGERPRINT",
		"dlq-replay discard confirm "+q.BatchId+" --digest "+fakeDigest+" --server "+f.url)
	if q.Reason != "test data" || q.Filter.FailedBefore == nil || len(q.DlqIds) != 0 {
		t.Errorf("asked for %v", q)
	}
	r = script(t, f, "discard", "propose", letter(1).DlqId, letter(2).DlqId, "--reason", "r", "-o", "json")
	if m := decode(t, r.out); r.code != 0 || m["total"] != 2.0 || m["digest"] != fakeDigest || m["status"] != "proposed" {
		t.Errorf("as JSON: %+v", r)
	}
	f.before = func(proto.Message) error {
		return connect.NewError(connect.CodeUnauthenticated, errors.New("send a token"))
	}
	want(t, "anonymous", script(t, f, "discard", "propose", letter(1).DlqId, "--reason", "r"), ExitDenied, "send a token")
}

func TestDiscardConfirm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what, digest, answer string
		tty                  bool
		exit                 int
		confirmed            bool
		text                 string
	}{
		{"no terminal, no digest", "", "y\n", false, ExitUsage, false, "--digest"},
		{"its digest", fakeDigest, "", false, ExitOK, true, ""},
		{"its digest at a terminal", fakeDigest, "", true, ExitOK, true, ""},
		{"another digest", strings.Repeat("0", 64), "", false, ExitConflict, false, "not the digest"},
		{"another digest at a terminal", strings.Repeat("0", 64), "y\n", true, ExitConflict, false, "not the digest"},
		{"a part of the digest", fakeDigest[:12], "", false, ExitConflict, false, "not the digest"},
		{"yes", "", "y\n", true, ExitOK, true, "Discard 3 dead letters for good, as alice proposed? [y/N]"},
		{"no", "", "n\n", true, ExitFailed, false, "dlq-replay discard reject b"},
		{"nothing", "", "", true, ExitFailed, false, "nothing was discarded"},
	} {
		f := newFake(t, letters(3)...)
		f.batch("b", "discard", "proposed", nil, &penstockv1.DeadLetterFilter{Type: "email.send"}).Reason = "test data"
		line := []string{"discard", "confirm", "b"}
		if c.digest != "" {
			line = append(line, "--digest", c.digest)
		}
		r := operator{con: console{interactive: c.tty}, stdin: c.answer}.run(t, f, line...)
		want(t, c.what, r, c.exit, c.text)
		q := asked[*penstockv1.ConfirmDiscardRequest](f)
		if (len(q) == 1) != c.confirmed || c.confirmed && (q[0].Digest != fakeDigest || q[0].BatchId != "b") {
			t.Errorf("%s: %v", c.what, q)
		}
		if c.confirmed {
			says(t, r, "finished: 3 discarded of 3")
			for _, s := range []string{"test data", "type email.send", "alice", "2 settled otherwise", "4f2a90c1d3e8"} {
				if !strings.Contains(r.err, s) {
					t.Errorf("%s: did not show %q: %s", c.what, s, r.err)
				}
			}
		}
	}
	f := newFake(t, letters(3)...)
	f.batch("b", "discard", "finished", nil, nil)
	f.batch("r", "requeue", "draft", nil, nil)
	want(t, "decided", script(t, f, "discard", "confirm", "b", "--digest", fakeDigest), ExitConflict, "finished")
	want(t, "a requeue", script(t, f, "discard", "confirm", "r", "--digest", fakeDigest), ExitConflict, "requeue")
	want(t, "empty digest", operator{con: console{interactive: true}, stdin: "y\n"}.run(t, f, "discard", "confirm", "b", "--digest="), ExitUsage)
	f.batch("p", "discard", "proposed", nil, nil)
	f.before = func(m proto.Message) error {
		if _, ok := m.(*penstockv1.ConfirmDiscardRequest); ok {
			return connect.NewError(connect.CodePermissionDenied, errors.New("another person than the one who proposed it"))
		}
		return nil
	}
	want(t, "the same person", script(t, f, "discard", "confirm", "p", "--digest", fakeDigest), ExitDenied, "another person")
}

func TestDiscardReject(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	f.batch("b", "discard", "proposed", nil, &penstockv1.DeadLetterFilter{})
	want(t, "no reason", script(t, f, "discard", "reject", "b"), ExitUsage, "--reason")
	r := script(t, f, "discard", "reject", "b", "--reason", "needed")
	want(t, "reject", r, ExitOK)
	says(t, r, "batch b rejected: 0 discarded of 3")
	want(t, "again", script(t, f, "discard", "reject", "b", "--reason", "needed"), ExitConflict)
	if q := asked[*penstockv1.RejectDiscardRequest](f); q[0].Reason != "needed" {
		t.Errorf("asked for %v", q)
	}
}

func TestBatchCommands(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	b := f.batch("b", "requeue", "running", nil, &penstockv1.DeadLetterFilter{Tenant: "acme", Status: "requeued", FailedAfter: letter(1).FailedAt})
	b.Rate, b.Again, b.Reason = 20, true, "fixed \x1b[0m"
	f.held = true
	r := script(t, f, "batch", "list", "--kind", "requeue", "--status", "running")
	want(t, "list", r, ExitOK)
	says(t, r, "BATCH ID", "b         2026-02-25", "fixed")
	if q := asked[*penstockv1.ListDeadLetterBatchesRequest](f)[0]; q.Kind != "requeue" || q.Status != "running" {
		t.Errorf("asked for %v", q)
	}
	if m := decode(t, script(t, f, "batch", "list", "-o", "json").out); len(m["batches"].([]any)) != 1 {
		t.Errorf("list: %v", m)
	}
	r = script(t, f, "batch", "show", "b")
	want(t, "show", r, ExitOK)
	says(t, r, "20/s", "again", "tenant acme, status requeued, failed since 2026-02-25 11:59:59", "0 done, 0 skipped of 3", "COUNT  TYPE", "2 settled otherwise")
	f.items = []*penstockv1.DeadLetterBatchItem{{DlqId: "x", Status: "done", TaskId: "t"}, {DlqId: "y", Status: "skipped", Detail: "was\x1b discarded"}}
	r = script(t, f, "batch", "show", "b", "--items", "--item-status", "skipped")
	want(t, "items", r, ExitOK)
	says(t, r, "x       done     t        -", "y       skipped  -        was  discarded")
	if q := asked[*penstockv1.ListDeadLetterBatchItemsRequest](f)[0]; q.Status != "skipped" || q.BatchId != "b" {
		t.Errorf("asked for %v", q)
	}
	r = script(t, f, "batch", "show", "b", "--items", "-o", "jsonl")
	if n := strings.Count(r.out, "\n"); r.code != 0 || n != 2 {
		t.Errorf("items: %+v", r)
	}
	want(t, "item flags without --items", script(t, f, "batch", "show", "b", "--item-status", "done"), ExitUsage, "--items")
	for _, c := range [][2]string{{"pause", "paused"}, {"resume", "running"}, {"cancel", "cancelled"}} {
		r = script(t, f, "batch", c[0], "b", "--reason", "because")
		want(t, c[0], r, ExitOK)
		says(t, r, "batch b "+c[1]+": 0 requeued of 3")
	}
	want(t, "cancel again", script(t, f, "batch", "cancel", "b"), ExitConflict)
	f.batch("d", "requeue", "draft", nil, nil)
	want(t, "start", script(t, f, "batch", "start", "d", "-o", "json"), ExitOK)
	if q := asked[*penstockv1.ControlDeadLetterBatchRequest](f); q[0].Reason != "because" || q[4].Action != "start" {
		t.Errorf("asked for %v", q)
	}
	want(t, "unknown", script(t, f, "batch", "show", "nobody"), ExitNotFound)
	want(t, "unknown command", script(t, f, "batch", "wach", "b"), ExitUsage, "watch")
}

func TestBatchWatch(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	all := &penstockv1.DeadLetterFilter{}
	f.batch("b", "requeue", "running", nil, all)
	r := script(t, f, "batch", "watch", "b", "-o", "jsonl")
	want(t, "watch", r, ExitOK)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	last := decode(t, lines[len(lines)-1])
	if len(lines) < 3 || decode(t, lines[0])["status"] != "running" || last["status"] != "finished" || last["done"] != 3.0 {
		t.Errorf("watch: %s", r.out)
	}
	for _, format := range []string{"json", "table"} {
		r = script(t, f, "batch", "watch", "b", "-o", format)
		if want(t, format, r, ExitOK); strings.Count(r.out, "\n") != 1 {
			t.Errorf("%s: %q", format, r.out)
		}
	}
	f.batch("c", "requeue", "cancelled", nil, all).DecisionReason = "wrong ones"
	want(t, "cancelled", script(t, f, "batch", "watch", "c"), ExitFailed, "cancelled: wrong ones")
	f.batch("p", "discard", "proposed", nil, all)
	want(t, "not in time", script(t, f, "batch", "watch", "p", "--timeout", "20ms"), ExitNotFinished, "batch p proposed: 0 discarded of 3 after 20ms")
	want(t, "bad timeout", script(t, f, "batch", "watch", "p", "--timeout", "-1s"), ExitUsage)
	want(t, "unknown", script(t, f, "batch", "watch", "nobody"), ExitNotFound)
}

// TestProgressBar: there is one on a terminal, and it is gone at the end.
func TestProgressBar(t *testing.T) {
	t.Parallel()
	f := newFake(t, letters(3)...)
	f.skip = 1
	f.batch("b", "requeue", "running", nil, &penstockv1.DeadLetterFilter{})
	root := operator{con: console{bar: true}}
	r := root.run(t, f, "batch", "watch", "b")
	want(t, "watch", r, ExitFailed, "requeue running", "1 skipped", "/3)")
	if strings.Contains(r.out, "/3)") || !strings.Contains(r.out, "2 requeued, 1 skipped of 3") {
		t.Errorf("output: %q", r.out)
	}
}
