package api_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// The effects of a key that was used again are found by the key as its caller knows
// it, unless those of an earlier task could be meant.
func TestEffectsOfAKeyThatWasUsedAgain(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	o := testkit.StartOrchestrator(t, s.Config())
	c := testkit.Client(t, o.URL)
	r := testkit.NewRig(t, s, s.Config())
	// act has a task of the key, or of the name, run effects, and returns its ledger key.
	act := func(id, key string, effects ...string) string {
		t.Helper()
		testkit.Eventually(t, "the task is enqueued", func() (bool, string) {
			_, err := c.RPC().Enqueue(t.Context(), connect.NewRequest(&penstockv1.EnqueueRequest{Type: "t", TaskId: id, IdempotencyKey: key}))
			if err != nil {
				return false, err.Error()
			}
			return true, ""
		})
		h := r.Fetch(t, "w", 1)[0]
		for _, name := range effects {
			_, err := c.Effects().ReserveEffect(t.Context(), connect.NewRequest(&penstockv1.ReserveEffectRequest{
				Id: h.ID.String(), Delivery: h.Delivery, WorkerId: "w", MessageId: h.MessageID, Name: name, Token: uuid.NewString(),
			}))
			if err != nil {
				t.Fatal(err)
			}
		}
		r.Report(t, h.Outcome(protocol.OutcomeSucceeded))
		r.Ack(t, h)
		r.WaitState(t, protocol.StateSucceeded, h.ID)
		return h.IdempotencyKey
	}
	get := func(kind, key, name string) (string, error) {
		t.Helper()
		res, err := c.Effects().GetEffect(t.Context(), connect.NewRequest(&penstockv1.GetEffectRequest{Key: key, KeyKind: kind, Name: name}))
		if err != nil {
			return "", err
		}
		return res.Msg.Effect.Key, nil
	}
	first := act("", "order-42", "charge", "mail")
	if _, err := r.DB.Exec(t.Context(), "DELETE FROM idempotency_keys"); err != nil {
		t.Fatal(err)
	}
	second := act("", "order-42", "charge", "ship")
	if first != "order-42" || second == first {
		t.Fatalf("the keys are %q and %q", first, second)
	}
	for _, q := range []struct{ kind, key, name, want string }{
		{"", "order-42", "mail", first},
		{"", "order-42", "ship", second},
		{"key", "order-42", "ship", second},
		{"key", "order-42", "charge", first}, // exactly that
		{"", second, "charge", second},
		{"key", second, "charge", second},
	} {
		if got, err := get(q.kind, q.key, q.name); err != nil || got != q.want {
			t.Errorf("%s of %s %s: %q, %v; want %q", q.name, q.kind, q.key, got, err, q.want)
		}
	}
	_, err := get("", "order-42", "charge")
	if info := rpc.InfoOf(err); info.GetField() != "key_kind" || !strings.Contains(info.GetMessage(), `key "order-42", of key "`+second+`"`) {
		t.Errorf("either could be meant: %v", err)
	}
	for _, q := range [][3]string{{"task", "order-42", "charge"}, {"", "order-42", "other"}, {"", "order-43", "charge"}} {
		if got, err := get(q[0], q[1], q[2]); rpc.InfoOf(err).GetCode() != string(protocol.CodeNotFound) {
			t.Errorf("%v: %q, %v", q, got, err)
		}
	}
	// A name, after tasks were removed.
	if _, err := r.DB.Exec(t.Context(), "UPDATE event_horizon SET xid = '1'"); err != nil {
		t.Fatal(err)
	}
	named := act("order-42", "", "pack")
	if named == "order-42" {
		t.Fatalf("the key is %q", named)
	}
	for _, kind := range []string{"", "task"} {
		if got, err := get(kind, "order-42", "pack"); err != nil || got != named {
			t.Errorf("pack of %q: %q, %v; want %q", kind, got, err, named)
		}
	}
}
