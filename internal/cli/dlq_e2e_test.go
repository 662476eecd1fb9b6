package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// payment is the payload of the tests' tasks.
type payment struct {
	ID     uint64 `json:"id"`
	Amount int    `json:"amount"`
}

// desk is a running system with an operator alice, an operator bob, and one
// who has no token.
type desk struct {
	t      *testing.T
	url    string
	stores testkit.Stores
	tokens map[string]string // files
	broken atomic.Bool       // handler "flaky" fails
}

// newDesk starts a system. Its handler "pay" refuses negative amounts.
func newDesk(t *testing.T) *desk {
	t.Helper()
	dir := t.TempDir()
	d := &desk{t: t, tokens: map[string]string{}}
	var list strings.Builder
	for _, name := range []string{"alice", "bob"} {
		token := name + "-0123456789abcdef"
		d.tokens[name] = filepath.Join(dir, name)
		fmt.Fprintf(&list, "%s %s roles=operator,payloads\n", name, token)
		if err := os.WriteFile(d.tokens[name], []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := testkit.NewStores(t)
	cfg := s.Config()
	cfg.Auth.TokensFile, cfg.Auth.AnonymousRoles = filepath.Join(dir, "tokens"), auth.AllRoles()
	if err := os.WriteFile(cfg.Auth.TokensFile, []byte(list.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	d.stores = s
	d.url = testkit.StartOrchestrator(t, cfg).URL
	testkit.Eventually(t, "ready", func() (bool, string) {
		r := run(t, Orchestrator(), "", "task", "count", "--server", d.url)
		return r.code == 0, r.err
	})
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		worker.Handle(w, task.Define[payment]("pay"), func(_ context.Context, j *task.Job[payment]) error {
			if j.Args.Amount < 0 {
				return task.Permanent(fmt.Errorf("amount %d is negative\x1b[31m", j.Args.Amount))
			}
			return j.SetResult(j.Args.ID)
		})
		worker.Handle(w, task.Define[payment]("flaky"), func(_ context.Context, j *task.Job[payment]) error {
			if d.broken.Load() {
				return task.Permanent(errors.New("the bank is closed"))
			}
			return nil
		})
	})
	return d
}

// replay runs dlq-replay as somebody; "" has no token.
func (d *desk) replay(who string, args ...string) ran {
	d.t.Helper()
	if who != "" {
		args = append(args, "--token-file", d.tokens[who])
	}
	return operator{}.run(d.t, &fakeServer{url: d.url}, args...)
}

func (d *desk) orchestrator(args ...string) ran {
	d.t.Helper()
	return run(d.t, Orchestrator(), "", append(args, "--server", d.url)...)
}

// dead waits for n dead letters of a type and returns their ids.
func (d *desk) dead(typ string, n int) (ids []string) {
	d.t.Helper()
	testkit.Eventually(d.t, fmt.Sprintf("%d dead letters of type %s", n, typ), func() (bool, string) {
		ids = nil
		r := d.replay("", "list", "--type", typ, "--limit", "0", "-o", "jsonl")
		for _, l := range strings.Split(strings.TrimSpace(r.out), "\n") {
			if l == "" {
				continue
			}
			if m := decode(d.t, l); m["recorded_at"] != nil {
				ids = append(ids, m["dlq_id"].(string))
			}
		}
		return len(ids) == n, fmt.Sprintf("%d: %s", len(ids), r.err)
	})
	return ids
}

func TestOperatorsDay(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	want(t, "enqueue", d.orchestrator("enqueue", "pay", `{"id": 12345678901234567890, "amount": -5}`, "--id", "p1"), ExitOK)
	want(t, "enqueue", d.orchestrator("enqueue", "pay", `{"id": 7, "amount": -1}`, "--id", "p2"), ExitOK)
	d.dead("pay", 2)
	m := decode(t, d.replay("", "list", "--group-by", "fingerprint", "-o", "json").out)
	group := m["groups"].([]any)[0].(map[string]any)
	if len(m["groups"].([]any)) != 1 || group["count"] != 2.0 {
		t.Fatalf("groups: %v", m)
	}
	r := d.replay("", "list", "--fingerprint", group["key"].(string), "--newer-than", "1h", "--status", "open", "-o", "json")
	var p1, p2 string
	for _, l := range decode(t, r.out)["dead_letters"].([]any) {
		switch l := l.(map[string]any); l["task_id"] {
		case "p1":
			p1 = l["dlq_id"].(string)
		case "p2":
			p2 = l["dlq_id"].(string)
		}
	}

	r = d.replay("", "show", p1)
	want(t, "show", r, ExitOK)
	says(t, r, "task_id", "p1", "is negative", `"id": 12345678901234567890`, "attempts:", "timeline:", "dlq_recorded → failed")

	r = d.replay("alice", "edit", p1, "--set", "amount=5", "--reason", "sign", "--requeue", "-o", "json")
	want(t, "edit", r, ExitOK)
	m = decode(t, r.out)
	next := m["requeue"].(map[string]any)["task_id"].(string)
	if diff := fmt.Sprint(m["diff"]); !strings.Contains(diff, "/amount") || strings.Contains(diff, "/id") {
		t.Errorf("diff: %s", diff)
	}
	r = d.orchestrator("task", "wait", next)
	want(t, "the new task", r, ExitOK)
	if !strings.Contains(r.out, "12345678901234567890") || !strings.Contains(r.out, "origin_dlq_id  "+p1) {
		t.Errorf("the new task: %s", r.out)
	}
	r = d.replay("", "show", p1)
	says(t, r, "requeued, edited", "edited payload (revision 1 by alice", "sign", "~ /amount: -5 → 5", next+"  succeeded", "dlq.requeued")
	want(t, "requeue again", d.replay("", "requeue", p1), ExitConflict, next)
	want(t, "edit an old revision", d.replay("", "edit", p1, "--set", "amount=6", "--revision", "0"), ExitConflict, "revision")
	want(t, "edit into nonsense", d.replay("", "edit", p1, "--set", "note="+strings.Repeat("x", 300<<10)), ExitUsage, "payload")
	want(t, "for the record", d.replay("", "requeue", p1, "--again", "--original"), ExitOK)
	d.dead("pay", 3)

	discard(t, d, p2)
	want(t, "deployment", d.orchestrator("deployment"), ExitOK)
	if m := decode(t, d.orchestrator("deployment", "-o", "json").out); len(m["seed"].(string)) != 64 {
		t.Errorf("deployment: %v", m)
	}
	testkit.VerifyLog(t, d.stores)
}

// discard gives one dead letter up.
func discard(t *testing.T, d *desk, id string) {
	t.Helper()
	want(t, "propose without a name", d.replay("", "discard", "propose", id, "--reason", "x"), ExitDenied, "token")
	r := d.replay("alice", "discard", "propose", id, "--reason", "was never due")
	want(t, "propose", r, ExitOK)
	says(t, r, "alice", "was never due", "--digest", "dlq-replay discard confirm ")
	var cmd []string
	for _, l := range strings.Split(r.out, "\n") {
		if strings.Contains(l, "dlq-replay discard confirm ") {
			cmd = strings.Fields(l)[1:5] // without --server, which replay adds
		}
	}
	batch := cmd[2]
	cmd = append(cmd, strings.Fields(r.out[strings.Index(r.out, cmd[3]+" ")+len(cmd[3]):])[0])
	want(t, "confirm one's own", d.replay("alice", cmd...), ExitDenied, "another person")
	want(t, "confirm without a name", d.replay("", cmd...), ExitDenied)
	want(t, "confirm something else", d.replay("bob", "discard", "confirm", batch, "--digest", strings.Repeat("a", 64)), ExitConflict, "not the digest")
	r = d.replay("bob", cmd...)
	want(t, "confirm", r, ExitOK, "was never due", "alice")
	says(t, r, "finished: 1 discarded of 1")
	r = d.replay("", "show", id)
	says(t, r, "discarded", "was never due", "alice", "bob", "dlq.discard_proposed", "dlq.discarded")
	want(t, "requeue what was discarded", d.replay("alice", "requeue", id), ExitConflict, "discarded")
	want(t, "edit what was discarded", d.replay("alice", "edit", id, "--set", "amount=1"), ExitConflict, "discarded")
	want(t, "confirm twice", d.replay("bob", cmd...), ExitConflict)
	want(t, "propose again", d.replay("alice", "discard", "propose", id, "--reason", "x"), ExitConflict)
}

func TestBulkRequeue(t *testing.T) {
	t.Parallel()
	const n = 30
	d := newDesk(t)
	d.broken.Store(true)
	for i := range n {
		want(t, "enqueue", d.orchestrator("enqueue", "flaky", fmt.Sprintf(`{"id":%d}`, i)), ExitOK)
	}
	ids := d.dead("flaky", n)
	d.broken.Store(false)

	r := d.replay("alice", "requeue", "--type", "flaky", "--dry-run", "-o", "json")
	want(t, "dry run", r, ExitOK)
	b := decode(t, r.out)
	if b["total"] != 30.0 || b["status"] != "draft" {
		t.Fatalf("draft: %s", r.out)
	}
	want(t, "one by itself", d.replay("bob", "requeue", ids[0]), ExitOK)
	r = d.replay("", "batch", "show", b["batch_id"].(string))
	want(t, "batch show", r, ExitOK)
	says(t, r, "type flaky", "1 settled otherwise", "the bank is closed")
	r = d.replay("alice", "requeue", "--batch", b["batch_id"].(string))
	want(t, "start", r, ExitFailed, "1 of 30 dead letters skipped")
	says(t, r, "29 requeued, 1 skipped of 30")
	r = d.replay("", "batch", "show", b["batch_id"].(string), "--items", "--item-status", "skipped")
	says(t, r, ids[0], "requeued already")
	testkit.Eventually(t, "all succeeded", func() (bool, string) {
		r := d.orchestrator("task", "list", "--type", "flaky", "--state", "succeeded", "-o", "json")
		got, _ := decode(t, r.out)["tasks"].([]any)
		return len(got) == n, fmt.Sprint(len(got))
	})
	want(t, "nothing left", d.replay("alice", "requeue", "--type", "flaky", "--yes"), ExitNotFound)
	r = d.replay("alice", "requeue", "--type", "flaky", "--status", "requeued", "--again", "--yes", "--rate", "1000", "--detach", "-o", "json")
	want(t, "detached", r, ExitOK)
	again := decode(t, r.out)["batch_id"].(string)
	want(t, "watch", d.replay("", "batch", "watch", again), ExitOK)
	want(t, "cancel too late", d.replay("", "batch", "cancel", again), ExitConflict)
	r = d.replay("", "batch", "list")
	says(t, r, again, "finished", "alice")
	testkit.VerifyLog(t, d.stores)
}
