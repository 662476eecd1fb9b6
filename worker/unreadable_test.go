package worker_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

// A task whose entry can't be read, but says which task it is, ends as a dead
// letter instead of being dispatched again for ever; the entry is kept.
func TestUnreadableEntryEndsItsTask(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.enqueue(task.Request{Type: "never.run"})
	rdb := b.redis
	var entry redis.XMessage
	testkit.Eventually(t, "the entry in its stream", func() (bool, string) {
		ms := rdb.XRange(t.Context(), protocol.StreamTask, "-", "+").Val()
		if len(ms) == 1 {
			entry = ms[0]
		}
		return len(ms) == 1, ""
	})
	// Somebody damaged the entry: same task and delivery, a field gone.
	values := []any{}
	for k, v := range entry.Values {
		if k != protocol.FieldToolName {
			values = append(values, k, v)
		}
	}
	rdb.XAdd(t.Context(), &redis.XAddArgs{Stream: protocol.StreamTask, Values: values})
	rdb.XDel(t.Context(), protocol.StreamTask, entry.ID)
	b.raw(worker.Options{}, func(context.Context, *task.Raw) (json.RawMessage, error) {
		t.Error("the handler ran")
		return nil, nil
	})
	got := b.waitState(id, protocol.StateFailed)
	if got.LastErrorCode.GetValue() != string(protocol.CodeInputInvalid) {
		t.Errorf("ended with %v: %v", got.LastErrorCode, got.LastErrorReason)
	}
}
