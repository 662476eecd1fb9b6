package e2e

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// A worker that was killed, as if its host were gone, is evicted: its task runs
// elsewhere at once, although its lease would hold for an hour. With heartbeats or
// without, it is not evicted by mistake while it has just been seen.
func TestAKilledWorkerIsEvicted(t *testing.T) {
	t.Parallel()
	for name, beats := range map[string]bool{"with heartbeats": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &system{Stores: testkit.NewStores(t), t: t, visibility: time.Hour}
			cfg := s.Config()
			cfg.Recovery.VisibilityTimeout = s.visibility
			o := testkit.StartOrchestrator(t, cfg)
			c := testkit.Client(t, o.URL)
			var env []string
			if beats {
				env = append(env, "PENSTOCK_ORCHESTRATOR_URL="+o.URL)
			}
			config, open := gated(t)
			w := s.worker(config, env...)
			id := enqueue(t, c, "gated", `1`)
			waitRunning(t, c, id)
			worker := w.workerID(t)
			orchestrator := func(args ...string) (string, error) {
				var out bytes.Buffer
				cmd := exec.Command(filepath.Join(bin, "orchestrator"), append([]string{"worker", "--server", o.URL}, args...)...) //nolint:gosec // ours
				cmd.Stdout, cmd.Stderr = &out, &out
				err := cmd.Run()
				return out.String(), err
			}
			if out, err := orchestrator("list"); err != nil || !strings.Contains(out, worker) || !strings.Contains(out, id+"  gated") {
				t.Errorf("list: %v\n%s", err, out)
			}
			if beats {
				if out, err := orchestrator("evict", worker, "--reason", "by mistake"); err == nil || !strings.Contains(out, "has sent a heartbeat") {
					t.Errorf("one that lives is evicted: %v\n%s", err, out)
				}
			}
			w.kill()
			open() // for what it left behind
			s.worker("handlers:\n  gated: {kind: echo}\n").says(t, "worker started")
			if out, err := orchestrator("evict", worker, "--reason", "its host is gone", "--force"); err != nil || !strings.Contains(out, worker+" is evicted: 1 tasks are due again; it held 1 entries") {
				t.Fatalf("evict: %v\n%s", err, out)
			}
			got, err := c.Wait(t.Context(), "", id)
			if err != nil || got.State != string(protocol.StateSucceeded) || got.Delivery != 2 || got.Interruptions != 1 {
				t.Errorf("%v, %v; want it run elsewhere", got, err)
			}
			if out, err := orchestrator("evict", "nobody", "--reason", "r"); err == nil || !strings.Contains(out, `no worker is called "nobody"`) {
				t.Errorf("evict of nobody: %v\n%s", err, out)
			}
			testkit.VerifyLog(t, s.Stores)
		})
	}
}
