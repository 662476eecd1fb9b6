package protocol

import (
	"encoding/json"
	"fmt"
	"time"
)

// EventType names what happened.
type EventType string

// The event types of the contract, section 6.
const (
	EventCreated            EventType = "task.created"
	EventQueued             EventType = "task.queued"
	EventRedispatched       EventType = "task.redispatched"
	EventClaimed            EventType = "task.claimed"
	EventHeartbeat          EventType = "task.heartbeat"
	EventProgress           EventType = "task.progress"
	EventSucceeded          EventType = "task.succeeded"
	EventRetryScheduled     EventType = "task.retry_scheduled"
	EventInterrupted        EventType = "task.interrupted"
	EventReclaimed          EventType = "task.reclaimed"
	EventDLQ                EventType = "task.dlq"
	EventFailed             EventType = "task.failed"
	EventCancelled          EventType = "task.cancelled"
	EventTransitionRejected EventType = "task.transition_rejected"
	EventApprovalRequested  EventType = "approval.requested"
	EventApprovalApproved   EventType = "approval.approved"
	EventApprovalRejected   EventType = "approval.rejected"
	EventDLQRequeued        EventType = "dlq.requeued"
	EventDiscardProposed    EventType = "dlq.discard_proposed"
	EventDiscarded          EventType = "dlq.discarded"
	EventAlertRaised        EventType = "alert.raised"
	EventDLQExpired         EventType = "dlq.expired"
	EventRescheduled        EventType = "task.rescheduled"
	EventErased             EventType = "task.erased"
)

// EventTypes lists every type.
func EventTypes() []EventType {
	return []EventType{
		EventCreated, EventQueued, EventRedispatched, EventClaimed, EventHeartbeat, EventProgress,
		EventSucceeded, EventRetryScheduled, EventInterrupted, EventReclaimed, EventDLQ, EventFailed,
		EventCancelled, EventTransitionRejected, EventApprovalRequested, EventApprovalApproved,
		EventApprovalRejected, EventDLQRequeued, EventDiscardProposed, EventDiscarded, EventAlertRaised,
		EventDLQExpired, EventRescheduled, EventErased,
	}
}

// Actors: who caused an event.
const (
	ActorAPI        = "api"
	ActorDispatcher = "dispatcher"
	ActorWorker     = "worker"
	ActorReclaimer  = "reclaimer"
	ActorReconciler = "reconciler"
	ActorDeadLetter = "deadletter"
	ActorRetention  = "retention"
)

// ActorUser is the actor of what a person did: their principal, or anonymous.
func ActorUser(principal string) string {
	if principal == "" {
		principal = Anonymous
	}
	return "user:" + principal
}

// Anonymous stands for a caller without a principal.
const Anonymous = "anonymous"

// Event is one row of the event log.
type Event struct {
	TaskID ID
	// Seq is 1, 2, 3 … within the task, without gaps.
	Seq  int
	Type EventType
	// From and To are the states before and after; equal if the event changes
	// no state.
	From, To State
	// Attempt and Delivery are the task's after the event.
	Attempt  int
	Delivery int64
	// NextRetryAt is set exactly when To is retrying.
	NextRetryAt time.Time
	Code        Code
	Reason      string
	// BackoffDelay is the chosen delay of a retry; negative if there is none.
	BackoffDelay time.Duration
	Actor        string
	WorkerID     string
	// MessageID is the stream entry that the event is about.
	MessageID  string
	TraceID    string
	OccurredAt time.Time
	// Data holds the details of some types as a JSON object, e.g. RetryData; of
	// task.progress it is what the handler reported, which may be any JSON.
	Data json.RawMessage
	// told are the times in Data, where this process put them there.
	told Times
}

// RetryCount is Attempt - 1.
func (e *Event) RetryCount() int { return max(e.Attempt-1, 0) }

// EventID identifies the event everywhere.
func (e *Event) EventID() string { return fmt.Sprintf("evt_%s_%d", e.TaskID, e.Seq) }

// Changes reports whether the event is a state change (a re-dispatch is one:
// it changes the delivery).
func (e *Event) Changes() bool {
	return e.From != e.To || e.Type == EventRedispatched || e.Type == EventCreated
}

// Sources of a retry's delay.
const (
	DelayFromPolicy     = "policy"
	DelayFromRetryAfter = "retry_after"
	DelayFromSnooze     = "snooze"
)

// RetryData is the data of task.retry_scheduled: where the delay came from and
// the policy in force, so that it can be recomputed. Policy is nil unless the
// delay came from it.
type RetryData struct {
	DelaySource string       `json:"delay_source"`
	JitterMS    int64        `json:"jitter_ms"`
	Policy      *RetryPolicy `json:"policy,omitempty"`
}

// ReclaimData is the data of task.reclaimed (task queue protocol, section 5).
type ReclaimData struct {
	OriginalConsumer string `json:"original_consumer"`
	NewConsumer      string `json:"new_consumer"`
	MessageID        string `json:"message_id"`
	IdleMS           int64  `json:"idle_ms"`
}

// DLQData is the data of task.dlq.
type DLQData struct {
	Step  State  `json:"step"`
	DLQID string `json:"dlq_id"`
}

// RejectedData is the data of task.transition_rejected. Kind is empty where it
// was no outcome that was refused but a call to cancel the task.
type RejectedData struct {
	Kind     OutcomeKind `json:"outcome,omitempty"`
	Delivery int64       `json:"outcome_delivery"`
}

func data(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil { // only plain structs of strings and numbers come here
		panic(err)
	}
	return b
}
