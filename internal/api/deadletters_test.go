package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Tokens of the principals of these tests.
const (
	aliceToken = "alice-token-0123456789"
	bobToken   = "bob-token-0123456789ab"
)

// operated is a system with two principals and a worker whose handlers fail.
func operated(t *testing.T) *env {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("alice "+aliceToken+" roles=operator,payloads\nbob "+bobToken+" roles=operator,payloads\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEnv(t, func(c *config.Orchestrator) {
		c.Auth.TokensFile, c.Auth.AnonymousRoles = file, auth.AllRoles()
	})
	e.stores.StartWorker(t, worker.Options{Concurrency: 4}, func(w *worker.Worker) {
		w.HandleRaw("mail", func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
			var p struct{ To string }
			if err := json.Unmarshal(r.Payload, &p); err != nil || p.To == "" {
				return nil, fmt.Errorf("mailbox of task %s not found", r.TaskID)
			}
			return json.RawMessage(`"sent"`), nil
		})
		w.HandleRaw("report", func(context.Context, *task.Raw) (json.RawMessage, error) {
			return nil, task.Permanent(errors.New("no template"))
		})
	})
	return e
}

// dead makes a dead letter of a type and returns it.
func (e *env) dead(t *testing.T, r *penstockv1.EnqueueRequest) *penstockv1.DeadLetter {
	t.Helper()
	id := e.enqueue(t, r).TaskId
	var dlq string
	testkit.Eventually(t, "the task fails", func() (bool, string) {
		res, err := e.rpc.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: id, Tenant: r.Tenant}))
		if err != nil {
			return false, err.Error()
		}
		dlq = res.Msg.Task.DlqId
		return res.Msg.Task.State == "failed", res.Msg.Task.State
	})
	return e.letter(t, dlq)
}

func (e *env) letter(t *testing.T, id string) *penstockv1.DeadLetter {
	t.Helper()
	res, err := e.rpc.GetDeadLetter(t.Context(), connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: id}))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg.DeadLetter
}

func as[T any](token string, m *T) *connect.Request[T] {
	r := connect.NewRequest(m)
	if token != "" {
		r.Header().Set("Authorization", "Bearer "+token)
	}
	return r
}

