package tasktest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/tasktest"
)

// Charge is a task type that producers and workers share.
var Charge = task.Define[Order]("order.charge")

// Order is its payload.
type Order struct {
	Card  string
	Cents int
}

var errDeclined = errors.New("card declined")

// charge is the handler under test.
func charge(_ context.Context, j *task.Job[Order]) error {
	switch {
	case j.Args.Card == "declined":
		return task.Permanent(errDeclined)
	case j.Args.Card == "bank away":
		return task.RetryAfter(time.Minute, errors.New("bank answered 503"))
	}
	return j.SetResult(map[string]string{"receipt": "r-" + j.IdempotencyKey})
}

// In a test of your own, t is the test's *testing.T.
func Example() {
	t := &testing.T{}

	out := tasktest.Run(t, Charge, charge, Order{Card: "visa", Cents: 500}, tasktest.IdempotencyKey("order-42"))
	var result struct{ Receipt string }
	if err := out.Decode(&result); err != nil {
		t.Fatal(err)
	}
	fmt.Println(out.Kind, result.Receipt)

	out = tasktest.Run(t, Charge, charge, Order{Card: "declined"})
	fmt.Println(out, errors.Is(out.Err, errDeclined))

	out = tasktest.Run(t, Charge, charge, Order{Card: "bank away"})
	fmt.Println(out, "again in", out.Delay)

	out = tasktest.Run(t, Charge, charge, Order{Card: "bank away"}, tasktest.Attempt(4))
	fmt.Println(out)

	// Output:
	// succeeded r-order-42
	// failed → dlq_pending TASK_EXECUTION_FAILED: card declined true
	// failed → retrying TASK_EXECUTION_FAILED: bank answered 503 again in 1m0s
	// failed → dlq_pending TASK_EXECUTION_FAILED: bank answered 503
}
