// Command worker is the README's example worker.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/penstock-dev/penstock/examples/mail"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func main() {
	w, err := worker.New(worker.FromEnv()) // PENSTOCK_REDIS_URL
	if err != nil {
		log.Fatal(err)
	}
	worker.Handle(w, mail.Send, func(ctx context.Context, j *task.Job[mail.Email]) error {
		if j.Args.To == "" {
			return task.Permanent(errors.New("no address")) // no retry: a dead letter at once
		}
		fmt.Println("sending to", j.Args.To, "attempt", j.Attempt)
		return j.SetResult(map[string]string{"sent_to": j.Args.To})
	})
	if err := w.Run(context.Background()); err != nil { // drains on SIGTERM
		log.Fatal(err)
	}
}
