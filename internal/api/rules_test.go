package api_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// TestTestRuleIsBounded: a sample that no task could have is refused, and a rule
// that would run for hours is told from one that does not.
func TestTestRuleIsBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	rules := testkit.Client(t, e.orch.URL).Approvals()
	try := func(expression string, payload []byte) (*penstockv1.TestRuleResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		res, err := rules.TestRule(ctx, connect.NewRequest(&penstockv1.TestRuleRequest{Expression: expression, Task: &penstockv1.SampleTask{Payload: payload}}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	for _, open := range []string{"[", `{"a":`} {
		_, err := try("true", bytes.Repeat([]byte(open), 4_000_000/len(open)))
		refusedRPC(t, err, connect.CodeInvalidArgument, protocol.CodeInputInvalid, "task.payload")
	}
	list := []byte("[" + strings.Repeat("0,", 100_000) + "0]")
	for _, nested := range []string{
		"task.payload.all(a, task.payload.all(b, task.payload == task.payload))",
		"task.payload.all(a, task.payload.all(b, task.payload.all(c, true)))",
	} {
		if out, err := try(nested, list); err != nil || !out.Stops || !strings.Contains(out.Error, "too much work") {
			t.Errorf("%s: %v, %v", nested, out, err)
		}
	}
	if out, err := try("task.payload.exists(x, x == 1)", list); err != nil || out.Stops || out.Error != "" {
		t.Errorf("an ordinary rule: %v, %v", out, err)
	}
}
