package enqueue_test

import (
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// The name of a tenant is nobody else's scope, whether or not that tenant has
// keys: nobody can take a key of it first.
func TestNameOfAnotherTenantIsNoScope(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	tenant := func(name string) change { return func(r *penstockv1.EnqueueRequest) { r.Tenant = name } }
	// A scope of one's own, as long as there is no tenant of that name.
	mine := req(key("k"), scope("acme"))
	e.must(t, mine, false)
	e.must(t, req(tenant("acme")), false) // it has a task, but no key
	for i, o := range e.orch {
		for _, k := range []string{"k2", "k3"} {
			_, err := o.Enqueue(t.Context(), connect.NewRequest(req(key(k), scope("acme"))))
			if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeInputInvalid) || info.GetField() != "idempotency_scope" {
				t.Errorf("orchestrator %d, key %s: %v", i, k, err)
			}
		}
	}
	// What was asked for before that can be repeated, and its key is taken.
	e.must(t, mine, true)
	_, err := e.orch[0].Enqueue(t.Context(), connect.NewRequest(req(key("k"), tenant("acme"))))
	if info := rpc.InfoOf(err); info.GetField() != "idempotency_scope" {
		t.Errorf("a key that another tenant has in one's own scope: %v", err)
	}
	e.must(t, req(key("k2"), tenant("acme")), false)
	e.must(t, req(key("k2"), tenant("acme")), true)
	e.must(t, req(key("k2"), tenant("acme"), scope("acme")), true)
	if n := e.count(t, "tenants WHERE name IN ('acme', 'default')"); n != 2 {
		t.Errorf("%d tenants are noted, want 2", n)
	}
	e.wantCounts(t, 3, 2)
}
