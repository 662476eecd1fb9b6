package worker_test

import (
	"context"
	"fmt"
	"log"

	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Email is the payload of SendEmail, which producers and workers share.
type Email struct{ To, Body string }

// SendEmail is a task type.
var SendEmail = task.Define[Email]("email.send")

// A complete worker: PENSTOCK_REDIS_URL says where Redis is. It stops cleanly
// on SIGTERM.
func Example() {
	w, err := worker.New(worker.FromEnv())
	if err != nil {
		log.Fatal(err)
	}
	worker.Handle(w, SendEmail, func(ctx context.Context, j *task.Job[Email]) error {
		if j.Args.To == "" {
			return task.Permanent(fmt.Errorf("task %s has no recipient", j.TaskID))
		}
		fmt.Println("sending to", j.Args.To, "with key", j.IdempotencyKey)
		return j.SetResult(map[string]string{"status": "sent"})
	})
	if err := w.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