// A dead letter tells how each attempt failed, and dead letters are found and
// grouped by what they have in common.
func TestDeadLettersTellAndGroup(t *testing.T) {
	t.Parallel()
	e := operated(t)
	retries := int32(2)
	mail := e.dead(t, &penstockv1.EnqueueRequest{Type: "mail", Payload: []byte(`{}`), MaxRetries: &retries, Tenant: "acme"})
	e.dead(t, &penstockv1.EnqueueRequest{Type: "mail", Payload: []byte(`{"x":1}`), MaxRetries: &retries})
	report := e.dead(t, &penstockv1.EnqueueRequest{Type: "report"})

	if len(mail.Errors) != 3 || mail.ErrorCode != "TASK_RETRY_EXHAUSTED" || mail.RetryCount != 2 || mail.Status != "open" || mail.RecordedAt == nil {
		t.Errorf("%+v", mail)
	}
	for i, a := range mail.Errors {
		if int(a.Attempt) != i+1 || a.ErrorCode != "TASK_EXECUTION_FAILED" || !strings.HasPrefix(a.Error, "mailbox of task") || a.WorkerId == "" ||
			a.At == nil || (a.BackoffDelayMs == nil) != (i == 2) {
			t.Errorf("attempt %d: %+v", i+1, a)
		}
	}
	if len(report.Errors) != 1 || report.Errors[0].ErrorCode != "TASK_EXECUTION_FAILED" || report.Errors[0].Error != "no template" {
		t.Errorf("%+v", report.Errors)
	}
	for _, c := range []struct {
		req  *penstockv1.ListDeadLettersRequest
		want int
	}{
		{&penstockv1.ListDeadLettersRequest{}, 3},
		{&penstockv1.ListDeadLettersRequest{Fingerprint: mail.Fingerprint}, 2},
		{&penstockv1.ListDeadLettersRequest{Type: "report", Status: "open", Queue: "default"}, 1},
		{&penstockv1.ListDeadLettersRequest{Tenant: "acme"}, 1},
		{&penstockv1.ListDeadLettersRequest{Status: "discarded"}, 0},
		{&penstockv1.ListDeadLettersRequest{FailedAfter: report.FailedAt}, 1},
		{&penstockv1.ListDeadLettersRequest{FailedBefore: report.FailedAt}, 2},
		{&penstockv1.ListDeadLettersRequest{ErrorCode: "TASK_RETRY_EXHAUSTED", FailedAfter: timestamppb.New(time.Now().Add(time.Hour))}, 0},
	} {
		res, err := e.rpc.ListDeadLetters(t.Context(), connect.NewRequest(c.req))
		if err != nil || len(res.Msg.DeadLetters) != c.want {
			t.Errorf("%v: %v, %v; want %d", c.req, res, err, c.want)
		}
	}
	res, err := e.grpc.GroupDeadLetters(t.Context(), connect.NewRequest(&penstockv1.GroupDeadLettersRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	if g := res.Msg.Groups; len(g) != 2 || g[0].Count != 2 || g[0].Key != mail.Fingerprint || g[0].Sample.GetType() != "mail" || g[1].Count != 1 || g[1].Sample.GetDlqId() != report.DlqId {
		t.Errorf("%+v", g)
	}
	for by, want := range map[string]string{"type": "mail=2 report=1", "tenant": "default=2 acme=1", "error_code": "TASK_EXECUTION_FAILED=3"} {
		res, err := e.rpc.GroupDeadLetters(t.Context(), connect.NewRequest(&penstockv1.GroupDeadLettersRequest{GroupBy: by}))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range res.Msg.Groups {
			got = append(got, fmt.Sprintf("%s=%d", g.Key, g.Count))
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("by %s: %s, want %s", by, s, want)
		}
	}
}

// Over REST: edit, requeue, and what links the tasks.
func TestEditAndRequeueREST(t *testing.T) {
	t.Parallel()
	e := operated(t)
	none := int32(0)
	d := e.dead(t, &penstockv1.EnqueueRequest{TaskId: "mail-1", Type: "mail", Payload: []byte(`{"n": 1.50}`), MaxRetries: &none})
	path := "/api/v1/dead-letters/" + d.DlqId
	e.do(t, http.MethodPost, path+"/edit", "application/json", `{"payload": {"n": 1.50, "To": "a"}}`, "Authorization", "Bearer nonsense-nonsense").refusedAs(t, http.StatusUnauthorized)
	edited := e.do(t, http.MethodPost, path+"/edit", "application/json", `{"payload": {"n": 1.50, "To": "a"}, "reason": "no address"}`, "Authorization", "Bearer "+aliceToken)
	if edited.status != http.StatusOK || !strings.Contains(edited.body, `"edited_payload":{"n": 1.50, "To": "a"}`) || !strings.Contains(edited.body, `"diff":[{"op":"add","path":"/To","to":"a"}]`) {
		t.Fatalf("%d %s", edited.status, edited.body)
	}
	e.post(t, path+"/edit", `{"payload": {"n": 2}}`).refused(t, http.StatusConflict, protocol.CodeInvalidTransition, "revision")
	e.post(t, path+"/edit", `{"revision": 1}`).refused(t, http.StatusBadRequest, protocol.CodeInputInvalid, "payload")
	requeued := e.do(t, http.MethodPost, "/api/v1/dead-letters/requeue", "application/json", fmt.Sprintf(`{"dlq_ids": [%q, %q]}`, d.DlqId, protocol.DLQID(protocol.ID{1})), "Authorization", "Bearer "+bobToken)
	var got struct {
		Results []struct {
			DLQID  string `json:"dlq_id"`
			TaskID string `json:"task_id"`
			Error  *struct{ Code, Field, Message string }
		}
	}
	if err := json.Unmarshal([]byte(requeued.body), &got); err != nil || len(got.Results) != 2 || got.Results[0].TaskID == "" || got.Results[1].Error == nil || got.Results[1].Error.Code != "TASK_NOT_FOUND" {
		t.Fatalf("%d %s (%v)", requeued.status, requeued.body, err)
	}
	waited, err := e.rpc.WaitTask(t.Context(), connect.NewRequest(&penstockv1.WaitTaskRequest{TaskId: got.Results[0].TaskID}))
	if err != nil || waited.Msg.Task.State != "succeeded" || waited.Msg.Task.OriginDlqId != d.DlqId {
		t.Fatalf("%+v, %v", waited, err)
	}
	after := e.letter(t, d.DlqId)
	if after.Status != "requeued" || after.RequeueCount != 1 || len(after.Requeues) != 1 || after.Requeues[0].TaskId != got.Results[0].TaskID || after.Requeues[0].Principal != "bob" ||
		after.Requeues[0].Revision != 1 || len(after.Edits) != 1 || after.Edits[0].Principal != "alice" || after.Edits[0].Reason != "no address" || string(after.Payload) != `{"n": 1.50}` {
		t.Errorf("%+v", after)
	}
	for _, body := range []string{`{}`, `{"dlq_ids": ["x"]}`, `{"dlq_ids": [` + strings.Repeat(`"`+d.DlqId+`",`, 1000) + `"` + d.DlqId + `"]}`} {
		if r := e.post(t, "/api/v1/dead-letters/requeue", body); r.status != http.StatusBadRequest || !strings.HasPrefix(r.problem(t).Field, "dlq_ids") {
			t.Errorf("%.40s: %d %s", body, r.status, r.body)
		}
	}
	testkit.VerifyLog(t, e.stores)
}

// refusedAs checks an answer that is about the caller, not a task.
func (r reply) refusedAs(t *testing.T, status int) {
	t.Helper()
	if p := r.problem(t); p.Status != status || p.Detail == "" || p.Code != "" {
		t.Errorf("got %+v, want status %d without a code", p, status)
	}
}

// Over the RPC: a discard by two people, with each refusal on the way.
func TestDiscardRPC(t *testing.T) {
	t.Parallel()
	e := operated(t)
	d := e.dead(t, &penstockv1.EnqueueRequest{Type: "report"})
	other := e.dead(t, &penstockv1.EnqueueRequest{Type: "report"})
	propose := &penstockv1.ProposeDiscardRequest{DlqIds: []string{d.DlqId}, Reason: "old"}
	_, err := e.rpc.ProposeDiscard(t.Context(), as("", propose))
	isCode(t, err, connect.CodeUnauthenticated)
	_, err = e.grpc.ProposeDiscard(t.Context(), as(aliceToken, &penstockv1.ProposeDiscardRequest{DlqIds: []string{d.DlqId}}))
	refusedRPC(t, err, connect.CodeInvalidArgument, protocol.CodeInputInvalid, "reason")
	_, err = e.grpc.ProposeDiscard(t.Context(), as(aliceToken, &penstockv1.ProposeDiscardRequest{Filter: &penstockv1.DeadLetterFilter{Status: "requeued"}, Reason: "x"}))
	refusedRPC(t, err, connect.CodeInvalidArgument, protocol.CodeInputInvalid, "filter.status")
	res, err := e.grpc.ProposeDiscard(t.Context(), as(aliceToken, propose))
	if err != nil {
		t.Fatal(err)
	}
	b := res.Msg.Batch
	if b.Status != "proposed" || b.CreatedBy != "alice" || b.Total != 1 || b.ExpiresAt == nil || b.Details.GetByType()[0].GetKey() != "report" {
		t.Errorf("%+v", b)
	}
	confirm := &penstockv1.ConfirmDiscardRequest{BatchId: b.BatchId, Digest: b.Digest}
	_, err = e.rpc.ConfirmDiscard(t.Context(), as("", confirm))
	isCode(t, err, connect.CodeUnauthenticated)
	_, err = e.rpc.ConfirmDiscard(t.Context(), as(aliceToken, confirm))
	isCode(t, err, connect.CodePermissionDenied)
	_, err = e.rpc.ConfirmDiscard(t.Context(), as(bobToken, &penstockv1.ConfirmDiscardRequest{BatchId: b.BatchId, Digest: b.Digest[:63]}))
	refusedRPC(t, err, connect.CodeFailedPrecondition, protocol.CodeInvalidTransition, "digest")
	e.do(t, http.MethodPost, "/api/v1/dead-letter-batches/"+b.BatchId+"/confirm", "application/json", fmt.Sprintf(`{"digest":%q}`, b.Digest), "Authorization", "Bearer "+aliceToken).refusedAs(t, http.StatusForbidden)
	if got := e.letter(t, d.DlqId).Status; got != "open" {
		t.Fatalf("%s before the confirmation", got)
	}
	if _, err = e.rpc.ConfirmDiscard(t.Context(), as(bobToken, confirm)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the batch is finished", func() (bool, string) {
		res, err := e.rpc.GetDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.GetDeadLetterBatchRequest{BatchId: b.BatchId}))
		if err != nil {
			return false, err.Error()
		}
		return res.Msg.Batch.Status == "finished" && res.Msg.Batch.Done == 1, res.Msg.Batch.Status
	})
	if got := e.letter(t, d.DlqId); got.Status != "discarded" || got.DiscardProposedBy != "alice" || got.DiscardConfirmedBy != "bob" || got.DiscardReason != "old" || got.DiscardBatchId != b.BatchId {
		t.Errorf("%+v", got)
	}
	second, err := e.rpc.ProposeDiscard(t.Context(), as(bobToken, &penstockv1.ProposeDiscardRequest{Filter: &penstockv1.DeadLetterFilter{Type: "report"}, Reason: "old"}))
	if err != nil || second.Msg.Batch.Total != 1 {
		t.Fatalf("%+v, %v", second, err)
	}
	if _, err = e.rpc.RejectDiscard(t.Context(), as(aliceToken, &penstockv1.RejectDiscardRequest{BatchId: second.Msg.Batch.BatchId, Reason: "no"})); err != nil {
		t.Fatal(err)
	}
	if got := e.letter(t, other.DlqId).Status; got != "open" {
		t.Errorf("%s after the rejection", got)
	}
	testkit.VerifyLog(t, e.stores)
}

