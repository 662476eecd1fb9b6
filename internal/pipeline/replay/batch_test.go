package replay_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/pipeline/replay"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

var errForeign = errors.New("no task")

func newID() protocol.ID { return protocol.ID(uuid.Must(uuid.NewV7())) }

func batch(t *testing.T, r *testkit.Rig, id protocol.ID) *dbsqlc.DlqBatch {
	t.Helper()
	b, err := r.Store.GetBatch(t.Context(), pgid.ID(id))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A batch requeues what its filter admitted when it was made, and nothing else.
func TestBatchIsFrozen(t *testing.T) {
	t.Parallel()
	r := rig(t)
	mail := dead(t, r, 450, "mail", "mailbox 17 is full")
	other := dead(t, r, 3, "other", "boom")
	b, err := r.Replay.Create(t.Context(), replay.BatchRequest{Filter: &replay.Filter{Type: "mail"}, Principal: "alice"})
	if err != nil || b.Total != 450 || b.Status != "running" || len(b.Digest) != 64 {
		t.Fatalf("%+v, %v", b, err)
	}
	late := dead(t, r, 2, "mail", "mailbox 18 is full")
	// One of the set is settled before its turn.
	if got, err := r.Replay.Requeue(t.Context(), mail[9:10], replay.RequeueOptions{}); err != nil || got[0].Err != nil {
		t.Fatal(got, err)
	}
	finish(t, r)
	if b = batch(t, r, protocol.ID(b.ID)); b.Status != "finished" || b.Done != 449 || b.Skipped != 1 || !b.FinishedAt.Valid {
		t.Errorf("%+v", b)
	}
	for what, want := range map[string]struct {
		ids  []protocol.ID
		have string
	}{"the set": {mail, "map[requeued:450]"}, "another type": {other, "map[open:3]"}, "later ones": {late, "map[open:2]"}} {
		if got := fmt.Sprint(status(t, r, want.ids)); got != want.have {
			t.Errorf("%s: %s, want %s", what, got, want.have)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM dlq_batch_items i WHERE i.status = 'skipped' AND i.dlq_id = $1 AND i.detail LIKE '%requeued already%'", pgid.ID(mail[9])); n != 1 {
		t.Error("the skipped item does not say why")
	}
	succeedAll(t, r, 450)
	testkit.VerifyLog(t, r.Stores)
}

// Whatever dies in between, each item of a batch is requeued once: replicas
// work at once and are stopped over and over.
func TestBatchSurvivesRestarts(t *testing.T) {
	t.Parallel()
	r := rig(t)
	const n = 1500
	dead(t, r, n, "mail", "no")
	b, err := r.Replay.Create(t.Context(), replay.BatchRequest{Filter: &replay.Filter{}, Principal: "alice"})
	if err != nil || b.Total != n {
		t.Fatalf("%+v, %v", b, err)
	}
	replicas := []*testkit.Rig{testkit.NewRig(t, r.Stores, r.Config()), testkit.NewRig(t, r.Stores, r.Config())}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
	defer cancel()
	stopped := make(chan struct{})
	for i, replica := range replicas {
		go func() {
			defer func() { stopped <- struct{}{} }()
			for k := 0; ctx.Err() == nil; k++ {
				// Cut off in the middle of a transaction, as a kill would; later and
				// later, so that a slow machine comes to an end, too.
				cut, end := context.WithTimeout(ctx, time.Duration(5+(7*k+13*i)%40+k)*time.Millisecond)
				more, err := replica.Replay.Step(cut)
				end()
				if err != nil || more {
					continue
				}
				if now, err := r.Store.GetBatch(ctx, b.ID); err == nil && now.Status == "finished" {
					return
				}
			}
		}()
	}
	<-stopped
	<-stopped
	if b = batch(t, r, protocol.ID(b.ID)); b.Status != "finished" || b.Done != n || b.Skipped != 0 {
		t.Fatalf("%+v", b)
	}
	if got := r.Count(t, "SELECT count(*) FROM tasks WHERE origin_dlq_id IS NOT NULL"); got != n {
		t.Errorf("%d new tasks of %d dead letters", got, n)
	}
	succeedAll(t, r, n)
	testkit.VerifyLog(t, r.Stores)
}

// A rate is never exceeded by more than the fifth of a second that a late chunk
// may make up for.
func TestBatchRate(t *testing.T) {
	t.Parallel()
	r := rig(t)
	const n, rate = 60, 100
	dead(t, r, n, "mail", "no")
	start := time.Now()
	b, err := r.Replay.Create(t.Context(), replay.BatchRequest{Filter: &replay.Filter{}, Rate: rate})
	if err != nil {
		t.Fatal(err)
	}
	r.Start(t, r.Replay.Run)
	testkit.Eventually(t, "the batch is finished", func() (bool, string) {
		now := batch(t, r, protocol.ID(b.ID))
		return now.Status == "finished", fmt.Sprint(now.Done)
	})
	if took, least := time.Since(start), time.Duration(n-rate/10)*time.Second/rate-200*time.Millisecond; took < least {
		t.Errorf("%d items at %d a second took %s, less than %s", n, rate, took, least)
	}
}

func TestBatchControl(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := dead(t, r, 500, "mail", "no")
	b, err := r.Replay.Create(t.Context(), replay.BatchRequest{IDs: ids, Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	id := protocol.ID(b.ID)
	control := func(action, want string, fails protocol.Code) {
		t.Helper()
		_, err := r.Replay.Control(t.Context(), id, action, "bob", "because")
		if code(err) != fails || (fails == "") != (err == nil) {
			t.Errorf("%s: %v, want code %q", action, err, fails)
		}
		if got := batch(t, r, id).Status; got != want {
			t.Errorf("after %s: %s, want %s", action, got, want)
		}
	}
	if more, err := r.Replay.Step(t.Context()); err != nil || !more {
		t.Fatal(more, err)
	}
	control("resume", "running", protocol.CodeInvalidTransition)
	control("start", "running", protocol.CodeInvalidTransition)
	control("explode", "running", protocol.CodeInputInvalid)
	control("pause", "paused", "")
	finish(t, r)
	if b = batch(t, r, id); b.Done != 200 {
		t.Errorf("%d done while paused, want 200", b.Done)
	}
	control("pause", "paused", protocol.CodeInvalidTransition)
	control("resume", "running", "")
	if _, err := r.Replay.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	control("cancel", "cancelled", "")
	control("resume", "cancelled", protocol.CodeInvalidTransition)
	finish(t, r)
	if b = batch(t, r, id); b.Done != 400 || *b.ControlledBy != "bob" || *b.DecisionReason != "because" {
		t.Errorf("%+v", b)
	}
	if got := fmt.Sprint(status(t, r, ids)); got != "map[open:100 requeued:400]" {
		t.Error(got)
	}
	if _, err := r.Replay.Control(t.Context(), newID(), "pause", "bob", ""); code(err) != protocol.CodeNotFound {
		t.Errorf("unknown batch: %v", err)
	}
}

// TestWhoStartsABatchHasAHandInItsTasks: all who started or resumed it, not only
// the last.
func TestWhoStartsABatchHasAHandInItsTasks(t *testing.T) {
	t.Parallel()
	r := rig(t, func(c *config.Orchestrator) { c.Replay.DraftTTL = time.Hour })
	ids := dead(t, r, 201, "mail", "no")
	b, err := r.Replay.Create(t.Context(), replay.BatchRequest{IDs: ids, Principal: "alice", DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	control := func(action, who string) {
		t.Helper()
		if _, err := r.Replay.Control(t.Context(), protocol.ID(b.ID), action, who, ""); err != nil {
			t.Fatal(err)
		}
	}
	control("start", "bob")
	if more, err := r.Replay.Step(t.Context()); err != nil || !more {
		t.Fatal(more, err)
	}
	control("pause", "carol")
	control("resume", "dave")
	control("pause", "carol")
	control("resume", "dave")
	finish(t, r)
	for hands, want := range map[string]int{"{anonymous,bob}": 200, "{anonymous,bob,dave}": 1} {
		if n := r.Count(t, "SELECT count(*) FROM tasks WHERE origin_dlq_id IS NOT NULL AND requested_by = 'alice' AND also_requested_by = $1::text[]", hands); n != want {
			t.Errorf("%d tasks have the other requesters %s, want %d", n, hands, want)
		}
	}
}

func TestDraft(t *testing.T) {
	t.Parallel()
	r := rig(t, func(c *config.Orchestrator) { c.Replay.DraftTTL = time.Hour })
	ids := dead(t, r, 5, "mail", "no")
	draft := func() protocol.ID {
		t.Helper()
		b, err := r.Replay.Create(t.Context(), replay.BatchRequest{Filter: &replay.Filter{}, DryRun: true})
		if err != nil || b.Status != "draft" || b.CreatedBy != "anonymous" || !b.ExpiresAt.Valid {
			t.Fatalf("%+v, %v", b, err)
		}
		return protocol.ID(b.ID)
	}
	first, second, third := draft(), draft(), draft()
	finish(t, r)
	if got := fmt.Sprint(status(t, r, ids)); got != "map[open:5]" {
		t.Errorf("a dry run did something: %s", got)
	}
	if _, err := r.DB.Exec(t.Context(), "UPDATE dlq_batches SET expires_at = now() - interval '1 second' WHERE id = $1", pgid.ID(first)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Replay.Control(t.Context(), first, "start", "alice", ""); code(err) != protocol.CodeInvalidTransition || !strings.Contains(err.Error(), "expired") {
		t.Errorf("an expired draft: %v", err)
	}
	if _, err := r.Replay.Control(t.Context(), third, "cancel", "alice", ""); err != nil {
		t.Error(err)
	}
	dead(t, r, 2, "mail", "no")
	if _, err := r.Replay.Control(t.Context(), second, "start", "alice", ""); err != nil {
		t.Fatal(err)
	}
	r.Start(t, r.Replay.Run)
	testkit.Eventually(t, "the draft is worked off and the expired one ends", func() (bool, string) {
		a, b := batch(t, r, first), batch(t, r, second)
		return a.Status == "expired" && b.Status == "finished" && b.Done == 5, fmt.Sprint(a.Status, b.Status, b.Done)
	})
}

func TestCreateIsIdempotentAndChecked(t *testing.T) {
	t.Parallel()
	r := rig(t)
	ids := dead(t, r, 3, "mail", "no")
	req := replay.BatchRequest{ID: newID(), IDs: ids[:2], Principal: "alice", Reason: "x"}
	first, err := r.Replay.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	finish(t, r)
	again, err := r.Replay.Create(t.Context(), req)
	if err != nil || again.ID != first.ID || again.Done != 2 {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	other := req
	other.IDs = ids[1:]
	if _, err := r.Replay.Create(t.Context(), other); code(err) != protocol.CodeDuplicate {
		t.Errorf("other ids: %v", err)
	}
	other = req
	other.DryRun = true
	if _, err := r.Replay.Create(t.Context(), other); code(err) != protocol.CodeDuplicate {
		t.Errorf("now a dry run: %v", err)
	}
	req.Reason = "y"
	if _, err := r.Replay.Create(t.Context(), req); code(err) != protocol.CodeDuplicate {
		t.Errorf("other fields: %v", err)
	}
	for what, c := range map[string]struct {
		req  replay.BatchRequest
		want protocol.Code
	}{
		"nothing":         {replay.BatchRequest{}, protocol.CodeInputInvalid},
		"both":            {replay.BatchRequest{IDs: ids, Filter: &replay.Filter{}}, protocol.CodeInputInvalid},
		"twice":           {replay.BatchRequest{IDs: []protocol.ID{ids[2], ids[2]}}, protocol.CodeInputInvalid},
		"unknown id":      {replay.BatchRequest{IDs: []protocol.ID{ids[2], protocol.DLQID(newID())}}, protocol.CodeNotFound},
		"empty filter":    {replay.BatchRequest{Filter: &replay.Filter{Type: "none"}}, protocol.CodeNotFound},
		"negative rate":   {replay.BatchRequest{IDs: ids, Rate: -1}, protocol.CodeInputInvalid},
		"rate too high":   {replay.BatchRequest{IDs: ids, Rate: replay.MaxRate + 1}, protocol.CodeInputInvalid},
		"control in text": {replay.BatchRequest{IDs: ids, Reason: "a\x00b"}, protocol.CodeInputInvalid},
	} {
		if _, err := r.Replay.Create(t.Context(), c.req); code(err) != c.want {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
	}
	if n := r.Count(t, "SELECT count(*) FROM dlq_batches"); n != 1 {
		t.Errorf("refused calls left %d batches", n-1)
	}
}
