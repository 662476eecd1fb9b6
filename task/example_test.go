package task_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/task"
)

// Email is the payload of SendEmail, which producers and workers share.
type Email struct{ To, Body string }

// SendEmail is a task type.
var SendEmail = task.Define[Email]("email.send")

// Enqueue returns once the task is committed.
func ExampleType_Enqueue() {
	c, err := client.New("http://127.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	e, err := SendEmail.Enqueue(context.Background(), c, Email{To: "ada@example.com", Body: "Hello"},
		task.Key("welcome-ada"), task.Delay(time.Minute), task.MaxRetries(5))
	if err != nil {
		log.Fatal(err)
	}
	done, err := c.Wait(context.Background(), "", e.TaskID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(done.State, string(done.Result))
}
