package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/internal/gate"
	"github.com/penstock-dev/penstock/internal/testkit"
)

func TestGateUsage(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	verify := func(args ...string) ran {
		t.Helper()
		return run(t, Orchestrator(), "", append([]string{"verify", "--gate-b2"}, args...)...)
	}
	want(t, "task ids", verify("abc"), ExitUsage, "takes no task ids")
	for _, flag := range []string{"--all", "--since=2h", "--until=1h", "--tenant=x", "--no-redis", "--max-differences=3"} {
		want(t, flag, verify(flag), ExitUsage, strings.SplitN(flag, "=", 2)[0], "exclude each other")
	}
	want(t, "a bad format", verify("-o", "yaml"), ExitUsage, "table or json")
	want(t, "no Redis", verify("--data-dir", t.TempDir()), ExitUsage, "redis.url", "no orchestrator dev runs in")
	want(t, "a bad server", verify("--redis-url", s.RedisURL, "--server", "x"), ExitUsage, "http:// or https://")
	want(t, "no orchestrator", verify("--redis-url", s.RedisURL, "--server", "http://127.0.0.1:1"), ExitFailed, "no orchestrator answers")
}

// A replay that fails shows what was expected, what was found, and why.
func TestGateTable(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := gateTable(&out, &gate.Report{Queue: "gate-b2-1", Results: []gate.Result{
		{ReplayID: "RP-001", TraceID: "t1", JobID: "j1", StatusTransition: "a -> b", ExpectedTransition: "a -> b", Passed: true},
		{
			ReplayID: "RP-004", TraceID: "t4", JobID: "j4", RetryCount: 2, StatusTransition: "a -> c", ExpectedRetryCount: 3, ExpectedTransition: "a -> d",
			DLQID: "d4", ErrorCode: "E", Wrong: []string{"retry_count is 2, want 3", "the event\nlog says: a -> c"},
		},
	}})
	const want = `REPLAY  RESULT  RETRY_COUNT  JOB_ID  TRACE_ID    STATUS_TRANSITION
RP-001  PASS    0            j1      t1          a -> b
                0                    expected    a -> b
RP-004  FAIL    2            j4      t4          a -> c
                3                    expected    a -> d
                                     dlq_id      d4
                                     error_code  E
                                     wrong       retry_count is 2, want 3
                                     wrong       the event log says: a -> c

Gate B-2: 1 of 2 replays passed, on queue gate-b2-1.
`
	if err != nil || out.String() != want {
		t.Errorf("%v:\n%s", err, out.String())
	}
}
