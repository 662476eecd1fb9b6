// Command enqueue is the README's example producer.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/examples/mail"
	"github.com/penstock-dev/penstock/task"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.New("http://127.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	t, err := mail.Send.Enqueue(ctx, c, mail.Email{To: "a@example.com"}, task.Key("order-42"))
	if err != nil {
		log.Fatal(err)
	}
	done, err := c.Wait(ctx, "", t.TaskID)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(done.State, string(done.Result))
}
