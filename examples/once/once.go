// Package once shows a handler whose effect must happen once.
package once

import (
	"context"

	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// Payment is the payload, Receipt what the bank answers.
type (
	Payment struct{ Account, Cents int }
	Receipt struct{ ID string }
)

// Pay is a handler. However often it runs, bank is asked once.
func Pay(bank func(ctx context.Context, key string, p Payment) (Receipt, error)) func(context.Context, *task.Job[Payment]) error {
	return func(ctx context.Context, j *task.Job[Payment]) error {
		receipt, err := worker.Once(ctx, "charge", func(ctx context.Context) (Receipt, error) {
			return bank(ctx, j.IdempotencyKey, j.Args)
		})
		if err != nil {
			return err
		}
		return j.SetResult(receipt)
	}
}
