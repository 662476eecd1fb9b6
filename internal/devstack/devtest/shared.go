package devtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack"
)

const (
	// PostgresEnv names the environment variable with the URL of a Postgres
	// server to share instead of starting one. Its user must be a superuser or
	// own CREATEDB and pg_signal_backend.
	PostgresEnv = "PENSTOCK_TEST_POSTGRES_URL"

	// RedisEnv names the environment variable with the URL of a Redis server to
	// share instead of starting one.
	RedisEnv = "PENSTOCK_TEST_REDIS_URL"

	// opLimit bounds one operation of a helper on a shared server.
	opLimit = 60 * time.Second

	// Limits of the servers that a test process starts for itself.
	ownDatabases   = 256
	ownConnections = 200
)

// server is a shared server, found in the environment or started on first use.
type server struct {
	env     string
	options devstack.Options
	url     func(*devstack.Stack) string

	mu      sync.Mutex
	stack   *devstack.Stack
	failure error
}

var (
	postgresServer = server{
		env:     PostgresEnv,
		options: devstack.Options{Postgres: true, FsyncOff: true, MaxConnections: ownConnections, TempDir: MemoryDir()},
		url:     func(s *devstack.Stack) string { return s.PostgresURL },
	}
	redisServer = server{
		env:     RedisEnv,
		options: devstack.Options{Redis: true, RedisDatabases: ownDatabases, TempDir: MemoryDir()},
		url:     func(s *devstack.Stack) string { return s.RedisURL },
	}
)

// get returns the server's URL and fails the test when there is no server. A
// start that failed is not tried again.
func (s *server) get(t testing.TB) string {
	t.Helper()
	watch(t)
	if url := os.Getenv(s.env); url != "" {
		return url
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stack == nil && s.failure == nil {
		s.stack, s.failure = devstack.Start(context.Background(), s.options)
	}
	if s.failure != nil {
		t.Fatalf("devtest: this test needs a server (set %s to use one that is running): %v", s.env, s.failure)
	}
	return s.url(s.stack)
}

// stop stops the server if this process started it. The next get starts it
// again.
func (s *server) stop(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	stack := s.stack
	s.stack, s.failure = nil, nil
	if stack == nil {
		return nil
	}
	return stack.Stop(ctx)
}

// Shutdown stops the shared servers that this process started. Tests must have
// finished with them. Most packages call Main instead.
func Shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), opLimit)
	defer cancel()
	admin.mu.Lock()
	admin.close(ctx)
	admin.mu.Unlock()
	return errors.Join(postgresServer.stop(ctx), redisServer.stop(ctx))
}

// Runner runs a package's tests and then calls Shutdown. It is for packages
// that check for leaks in TestMain, as in goleak.VerifyTestMain(devtest.Runner{M: m}).
type Runner struct{ M *testing.M }

// Run runs the tests, as many at once as fit the machine unless -parallel says
// otherwise, and returns their exit code, or 1 when the tests passed
// but a shared server did not stop.
func (r Runner) Run() int {
	fit()
	code := r.M.Run()
	if err := Shutdown(); err != nil {
		fmt.Fprintf(os.Stderr, "devtest: stopping the shared servers: %v\n", err)
		code = max(code, 1)
	}
	return code
}

// Main runs a package's tests, stops the shared servers and exits the process
// with the tests' exit code. A package that uses Postgres, PostgresTemplate or
// Redis calls it from TestMain. Without it the servers still die with the
// process, and a later start removes their temporary directory.
func Main(m *testing.M) { os.Exit(Runner{M: m}.Run()) }

// Stack starts a private pair of servers for a test that flushes, kills or
// restarts them, and stops it when the test ends. The test fails at once if the
// servers do not start, and when they do not stop.
func Stack(t testing.TB, o devstack.Options) *devstack.Stack {
	t.Helper()
	watch(t)
	o.TempDir = cmp.Or(o.TempDir, MemoryDir())
	s, err := devstack.Start(t.Context(), o)
	if err != nil {
		t.Fatalf("devtest: starting a private stack: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Errorf("devtest: stopping a private stack: %v", err)
		}
	})
	return s
}
