package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/testkit"
)

// process is a running program. It is killed when the test ends.
type process struct {
	cmd  *exec.Cmd
	out  *output
	done chan struct{} // closed when it has ended
	err  error         // of Wait, once done is closed
}

// output collects what a program writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if os.Getenv("PENSTOCK_TEST_LOG") != "" {
		_, _ = os.Stderr.Write(p)
	}
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// tail is the end of the output, for failures.
func (o *output) tail() string {
	s := o.String()
	return s[max(0, len(s)-3000):]
}

// start runs one of the programs with additional environment variables and
// otherwise a clean environment.
func start(t *testing.T, program string, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(filepath.Join(bin, program), args...), out: &output{}, done: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, env...)
	for _, v := range os.Environ() { // another clock is that of all programs
		if strings.HasPrefix(v, "TEST_CLOCK") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", program, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if out := p.out.String(); strings.Contains(out, "panic:") || strings.Contains(out, "DATA RACE") {
			t.Errorf("%s panicked or raced", program)
		}
		if t.Failed() {
			t.Logf("end of the output of %s %s:\n%s", program, strings.Join(args, " "), p.out.tail())
		}
	})
	return p
}

// kill is kill -9; it returns when the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop sends a signal, waits for the end, and fails unless the exit code is 0.
func (p *process) stop(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal: %v", err)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("%s ended with code %d after %s:\n%s", filepath.Base(p.cmd.Path), code, sig, p.out.tail())
	}
}

// wait waits for the end and returns the exit code.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(testkit.Deadline):
		t.Fatalf("%s did not end within %s:\n%s", filepath.Base(p.cmd.Path), testkit.Deadline, p.out.tail())
		return -1
	}
}

// ended reports whether the process has.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// says waits until the program has written a text.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%s says %q", filepath.Base(p.cmd.Path), text), func() (bool, string) {
		if strings.Contains(p.out.String(), text) {
			return true, ""
		}
		if p.ended() {
			t.Fatalf("%s ended (%v) without saying %q:\n%s", filepath.Base(p.cmd.Path), p.err, text, p.out.tail())
		}
		return false, p.out.tail()
	})
}

// workerID returns the id under which a worker program started.
func (p *process) workerID(t *testing.T) string {
	t.Helper()
	m := regexp.MustCompile(`worker started worker_id=(\S+)`).FindStringSubmatch(p.out.String())
	if m == nil {
		t.Fatalf("no worker id in the output:\n%s", p.out.tail())
	}
	return m[1]
}

// freeAddr returns an address that was free just now. A restarted program
// needs the address it had before.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// get returns status and body of a URL, 0 if nobody answers.
func get(url string) (int, string) {
	res, err := (&http.Client{Timeout: 5 * time.Second}).Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// waitReady waits until /readyz answers 200.
func waitReady(t *testing.T, addr string) {
	t.Helper()
	testkit.Eventually(t, addr+" is ready", func() (bool, string) {
		code, body := get("http://" + addr + "/readyz")
		return code == http.StatusOK, fmt.Sprint(code, " ", body)
	})
}

// system is where the programs of a test meet.
type system struct {
	testkit.Stores
	t *testing.T
	// visibility is the visibility timeout of all programs.
	visibility time.Duration
}

// orchestrator starts `orchestrator serve` on an address.
func (s *system) orchestrator(addr string, env ...string) *process {
	s.t.Helper()
	return s.serve("orchestrator", addr, env...)
}

// serve is orchestrator with another build of the program.
func (s *system) serve(program, addr string, env ...string) *process {
	s.t.Helper()
	return start(s.t, program, append([]string{
		"PENSTOCK_SERVER_LISTEN=" + addr, "PENSTOCK_POSTGRES_URL=" + s.PostgresURL, "PENSTOCK_REDIS_URL=" + s.OrchestratorRedis(),
		"PENSTOCK_POSTGRES_MAX_CONNS=6", "PENSTOCK_RECOVERY_VISIBILITY_TIMEOUT=" + s.visibility.String(),
		"PENSTOCK_RECOVERY_RECONCILE_INTERVAL=1s", "PENSTOCK_RECOVERY_INSTANCE_TTL=1s", "PENSTOCK_RESULT_TAKE_OVER=1s",
		"PENSTOCK_RETENTION_TRIM_GRACE=2s", "PENSTOCK_LOG_FORMAT=text",
	}, env...), "serve")
}

// echoConfig declares one handler for type "echo".
const echoConfig = "handlers:\n  echo: {kind: echo}\n  sleep: {kind: sleep}\n"

// gated declares a handler for type "gated" that runs until open is called.
func gated(t *testing.T) (config string, open func()) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "open")
	const wait = `while [ ! -e "$0" ]; do sleep 0.02; done; echo 1`
	return fmt.Sprintf("handlers:\n  gated: {kind: exec, command: [sh, -c, '%s', %q]}\n", wait, file), func() { must(t, os.WriteFile(file, nil, 0o600)) }
}

// worker starts a worker program with a configuration file.
func (s *system) worker(config string, env ...string) *process {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "worker.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return start(s.t, "worker", append([]string{
		"TMPDIR=" + s.t.TempDir(), // a worker that is killed can't remove the directories of its programs
		"PENSTOCK_REDIS_URL=" + s.WorkerRedis(), "PENSTOCK_VISIBILITY_TIMEOUT=" + s.visibility.String(), "PENSTOCK_LOG_FORMAT=text",
	}, env...), "--config", file)
}
