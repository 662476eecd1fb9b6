package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

// kill -9 of a worker between its http call and the ledger's learning of it: nobody
// knows, so nobody calls again; a person looks, and the task goes on with what they
// found. The receiver has one call.
func TestKillAWorkerBetweenEffectAndRecord(t *testing.T) {
	t.Parallel()
	s := &system{Stores: testkit.NewStores(t), t: t, visibility: 2 * time.Second}
	file := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(file, []byte("alice "+token("alice")+" roles=operator,payloads\nbob "+token("bob")+" roles=producer\nw "+token("w")+" roles=worker\n"), 0o600))
	addr := freeAddr(t)
	s.orchestrator(addr, "PENSTOCK_AUTH_TOKENS_FILE="+file, "PENSTOCK_EFFECTS_DOUBT_AFTER=1s")
	waitReady(t, addr)
	var calls atomic.Int32
	called := make(chan struct{}, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then a lost connection is noticed
		calls.Add(1)
		called <- struct{}{}
		<-r.Context().Done() // the worker is gone
	}))
	t.Cleanup(receiver.Close)
	config := fmt.Sprintf("concurrency: 4\nhttp: {allow: [127.0.0.1], allow_private: true}\nhandlers:\n  pay: {kind: http, url: %q}\n", receiver.URL)
	env := []string{"PENSTOCK_ORCHESTRATOR_URL=http://" + addr, "PENSTOCK_ORCHESTRATOR_TOKEN=" + token("w")}
	first := s.worker(config, env...)
	alice, err := client.NewWith("http://"+addr, client.Options{Token: token("alice")})
	must(t, err)
	t.Cleanup(func() { _ = alice.Close() })
	bob, err := client.NewWith("http://"+addr, client.Options{Token: token("bob")})
	must(t, err)
	t.Cleanup(func() { _ = bob.Close() })
	e, err := bob.EnqueueTask(t.Context(), &task.Request{Type: "pay", Payload: json.RawMessage(`{"n":1}`), Key: "order-1"})
	must(t, err)
	<-called
	first.kill()
	s.worker(config, env...)
	state := func(want string) *client.Task {
		var got *client.Task
		testkit.Eventually(t, "the task is "+want, func() (bool, string) {
			if got, err = alice.Get(t.Context(), "", e.TaskID); err != nil {
				return false, err.Error()
			}
			return got.State == want, got.State
		})
		return got
	}
	state("waiting_approval")
	_, err = alice.Effects().ResolveEffect(t.Context(), connect.NewRequest(&penstockv1.ResolveEffectRequest{
		Key: "order-1", Name: "http", Resolution: "done", Result: []byte(`{"paid":true}`), Reason: "the receiver has it",
	}))
	must(t, err)
	if done := state("succeeded"); string(done.Result) != `{"paid":true}` || calls.Load() != 1 {
		t.Errorf("result %s, %d calls", done.Result, calls.Load())
	}
	testkit.VerifyLog(t, s.Stores)
}
