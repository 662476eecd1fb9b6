package enqueue

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// The longest of everything a caller may choose still makes an entry that every
// worker can read.
func TestLongestRequestDecodes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 255)
	for name, r := range map[string]*Request{
		"long id":         {TaskID: long},
		"everything long": {TaskID: long, IdempotencyKey: long, IdempotencyScope: long, TraceID: long, Tenant: long[:64], Queue: long[:64]},
	} {
		r.Type = long[:128]
		it, err := validate(r, &Limits{MaxPayloadBytes: 1, MaxPayloadDepth: 1, Defaults: Defaults{Timeout: time.Minute, MaxRetries: 3}}, time.Now())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		kv := it.entry(&dbsqlc.InsertTasksRow{CreatedAt: time.Now()}).Values()
		values := map[string]any{}
		for i := 0; i < len(kv); i += 2 {
			values[kv[i].(string)] = toString(kv[i+1])
		}
		e, err := protocol.DecodeTask(values)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if e.TaskID != r.TaskID {
			t.Errorf("%s: task_id changed", name)
		}
	}
}

// toString is how Redis returns a value.
func toString(v any) string {
	if b, ok := v.([]byte); ok {
		return string(b)
	}
	return fmt.Sprint(v)
}
