package enqueue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// same compares the fields that the caller gave with those of the existing task
// (TASK_DUPLICATE). The error is about the first that differs, and names all.
func same(it *item, t *dbsqlc.Task, byKey bool) error {
	if !byKey && it.tenant != t.Tenant { // no more is said about a stranger's task
		return protocol.Errorf(protocol.CodeDuplicate, "tenant",
			"differs from task %s, which has the same task_id: use another one for a different task, or repeat the request unchanged", taskID(t))
	}
	fields := differences(it, t, byKey)
	if len(fields) == 0 {
		return nil
	}
	return protocol.Errorf(protocol.CodeDuplicate, fields[0], "%s", conflict(it, t, byKey, fields))
}

// differences are the fields that a request and a task don't have in common, of
// those that the caller gave.
func differences(it *item, t *dbsqlc.Task, byKey bool) (fields []string) {
	was := asked(t)
	for _, f := range [...]struct {
		name    string
		differs bool
	}{
		{"queue", it.queue != t.Queue},
		{"type", it.typ != t.Type},
		{"payload", !t.ErasedAt.Valid && canonical(it.payload) != canonical(t.Payload)}, // what was erased can't be compared
		{"schedule_type", it.schedule != was.Type},
		{"scheduled_at", !it.scheduledAt.Equal(was.At)},
		{"delay_ms", it.delayMS != was.DelayMS},
		{"timeout_ms", it.given&givenTimeout != t.Given&givenTimeout || it.given&givenTimeout != 0 && it.timeoutMS != t.TimeoutMs},
		{"max_retries", it.given&givenMaxRetries != t.Given&givenMaxRetries || it.given&givenMaxRetries != 0 && it.maxRetries != t.MaxRetries},
		{"retry_policy", !it.override.is(t.RetryPolicy)},
		{"schedule_to_start_timeout_ms", it.startWithin != store.Deref(t.StartWithinMs)},
		{"expires_at", it.startWithin == 0 && t.StartWithinMs == nil && !it.expiresAt.Equal(t.ExpiresAt.Time)},
		{"heartbeat_timeout_ms", it.given&givenHeartbeat != t.Given&givenHeartbeat || it.given&givenHeartbeat != 0 && it.heartbeat != store.Deref(t.HeartbeatTimeoutMs)},
		{"depends_on", it.digest != store.Deref(t.DependenciesDigest)},
		{"idempotency_key", !byKey && it.key != store.Deref(t.IdempotencyKey)},
		{"idempotency_scope", !byKey && it.key != "" && it.scope != t.IdempotencyScope},
	} {
		if f.differs {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// conflict says which task is in the way, in what it differs, and what to do. It
// tells nothing of payloads.
func conflict(it *item, t *dbsqlc.Task, byKey bool, fields []string) string {
	var b strings.Builder
	switch fields[0] {
	case "type":
		fmt.Fprintf(&b, "is %q and ", it.typ)
	case "queue":
		fmt.Fprintf(&b, "is %q and ", it.queue)
	}
	fmt.Fprintf(&b, "differs from task %s (type %q, queue %q), which has ", taskID(t), t.Type, t.Queue)
	if byKey {
		fmt.Fprintf(&b, "the idempotency_key %q in the scope %q", clip(it.key), clip(it.scope))
	} else {
		b.WriteString("the same task_id")
	}
	if len(fields) > 1 {
		fmt.Fprintf(&b, "; %s too", list(fields[1:]))
	}
	if !byKey {
		b.WriteString(": use another task_id for a different task, or repeat the request unchanged")
		return b.String()
	}
	b.WriteString(". A key is one task's within its scope, whatever the type: for a different task use another key, or another idempotency_scope")
	if scope := it.tenant + "/" + it.typ; slices.Contains(fields, "type") && scope != it.scope {
		fmt.Fprintf(&b, ", such as %q for this type", scope)
	}
	b.WriteString("; otherwise repeat the request unchanged")
	return b.String()
}

// list is "a differs" or "a, b and c differ".
func list(fields []string) string {
	if len(fields) == 1 {
		return fields[0] + " differs"
	}
	last := len(fields) - 1
	return strings.Join(fields[:last], ", ") + " and " + fields[last] + " differ"
}

func taskID(t *dbsqlc.Task) string { return store.TaskID(protocol.ID(t.ID), store.Deref(t.Name)) }
