package replay_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// Giving up takes a reason and two different people, bound to what was
// proposed.
func TestDiscardTakesTwoPeople(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := dead(t, r, 250, "mail", "no")
	entry := protocol.Garbage("stream:task", "1-1", map[string]any{"a": "b"}, errForeign, time.Now())
	if err := r.DeadLetter.Keep(t.Context(), []*protocol.DeadLetter{entry}); err != nil {
		t.Fatal(err)
	}
	all := append(ids, entry.DLQID)
	req := replay.BatchRequest{IDs: all, Reason: "customer left"}
	if _, err := r.Replay.Propose(t.Context(), req); !errors.Is(err, replay.ErrNobody) {
		t.Errorf("anonymous: %v", err)
	}
	req.Principal = "alice"
	noReason := req
	noReason.Reason = ""
	if _, err := r.Replay.Propose(t.Context(), noReason); code(err) != protocol.CodeInputInvalid {
		t.Errorf("no reason: %v", err)
	}
	b, err := r.Replay.Propose(t.Context(), req)
	if err != nil || b.Status != "proposed" || b.Total != 251 {
		t.Fatalf("%+v, %v", b, err)
	}
	id := protocol.ID(b.ID)
	finish(t, r)
	if _, err := r.Replay.Confirm(t.Context(), id, "", b.Digest); !errors.Is(err, replay.ErrNobody) {
		t.Errorf("anonymous: %v", err)
	}
	if _, err := r.Replay.Confirm(t.Context(), id, "alice", b.Digest); !errors.Is(err, replay.ErrSamePerson) {
		t.Errorf("the same person: %v", err)
	}
	if _, err := r.Replay.Confirm(t.Context(), id, "bob", strings.Repeat("0", 64)); code(err) != protocol.CodeInvalidTransition {
		t.Errorf("another digest: %v", err)
	}
	if _, err := r.Replay.Control(t.Context(), id, "start", "bob", ""); code(err) != protocol.CodeInvalidTransition {
		t.Errorf("start without confirmation: %v", err)
	}
	if got := fmt.Sprint(status(t, r, all)); got != "map[open:251]" {
		t.Fatalf("before the confirmation: %s", got)
	}
	// One is requeued before the decision: it is not given up.
	if got, err := r.Replay.Requeue(t.Context(), ids[:1], replay.RequeueOptions{}); err != nil || got[0].Err != nil {
		t.Fatal(got, err)
	}
	if _, err := r.Replay.Confirm(t.Context(), id, "bob", b.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Replay.Confirm(t.Context(), id, "carol", b.Digest); code(err) != protocol.CodeInvalidTransition {
		t.Errorf("confirmed twice: %v", err)
	}
	if again, err := r.Replay.Confirm(t.Context(), id, "bob", b.Digest); err != nil || again.ID != b.ID {
		t.Errorf("the same confirmation, repeated: %v", err)
	}
	if _, err := r.Replay.Control(t.Context(), id, "pause", "", ""); !errors.Is(err, replay.ErrNobody) {
		t.Errorf("paused by nobody: %v", err)
	}
	finish(t, r)
	if b = batch(t, r, id); b.Status != "finished" || b.Done != 250 || b.Skipped != 1 {
		t.Errorf("%+v", b)
	}
	for what, sql := range map[string]string{
		"items": `SELECT count(*) FROM dlq_items WHERE status = 'discarded' AND discard_proposed_by = 'alice' AND discard_confirmed_by = 'bob'
			AND discard_reason = 'customer left' AND discard_batch_id = $1`,
		"events": `SELECT count(*) FROM event_log WHERE type = 'dlq.discarded' AND actor = 'user:bob' AND reason = 'customer left'
			AND data->>'batch_id' = ($1::uuid)::text AND data->>'proposed_by' = 'alice' AND data->>'confirmed_by' = 'bob'`,
		"proposals": `SELECT count(*) - 1 FROM event_log WHERE type = 'dlq.discard_proposed' AND actor = 'user:alice' AND data->>'batch_id' = ($1::uuid)::text`,
	} {
		if n := r.Count(t, sql, b.ID); n != 250 {
			t.Errorf("%s: %d, want 250", what, n)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE task_id = $1 AND seq IN (1, 2) AND type LIKE 'dlq.discard%'", pgid.ID(entry.DLQID)); n != 2 {
		t.Errorf("%d events of the entry that was no task, want 2", n)
	}
	if got, err := r.Replay.Requeue(t.Context(), ids[5:6], replay.RequeueOptions{Again: true}); err != nil || code(got[0].Err) != protocol.CodeInvalidTransition {
		t.Errorf("a discarded one was requeued: %+v, %v", got, err)
	}
	if _, err := r.Replay.Edit(t.Context(), ids[5], []byte("{}"), 0, "alice", ""); code(err) != protocol.CodeInvalidTransition {
		t.Errorf("a discarded one was edited: %v", err)
	}
	succeedAll(t, r, 1)
	testkit.VerifyLog(t, r.Stores)
}

func TestDiscardRejectedOrExpired(t *testing.T) {
	t.Parallel()
	r := rig(t, func(c *config.Orchestrator) { c.Replay.ProposalTTL = time.Hour })
	ids := dead(t, r, 2, "mail", "no")
	propose := func() (protocol.ID, string) {
		t.Helper()
		b, err := r.Replay.Propose(t.Context(), replay.BatchRequest{Filter: &replay.Filter{}, Reason: "old", Principal: "alice"})
		if err != nil {
			t.Fatal(err)
		}
		return protocol.ID(b.ID), b.Digest
	}
	rejected, digest := propose()
	if _, err := r.Replay.Reject(t.Context(), rejected, "", "no"); !errors.Is(err, replay.ErrNobody) {
		t.Errorf("anonymous: %v", err)
	}
	if _, err := r.Replay.Reject(t.Context(), rejected, "bob", "we need them"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Replay.Confirm(t.Context(), rejected, "carol", digest); code(err) != protocol.CodeInvalidTransition {
		t.Errorf("confirmed after the rejection: %v", err)
	}
	late, digest := propose()
	if _, err := r.DB.Exec(t.Context(), "UPDATE dlq_batches SET expires_at = now() - interval '1 second' WHERE id = $1", pgid.ID(late)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Replay.Confirm(t.Context(), late, "bob", digest); code(err) != protocol.CodeInvalidTransition {
		t.Errorf("confirmed after its time: %v", err)
	}
	r.Start(t, r.Replay.Run)
	testkit.Eventually(t, "the proposal expires", func() (bool, string) { s := batch(t, r, late).Status; return s == "expired", s })
	if got := fmt.Sprint(status(t, r, ids)); got != "map[open:2]" {
		t.Error(got)
	}
	if b := batch(t, r, rejected); *b.DecidedBy != "bob" || *b.DecisionReason != "we need them" {
		t.Errorf("%+v", b)
	}
}

// The database itself refuses what the rules forbid, to the role that the
// orchestrator runs under.
func TestDatabaseRefusesOnePerson(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := dead(t, r, 1, "mail", "no")
	b, err := r.Replay.Propose(t.Context(), replay.BatchRequest{IDs: ids, Reason: "old", Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.DB.Exec(t.Context(), "SET ROLE penstock_app"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ what, sql, want string }{
		{"the proposer confirms", "UPDATE dlq_batches SET status = 'running', started_at = now(), decided_by = 'alice' WHERE id = $1", "dlq_batches_two_people"},
		{"the proposer confirms in capitals", "UPDATE dlq_batches SET status = 'running', started_at = now(), decided_by = 'ALICE' WHERE id = $1", "dlq_batches_two_people"},
		{"nobody confirms", "UPDATE dlq_batches SET status = 'running', started_at = now() WHERE id = $1", "dlq_batches_two_people"},
		{"it runs without a start", "UPDATE dlq_batches SET status = 'running', decided_by = 'bob' WHERE id = $1", "dlq_batches_started"},
		{"another proposer", "UPDATE dlq_batches SET created_by = 'bob' WHERE id = $1", "permission denied"},
		{"another digest", "UPDATE dlq_batches SET digest = 'x' WHERE id = $1", "permission denied"},
		{"it vanishes", "DELETE FROM dlq_batches WHERE id = $1", "permission denied"},
		{"another item", "UPDATE dlq_batch_items SET dlq_id = $1 WHERE batch_id = $1", "permission denied"},
		{"an edit is another's", "UPDATE dlq_edits SET principal = 'bob' WHERE dlq_id = $1", "permission denied"},
		{"one person discards", "UPDATE dlq_items SET status = 'discarded', settled_at = now(), discard_batch_id = $1, discard_reason = 'x', discard_proposed_by = 'a', discard_confirmed_by = 'a'", "dlq_items_two_people"},
		{"nobody discards", "UPDATE dlq_items SET status = 'discarded', settled_at = now(), discard_batch_id = $1", "dlq_items_two_people"},
		{"no reason", "UPDATE dlq_items SET status = 'discarded', settled_at = now(), discard_batch_id = $1, discard_reason = '', discard_proposed_by = 'a', discard_confirmed_by = 'b'", "dlq_items_two_people"},
		{"the event is rewritten", "UPDATE event_log SET actor = 'user:bob' WHERE data->>'batch_id' = ($1::uuid)::text", "permission denied"},
	} {
		if _, err := r.DB.Exec(t.Context(), c.sql, b.ID); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.what, err, c.want)
		}
	}
}

// Only a configured retention removes content, of settled dead letters only,
// and each time it is an event.
func TestRetention(t *testing.T) {
	t.Parallel()
	r := rig(t, func(c *config.Orchestrator) { c.Retention.DeadLetters = time.Hour })
	ids := dead(t, r, 3, "mail", "no")
	if got, err := r.Replay.Requeue(t.Context(), ids[:2], replay.RequeueOptions{}); err != nil || got[0].Err != nil || got[1].Err != nil {
		t.Fatal(got, err)
	}
	if _, err := r.DB.Exec(t.Context(), "UPDATE dlq_items SET settled_at = now() - interval '61 minutes' WHERE dlq_id = $1", pgid.ID(ids[0])); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DB.Exec(t.Context(), "UPDATE dlq_items SET failed_at = now() - interval '1 year' WHERE dlq_id = $1", pgid.ID(ids[2])); err != nil {
		t.Fatal(err)
	}
	r.Start(t, r.Replay.Run)
	testkit.Eventually(t, "the entry is gone", func() (bool, string) {
		n := r.Raw.XLen(t.Context(), protocol.StreamDLQ).Val()
		return n == 2, fmt.Sprint(n)
	})
	testkit.Eventually(t, "it is expired", func() (bool, string) {
		n := r.Count(t, "SELECT count(*) FROM dlq_items WHERE dlq_id = $1 AND status = 'expired' AND payload IS NULL AND errors IS NULL AND entry_id IS NULL", pgid.ID(ids[0]))
		return n == 1, fmt.Sprint(n)
	})
	if got := fmt.Sprint(status(t, r, ids)); got != "map[expired:1 open:1 requeued:1]" {
		t.Error(got)
	}
	if n := r.Count(t, "SELECT count(*) FROM event_log WHERE type = 'dlq.expired' AND actor = 'retention' AND data->>'dlq_id' = ($1::uuid)::text", pgid.ID(ids[0])); n != 1 {
		t.Errorf("%d events", n)
	}
	if got, err := r.Replay.Requeue(t.Context(), ids[:1], replay.RequeueOptions{Again: true}); err != nil || code(got[0].Err) != protocol.CodeInvalidTransition {
		t.Errorf("an expired one was requeued: %+v, %v", got, err)
	}
	succeedAll(t, r, 2)
	testkit.VerifyLog(t, r.Stores)
}

// Two people who propose the same dead letters at once do not get in each
// other's way, nor does a batch that is made meanwhile.
func TestProposalsAtOnce(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := dead(t, r, 300, "mail", "no")
	const callers = 6
	errs := make(chan error, callers)
	for i := range callers {
		go func() {
			var err error
			if i%3 == 2 {
				_, err = r.Replay.Create(t.Context(), replay.BatchRequest{IDs: ids, DryRun: true})
			} else {
				_, err = r.Replay.Propose(t.Context(), replay.BatchRequest{IDs: ids, Reason: "old", Principal: fmt.Sprint("person-", i)})
			}
			errs <- err
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	testkit.VerifyLog(t, r.Stores)
}

// What was edited after it was proposed is not given up unseen.
func TestEditedAfterTheProposal(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := dead(t, r, 2, "mail", "no")
	b, err := r.Replay.Propose(t.Context(), replay.BatchRequest{IDs: ids, Reason: "old", Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Replay.Edit(t.Context(), ids[0], []byte(`{}`), 0, "carol", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Replay.Confirm(t.Context(), protocol.ID(b.ID), "bob", b.Digest); code(err) != protocol.CodeInvalidTransition || !strings.Contains(err.Error(), "edited") {
		t.Errorf("%v, want a conflict that tells of the edit", err)
	}
}