func isCode(t *testing.T, err error, want connect.Code) {
	t.Helper()
	if connect.CodeOf(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A dry run freezes a set, tells what changed since, and is started as it is.
func TestDryRunRPC(t *testing.T) {
	t.Parallel()
	e := operated(t)
	var ids []string
	for range 3 {
		ids = append(ids, e.dead(t, &penstockv1.EnqueueRequest{Type: "report"}).DlqId)
	}
	batchID := protocol.NameID("a", "b").String()
	_, err := e.rpc.CreateDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.CreateDeadLetterBatchRequest{BatchId: batchID, DlqIds: ids}))
	refusedRPC(t, err, connect.CodeInvalidArgument, protocol.CodeInputInvalid, "batch_id")
	made, err := e.rpc.CreateDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.CreateDeadLetterBatchRequest{
		Filter: &penstockv1.DeadLetterFilter{Type: "report"}, DryRun: true, Rate: 1000, Reason: "template is back",
	}))
	if err != nil {
		t.Fatal(err)
	}
	b := made.Msg.Batch
	if b.Status != "draft" || b.Total != 3 || b.Details.GetByFingerprint()[0].GetCount() != 3 || b.Filter.GetType() != "report" || b.CreatedBy != "anonymous" {
		t.Errorf("%+v", b)
	}
	if _, err = e.rpc.RequeueDeadLetters(t.Context(), connect.NewRequest(&penstockv1.RequeueDeadLettersRequest{DlqIds: ids[:1]})); err != nil {
		t.Fatal(err)
	}
	if _, err = e.rpc.EditDeadLetter(t.Context(), connect.NewRequest(&penstockv1.EditDeadLetterRequest{DlqId: ids[1], Payload: []byte(`{"a":1}`)})); err != nil {
		t.Fatal(err)
	}
	e.dead(t, &penstockv1.EnqueueRequest{Type: "report"})
	got, err := e.rpc.GetDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.GetDeadLetterBatchRequest{BatchId: b.BatchId, Details: true}))
	if err != nil {
		t.Fatal(err)
	}
	// The requeued one's task may have failed again meanwhile: one or two new.
	if d := got.Msg.Batch.Details; d.SettledSince != 1 || d.EditedSince != 1 || d.NewMatches < 1 || d.NewMatches > 2 {
		t.Errorf("%+v", d)
	}
	_, err = e.rpc.ControlDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.ControlDeadLetterBatchRequest{BatchId: b.BatchId, Action: "pause"}))
	refusedRPC(t, err, connect.CodeFailedPrecondition, protocol.CodeInvalidTransition, "batch_id")
	if _, err = e.rpc.ControlDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.ControlDeadLetterBatchRequest{BatchId: b.BatchId, Action: "start"})); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the batch is finished", func() (bool, string) {
		res, err := e.rpc.ListDeadLetterBatches(t.Context(), connect.NewRequest(&penstockv1.ListDeadLetterBatchesRequest{Kind: "requeue", Status: "finished"}))
		if err != nil {
			return false, err.Error()
		}
		return len(res.Msg.Batches) == 1 && res.Msg.Batches[0].Done == 2 && res.Msg.Batches[0].Skipped == 1, fmt.Sprint(res.Msg.Batches)
	})
	statuses := map[string]int{}
	for token := ""; ; {
		items, err := e.rpc.ListDeadLetterBatchItems(t.Context(), connect.NewRequest(&penstockv1.ListDeadLetterBatchItemsRequest{BatchId: b.BatchId, PageSize: 2, PageToken: token}))
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range items.Msg.Items {
			statuses[i.Status]++
			if (i.Status == "done") != (i.TaskId != "") || (i.Status == "skipped") != (i.Detail != "") {
				t.Errorf("%+v", i)
			}
		}
		if token = items.Msg.NextPageToken; token == "" {
			break
		}
	}
	if statuses["done"] != 2 || statuses["skipped"] != 1 {
		t.Error(statuses)
	}
	_, err = e.rpc.GetDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.GetDeadLetterBatchRequest{BatchId: "01a22053-87eb-7cf2-8288-84109847dbe2"}))
	refusedRPC(t, err, connect.CodeNotFound, protocol.CodeNotFound, "batch_id")
}

func TestDeployment(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	res, err := e.rpc.GetDeployment(t.Context(), connect.NewRequest(&penstockv1.GetDeploymentRequest{}))
	if err != nil || len(res.Msg.Seed) != 64 || len(res.Msg.DeploymentId) != 36 || res.Msg.Version == "" {
		t.Fatalf("%+v, %v", res, err)
	}
	if seed := scan[string](t, e.conn(t), "SELECT encode(seed, 'hex') FROM deployment"); seed != res.Msg.Seed {
		t.Errorf("seed %s, stored %s", res.Msg.Seed, seed)
	}
}
