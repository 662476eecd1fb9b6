package inject_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/inject"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/tasktest"
	"github.com/penstock-dev/penstock/worker"
)

// Order is the payload of Charge.
type Order struct{ Cents int }

// Charge is a task type that producers and workers share.
var Charge = task.Define[Order]("order.charge")

// charge is the handler under test.
func charge(_ context.Context, j *task.Job[Order]) error {
	fmt.Println("  charged", j.Args.Cents, "with key", j.IdempotencyKey)
	return nil
}

// The card is charged, but its outcome is lost with the process: what does the
// second execution do? In a test of your own, t is the test's *testing.T.
func ExampleFunc() {
	t := &testing.T{}
	dies := inject.Func(inject.Plan{
		Mode: inject.ProcessRestartInterrupt, Times: 1, AfterHandler: true,
		Restart: func() { fmt.Println("  the process dies") }, // instead of killing this one
	}, charge)

	for delivery := range int64(2) {
		out := tasktest.Run(t, Charge, dies, Order{500}, tasktest.IdempotencyKey("order-42"), tasktest.Delivery(delivery+1))
		fmt.Println(out.Kind, "→", out.State)
	}
	// Output:
	//   charged 500 with key order-42
	//   the process dies
	// lost → interrupted
	//   charged 500 with key order-42
	// succeeded → succeeded
}

func ExampleWrap() {
	t := &testing.T{}
	slow := inject.Wrap(inject.Plan{Mode: inject.Timeout, Attempts: []int{1}}, task.Typed(charge))

	for attempt := range 2 {
		fmt.Println(tasktest.RunRaw(t, "order.charge", slow, []byte(`{"Cents":500}`), tasktest.Attempt(attempt+1), tasktest.Timeout(10*time.Millisecond)))
	}
	// Output:
	// failed → retrying TASK_TIMEOUT: start-to-close timeout: injected timeout
	//   charged 500 with key test-task
	// succeeded → succeeded
}

// A worker of a staging system: one execution in twenty fails, the same ones
// in every process.
func Example_worker() {
	w, err := worker.New(worker.Options{RedisURL: "redis://127.0.0.1:6379/0"})
	if err != nil {
		panic(err)
	}
	flaky := inject.Plan{Mode: inject.TransientError, Probability: 0.05, Seed: 7, Text: "bank away"}
	worker.Handle(w, Charge, inject.Func(flaky, charge))
}
