package result_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

func TestMain(m *testing.M) { devtest.Main(m) }

// rig runs dispatch, and nothing that applies outcomes.
func rig(t *testing.T) *testkit.Rig {
	t.Helper()
	s := testkit.NewStores(t)
	r := testkit.NewRig(t, s, s.Config())
	r.StartDispatch(t)
	return r
}

// fetched enqueues n tasks and has a consumer take them.
func fetched(t *testing.T, r *testkit.Rig, n int) []testkit.Held {
	t.Helper()
	r.Enqueue(t, testkit.Requests(n, "t")...)
	hs := r.Fetch(t, "w", n)
	return hs
}

func succeeded(h testkit.Held) *protocol.Outcome {
	o := h.Outcome(protocol.OutcomeSucceeded)
	o.Result = []byte(`{"ok":true}`)
	return o
}

func failed(h testkit.Held, retryable bool) *protocol.Outcome {
	o := h.Outcome(protocol.OutcomeFailed)
	o.Code, o.Error, o.Retryable = protocol.CodeExecutionFailed, "boom", retryable
	return o
}

// applied waits until every outcome is applied.
func applied(t *testing.T, r *testkit.Rig) {
	t.Helper()
	testkit.Eventually(t, "all outcomes are applied", func() (bool, string) {
		i, err := r.Client.Info(t.Context(), protocol.StreamResult, protocol.GroupOrchestrators)
		return err == nil && i.Undelivered+i.Pending == 0, fmt.Sprintf("%+v, %v", i, err)
	})
}

func events(t *testing.T, r *testkit.Rig, id protocol.ID, want ...string) {
	t.Helper()
	if got := testkit.EventTypes(t, r.Stores, id); got != strings.Join(want, " ") {
		t.Errorf("task %s: events %q, want %q", id, got, strings.Join(want, " "))
	}
}
