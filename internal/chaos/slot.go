package main

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-dev/penstock/internal/chaosproxy"
)

// slot is the place of one process, which may die and be started again. Its
// proxies stay.
type slot struct {
	name string // worker-0
	// proxies by what they lead to: redis, postgres, http.
	proxies map[string]*chaosproxy.Proxy
	// steady: never killed or stopped for good, so that growth shows.
	steady bool
	dir    string
	// command returns the program's arguments and environment.
	command func(incarnation int) (path string, args, env []string)
	spawner *spawner

	fault sync.Mutex // held by the fault that works on the slot

	mu          sync.Mutex
	incarnation int
	cmd         *exec.Cmd
	gone        chan struct{} // closed when it has ended
	wanted      bool          // its end is
	lives       []life
	unasked     []string // ends that nobody asked for
}

// life is one process of a slot.
type life struct {
	log         string // of a worker's handlers
	from, until time.Time
}

// spawner starts all processes from one thread that never ends: the kernel
// ends them with it, and so with the harness.
type spawner struct{ jobs chan func() }

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	done := make(chan error)
	s.jobs <- func() { done <- cmd.Start() }
	return <-done
}

// start starts the slot's next process.
func (s *slot) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, args, env := s.command(s.incarnation)
	out, err := os.OpenFile(filepath.Join(s.dir, s.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", s.name, err)
	}
	defer func() { _ = out.Close() }()
	_, _ = fmt.Fprintf(out, "--- process %d of %s\n", s.incarnation, s.name)
	cmd := exec.Command(path, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}, env...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = out, out, procAttr()
	if err := s.spawner.start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	gone, n := make(chan struct{}), len(s.lives)
	s.lives = append(s.lives, life{log: args[len(args)-1], from: time.Now()})
	s.cmd, s.gone, s.wanted = cmd, gone, false
	s.incarnation++
	go func() {
		err := cmd.Wait()
		s.mu.Lock()
		s.lives[n].until = time.Now()
		if !s.wanted {
			s.unasked = append(s.unasked, fmt.Sprintf("%s (process %d) ended by itself: %v", s.name, n, err))
		}
		s.mu.Unlock()
		close(gone)
	}()
	return nil
}

// signal sends a signal to the process.
func (s *slot) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.cmd.Process.Signal(sig)
}

// end sends a signal that ends the process and waits until it has.
func (s *slot) end(sig syscall.Signal, limit time.Duration) error {
	s.mu.Lock()
	s.wanted = true
	gone := s.gone
	_ = s.cmd.Process.Signal(sig)
	s.mu.Unlock()
	select {
	case <-gone:
		return nil
	case <-time.After(limit):
		s.signal(syscall.SIGKILL)
		<-gone
		return fmt.Errorf("%s did not end within %s of %s", s.name, limit, sig)
	}
}

// alive reports whether the process runs.
func (s *slot) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.gone:
		return false
	default:
		return true
	}
}

// complain notes that the process did something that it must not.
func (s *slot) complain(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unasked = append(s.unasked, what)
}

// history returns the slot's processes, and what they did that they must not.
func (s *slot) history() (lives []life, unasked []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]life(nil), s.lives...), append([]string(nil), s.unasked...)
}

// panicked returns what the slot's log says about a panic or a data race.
func (s *slot) panicked() (found []string) {
	b, err := os.ReadFile(filepath.Join(s.dir, s.name+".log"))
	if err != nil {
		return []string{err.Error()}
	}
	for _, sign := range []string{"panic: ", "fatal error: ", "DATA RACE"} {
		if i := strings.Index(string(b), "\n"+sign); i >= 0 {
			found = append(found, s.name+": "+string(b[i+1:min(i+400, len(b))]))
		}
	}
	return found
}

// ready reports whether a URL answers 200.
func ready(url string) bool {
	res, err := (&http.Client{Timeout: 3 * time.Second}).Get(url)
	if err != nil {
		return false
	}
	_ = res.Body.Close()
	return res.StatusCode == http.StatusOK
}
