package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// A worker that dies is missed after the visibility timeout; minutes would be
// usual, the demo is short.
const visibility = 3 * time.Second

// survivors is the queue of the task whose worker is killed: only the
// processes started here work on it.
const survivors = "survivors"

// long runs for as long as its payload says.
var long = task.Define[nap]("demo.long")

type nap struct {
	MS int64 `json:"ms"`
}

// workerConfig is the configuration file of the processes.
const workerConfig = "queues: [" + survivors + "]\nconcurrency: 2\nvisibility_timeout: 3s\nhealth_listen: \"\"\nlog: {level: error}\nhandlers:\n  demo.long: {kind: sleep}\n"

// survive kills a worker process in the middle of a task, and shows how another
// one takes it over.
func (r *run) survive(ctx context.Context) error {
	r.printf("\n== When a worker dies ==\n")
	dir, err := os.MkdirTemp("", "penstock-demo-")
	if err != nil {
		return fmt.Errorf("make a directory for the worker's configuration: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "worker.yaml")
	if err := os.WriteFile(file, []byte(workerConfig), 0o600); err != nil {
		return fmt.Errorf("write the worker's configuration: %w", err)
	}
	doomed, err := r.startWorker(file)
	if err != nil {
		return err
	}
	defer doomed.kill()
	e, err := long.Enqueue(ctx, r.client, nap{MS: 1500}, task.Queue(survivors))
	if err != nil {
		return err
	}
	if err := r.running(ctx, e.TaskID, doomed); err != nil {
		return err
	}
	r.printf("\nA worker process (pid %d) runs task %s; now it gets kill -9. Another one is started.\n", doomed.pid, e.TaskID)
	killed := time.Now()
	doomed.kill()
	heir, err := r.startWorker(file)
	if err != nil {
		return err
	}
	defer heir.kill()
	t, err := r.client.Wait(ctx, "", e.TaskID)
	if err != nil {
		return err
	}
	r.printf("%s %s after the kill; the visibility timeout is %s, the task takes 1.5s.\n", t.State, time.Since(killed).Round(10*time.Millisecond), visibility)
	if err := r.command(ctx, 0, "", "orchestrator", "task", "events", e.TaskID); err != nil {
		return err
	}
	return r.reclaimed(ctx, t)
}

// reclaimed checks what the log says.
func (r *run) reclaimed(ctx context.Context, t *client.Task) error {
	events, err := r.events(ctx, t.TaskId)
	if err != nil {
		return err
	}
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
	}
	want := []string{"task.created", "task.claimed", "task.reclaimed", "task.interrupted", "task.queued", "task.claimed", "task.succeeded"}
	if !slices.Equal(types, want) {
		return fmt.Errorf("task %s has events %v, want %v", t.TaskId, types, want)
	}
	if t.State != string(protocol.StateSucceeded) || t.Attempt != 1 || t.Interruptions != 1 {
		return fmt.Errorf("task %s is %s at attempt %d with %d interruptions, want it succeeded at the first with one", t.TaskId, t.State, t.Attempt, t.Interruptions)
	}
	if from, to := events[1].WorkerId, events[5].WorkerId; from == to || events[2].WorkerId != from {
		return fmt.Errorf("task %s was taken from %s, claimed by %s and then by %s", t.TaskId, events[2].WorkerId, from, to)
	}
	return nil
}

// running waits until the task's claim is on record.
func (r *run) running(ctx context.Context, id string, w *workerProcess) error {
	for {
		t, err := r.client.Get(ctx, "", id)
		if err != nil {
			return err
		}
		if t.State == string(protocol.StateRunning) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("task %s is %s, want it running", id, t.State)
		case <-w.done:
			return fmt.Errorf("the worker ended by itself: %w", w.err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// workerProcess is a process of the worker program.
type workerProcess struct {
	pid  int
	proc *os.Process
	done chan struct{} // closed when it has ended
	err  error         // of Wait, once done is closed
}

// startWorker starts the worker program that lies beside this one. It dies with
// this process; the kernel ties that to the thread that started it.
func (r *run) startWorker(config string) (*workerProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the worker program: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), "worker")
	cmd := exec.Command(program, "--config", config)
	cmd.Env = append(os.Environ(), "PENSTOCK_REDIS_URL="+r.system.RedisURL)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = procAttr()
	w := &workerProcess{done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			w.err = cmd.Wait()
			close(w.done)
		}
	}()
	if err := <-started; err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%s is missing: make build makes it beside the orchestrator", program)
		}
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	w.proc, w.pid = cmd.Process, cmd.Process.Pid
	return w, nil
}

// kill ends the process at once and waits until it has.
func (w *workerProcess) kill() {
	_ = w.proc.Kill()
	<-w.done
}
