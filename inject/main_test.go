package inject_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/task"
)

// dieEnv makes this test program one that runs an execution which must not
// return, instead of tests.
const dieEnv = "PENSTOCK_INJECT_TEST_DIE"

func TestMain(m *testing.M) {
	if os.Getenv(dieEnv) != "" {
		defer fmt.Println("a deferred function ran")
		_, err := inject.Wrap(inject.Plan{Mode: inject.ProcessRestartInterrupt, Times: 1}, succeed)(context.Background(), &task.Raw{Info: task.Info{Delivery: 1}})
		fmt.Println("the handler returned", err)
		return
	}
	devtest.Main(m)
}

func succeed(context.Context, *task.Raw) (json.RawMessage, error) {
	return json.RawMessage(`"done"`), nil
}

func TestAProcessRestartKillsTheProcess(t *testing.T) {
	t.Parallel()
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), dieEnv+"=1")
	out, err := child.CombinedOutput()
	status, _ := child.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() || status.Signal() != syscall.SIGKILL || len(out) > 0 {
		t.Errorf("the process ended with %v and said %q; want death by SIGKILL in silence", err, out)
	}
}
