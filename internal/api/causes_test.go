package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Dead letters are found by what failed last, with or without retries before, and
// by why they ended; both are told.
func TestDeadLettersByTheirCause(t *testing.T) {
	t.Parallel()
	e := operated(t)
	e.stores.StartWorker(t, worker.Options{Queues: []string{"slow"}}, func(w *worker.Worker) {
		w.HandleRaw("slow", func(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
			if string(r.Payload) == `"broken"` {
				return nil, errors.New("broken")
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
	})
	slow := func(payload string, retries int32) *penstockv1.DeadLetter {
		timeout := int32(50)
		return e.dead(t, &penstockv1.EnqueueRequest{Type: "slow", Queue: "slow", Payload: []byte(payload), MaxRetries: &retries, TimeoutMs: &timeout})
	}
	late, again, broken := slow(`"late"`, 0), slow(`"again"`, 1), slow(`"broken"`, 1)
	report := e.dead(t, &penstockv1.EnqueueRequest{Type: "report"}) // permanent: never retried

	for _, c := range []struct {
		d            *penstockv1.DeadLetter
		ended, cause string
	}{
		{late, "TASK_RETRY_EXHAUSTED", "TASK_TIMEOUT"}, {again, "TASK_RETRY_EXHAUSTED", "TASK_TIMEOUT"},
		{broken, "TASK_RETRY_EXHAUSTED", "TASK_EXECUTION_FAILED"}, {report, "TASK_EXECUTION_FAILED", "TASK_EXECUTION_FAILED"},
	} {
		if c.d.ErrorCode != c.ended || c.d.CauseCode != c.cause {
			t.Errorf("%s of %s: ended with %s, because of %s", c.d.DlqId, c.d.Type, c.d.ErrorCode, c.d.CauseCode)
		}
		got := object(t, e.get(t, "/api/v1/tasks/"+c.d.TaskId).body)["task"].(map[string]any)
		if got["last_error_code"] != c.ended || got["cause_code"] != c.cause {
			t.Errorf("task %s: %v, %v", c.d.TaskId, got["last_error_code"], got["cause_code"])
		}
	}
	if late.Fingerprint != again.Fingerprint || late.Fingerprint == broken.Fingerprint {
		t.Errorf("fingerprints %s, %s and %s: the first two have one cause", late.Fingerprint, again.Fingerprint, broken.Fingerprint)
	}
	for code, want := range map[string][]*penstockv1.DeadLetter{
		"TASK_TIMEOUT": {late, again}, "TASK_EXECUTION_FAILED": {broken, report}, "TASK_RETRY_EXHAUSTED": {late, again, broken}, "TASK_INPUT_INVALID": nil, "TASK": nil,
	} {
		res, err := e.rpc.ListDeadLetters(t.Context(), connect.NewRequest(&penstockv1.ListDeadLettersRequest{ErrorCode: code}))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := idsOf(res.Msg.DeadLetters), idsOf(want); got != want {
			t.Errorf("list of %s: %s, want %s", code, got, want)
		}
		groups, err := e.rpc.GroupDeadLetters(t.Context(), connect.NewRequest(&penstockv1.GroupDeadLettersRequest{ErrorCode: code, GroupBy: "type"}))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, g := range groups.Msg.Groups {
			n += int(g.Count)
		}
		if n != len(want) {
			t.Errorf("groups of %s count %d, want %d", code, n, len(want))
		}
	}
	groups, err := e.rpc.GroupDeadLetters(t.Context(), connect.NewRequest(&penstockv1.GroupDeadLettersRequest{GroupBy: "error_code"}))
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]int64{}
	for _, g := range groups.Msg.Groups {
		keys[g.Key] = g.Count
	}
	if got := fmt.Sprint(keys); got != "map[TASK_EXECUTION_FAILED:2 TASK_TIMEOUT:2]" {
		t.Errorf("by code: %s", got)
	}
	e.requeueCause(t, late, again)
}

// requeueCause requeues a batch of timeouts, and tells what came later.
func (e *env) requeueCause(t *testing.T, want ...*penstockv1.DeadLetter) {
	t.Helper()
	made, err := e.rpc.CreateDeadLetterBatch(t.Context(), as(aliceToken, &penstockv1.CreateDeadLetterBatchRequest{
		Filter: &penstockv1.DeadLetterFilter{ErrorCode: "TASK_TIMEOUT"}, DryRun: true,
	}))
	if err != nil {
		t.Fatal(err)
	}
	id := made.Msg.Batch.BatchId
	if made.Msg.Batch.Total != int32(len(want)) {
		t.Errorf("a batch of %d timeouts, want %d", made.Msg.Batch.Total, len(want))
	}
	items, err := e.rpc.ListDeadLetterBatchItems(t.Context(), connect.NewRequest(&penstockv1.ListDeadLetterBatchItemsRequest{BatchId: id}))
	if err != nil {
		t.Fatal(err)
	}
	var in []*penstockv1.DeadLetter
	for _, i := range items.Msg.Items {
		in = append(in, &penstockv1.DeadLetter{DlqId: i.DlqId})
	}
	if got, want := idsOf(in), idsOf(want); got != want {
		t.Errorf("the batch has %s, want %s", got, want)
	}
	retries, timeout := int32(0), int32(50)
	later := e.dead(t, &penstockv1.EnqueueRequest{Type: "slow", Queue: "slow", Payload: []byte(`"later"`), MaxRetries: &retries, TimeoutMs: &timeout})
	testkit.Eventually(t, "the batch tells of one that came later", func() (bool, string) {
		b, err := e.rpc.GetDeadLetterBatch(t.Context(), connect.NewRequest(&penstockv1.GetDeadLetterBatchRequest{BatchId: id, Details: true}))
		if err != nil {
			return false, err.Error()
		}
		return b.Msg.Batch.Details.NewMatches == 1, fmt.Sprint(later.DlqId, b.Msg.Batch.Details)
	})
	if r := e.get(t, "/api/v1/dead-letters?error_code=TASK_TIMEOUT"); r.status != http.StatusOK || strings.Count(r.body, `"cause_code":"TASK_TIMEOUT"`) != len(want)+1 {
		t.Errorf("REST: %d %s", r.status, r.body)
	}
}

func idsOf(ds []*penstockv1.DeadLetter) string {
	ids := make([]string, len(ds))
	for i, d := range ds {
		ids[i] = d.DlqId
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}
