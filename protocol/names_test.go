package protocol

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestStreamNames(t *testing.T) {
	t.Parallel()
	for queue, want := range map[string]string{"": "stream:task", "default": "stream:task", "mail": "stream:task:mail", "a:b": "stream:task:a:b"} {
		if got := TaskStream(queue); got != want {
			t.Errorf("TaskStream(%q) = %q, want %q", queue, got, want)
		}
	}
	for _, name := range []string{"stream:tas", "stream:tasks", "stream:dlq", "stream:result", "", "xstream:task:a"} {
		if q, ok := QueueOf(name); ok {
			t.Errorf("QueueOf(%q) = %q, want none", name, q)
		}
	}
	names := []string{StreamTask, StreamResult, StreamDLQ, GroupWorkers, GroupOrchestrators}
	if want := []string{"stream:task", "stream:result", "stream:dlq", "cg:workers", "cg:orchestrators"}; !slices.Equal(names, want) {
		t.Errorf("names are %q, want %q", names, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		queue := genName(1, 255).Draw(t, "queue")
		if got, ok := QueueOf(TaskStream(queue)); !ok || got != queue {
			t.Fatalf("QueueOf(TaskStream(%q)) = %q, %v", queue, got, ok)
		}
	})
}

func TestEventTypesAreTheContracts(t *testing.T) {
	t.Parallel()
	want := []EventType{
		"task.created", "task.queued", "task.redispatched", "task.claimed", "task.heartbeat", "task.progress",
		"task.succeeded", "task.retry_scheduled", "task.interrupted", "task.reclaimed", "task.dlq", "task.failed",
		"task.cancelled", "task.transition_rejected", "approval.requested", "approval.approved", "approval.rejected",
		"dlq.requeued", "dlq.discard_proposed", "dlq.discarded", "alert.raised",
		"dlq.expired",      // docs/decisions/0008
		"task.rescheduled", // docs/decisions/0017
		"task.erased",      // docs/decisions/0030
	}
	if got := EventTypes(); !slices.Equal(got, want) {
		t.Errorf("EventTypes() = %q, want %q", got, want)
	}
	kinds := []OutcomeKind{"claimed", "succeeded", "failed", "snoozed", "released", "approval_needed", "skipped"}
	if got := OutcomeKinds(); !slices.Equal(got, kinds) {
		t.Errorf("OutcomeKinds() = %q, want %q", got, kinds)
	}
}

func TestEventNumbers(t *testing.T) {
	t.Parallel()
	e := Event{TaskID: testID(7), Seq: 12, Attempt: 3}
	if got, want := e.EventID(), "evt_019c945a-c800-7000-8000-000000000007_12"; got != want {
		t.Errorf("EventID() = %q, want %q", got, want)
	}
	if e.RetryCount() != 2 || (&Event{}).RetryCount() != 0 {
		t.Errorf("RetryCount() = %d and %d, want 2 and 0", e.RetryCount(), (&Event{}).RetryCount())
	}
	if v := []string{Applied.String(), Repeated.String(), Rejected.String()}; !slices.Equal(v, []string{"applied", "repeated", "rejected"}) {
		t.Errorf("verdicts are %q", v)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	err := Errorf(CodeDuplicate, "payload", "differs in %d fields", 2)
	if got, want := err.Error(), "TASK_DUPLICATE: payload: differs in 2 fields"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if got, want := Errorf(CodeNotFound, "", "no such task").Error(), "TASK_NOT_FOUND: no such task"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if got := CodeOf(fmt.Errorf("enqueue: %w", err)); got != CodeDuplicate {
		t.Errorf("CodeOf(wrapped) = %q", got)
	}
	for _, other := range []error{nil, errors.New("TASK_DUPLICATE")} {
		if got := CodeOf(other); got != "" {
			t.Errorf("CodeOf(%v) = %q, want none", other, got)
		}
	}
	codes := []Code{
		CodeInvalidTransition, CodeTimeout, CodeExecutionFailed, CodeRetryExhausted, CodeDuplicate, CodeInputInvalid,
		CodeUnknownType, CodeWorkerLost, CodeCancelled, CodeExpired, CodeApprovalRejected, CodeDependencyFailed, CodeNotFound,
	}
	want := []Code{
		"TASK_INVALID_TRANSITION", "TASK_TIMEOUT", "TASK_EXECUTION_FAILED", "TASK_RETRY_EXHAUSTED", "TASK_DUPLICATE", "TASK_INPUT_INVALID",
		"TASK_UNKNOWN_TYPE", "TASK_WORKER_LOST", "TASK_CANCELLED", "TASK_EXPIRED", "TASK_APPROVAL_REJECTED", "TASK_DEPENDENCY_FAILED", "TASK_NOT_FOUND",
	}
	if !slices.Equal(codes, want) {
		t.Errorf("codes are %q, want %q", codes, want)
	}
}
