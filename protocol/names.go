package protocol

import "strings"

// Names on the wire, fixed by the task queue protocol.
const (
	// StreamTask carries tasks to workers; a named queue Q uses "stream:task:Q".
	StreamTask = "stream:task"
	// StreamResult carries outcomes to orchestrators.
	StreamResult = "stream:result"
	// StreamDLQ holds dead letters.
	StreamDLQ = "stream:dlq"
	// GroupWorkers consumes the task streams.
	GroupWorkers = "cg:workers"
	// KeyTombstones is a set in Redis: the deliveries of cancelled tasks that
	// must not be started, as Pair.String writes them.
	KeyTombstones = "penstock:tombstones"
	// KeyTypes is a sorted set of what living workers know: queue, space, type;
	// until when in milliseconds of Redis' clock.
	KeyTypes = "penstock:types"
	// KeyOffers is the channel on which workers hear of entries that others can't
	// run, and the beginning of the keys of the lists that hold these, by queue and
	// type.
	KeyOffers = "penstock:offers"
	// GroupOrchestrators consumes StreamResult and StreamDLQ.
	GroupOrchestrators = "cg:orchestrators"
)

// QueueInternal is the queue of jobs that are moved by hand through the internal
// run interface. No dispatcher, timer or reconciler touches it, no ordinary
// task can be enqueued to it, and it has no stream.
const QueueInternal = "internal-jobs"

// Default names where a request leaves one out.
const (
	DefaultQueue  = "default"
	DefaultTenant = "default"
)

// TaskStream returns the stream of a queue.
func TaskStream(queue string) string {
	if queue == DefaultQueue || queue == "" {
		return StreamTask
	}
	return StreamTask + ":" + queue
}

// QueueOf returns the queue of a task stream; ok is false if the name is none.
func QueueOf(stream string) (queue string, ok bool) {
	if stream == StreamTask {
		return DefaultQueue, true
	}
	return strings.CutPrefix(stream, StreamTask+":")
}

// MaxContent is the most bytes of a payload or result in a stream entry, 8 MiB.
const MaxContent = 8 << 20

// WireVersion is the version every entry carries in field "v". A reader
// accepts entries of its own version and ignores fields it does not know.
const WireVersion = "1"

// Field names of stream entries.
const (
	FieldVersion        = "v"
	FieldID             = "id"
	FieldTaskID         = "task_id"
	FieldToolName       = "tool_name"
	FieldPayload        = "payload"
	FieldTenant         = "tenant"
	FieldAttempt        = "attempt"
	FieldMaxRetries     = "max_retries"
	FieldDelivery       = "delivery"
	FieldTimeoutMS      = "timeout_ms"
	FieldIdempotencyKey = "idempotency_key"
	// FieldIdempotencyKeyKind is key or task: whether the key is an idempotency key
	// or the id of a task without one. Left out where the key is this task's id if
	// it is the latter.
	FieldIdempotencyKeyKind = "idempotency_key_kind"
	FieldIdempotencyScope   = "idempotency_scope"
	FieldTraceID            = "trace_id"
	FieldEnqueuedAt         = "enqueued_at"

	FieldHeartbeatTimeoutMS = "heartbeat_timeout_ms"
	FieldSolo               = "solo"
	FieldScheduledAt        = "scheduled_at"
	FieldApprovals          = "approvals"
	FieldDependencies       = "dependencies"

	FieldKind       = "kind"
	FieldWorkerID   = "worker_id"
	FieldMessageID  = "message_id"
	FieldStartedAt  = "started_at"
	FieldFinishedAt = "finished_at"
	FieldResult     = "result"
	FieldErrorCode  = "error_code"
	FieldError      = "error"
	FieldRetryable  = "retryable"
	FieldDelayMS    = "delay_ms"
	FieldApproval   = "approval"

	FieldDLQID      = "dlq_id"
	FieldRetryCount = "retry_count"
	FieldFailedAt   = "failed_at"
	FieldStream     = "stream"
	FieldRaw        = "raw"
)
