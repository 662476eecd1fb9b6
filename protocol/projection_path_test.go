package protocol_test

import (
	"testing"

	"github.com/penstock-dev/penstock/protocol"
)

func TestPath(t *testing.T) {
	t.Parallel()
	history := []protocol.State{
		protocol.StatePending, protocol.StateQueued, protocol.StateRunning, protocol.StateInterrupted, protocol.StateQueued, protocol.StateRunning,
		protocol.StateRetrying, protocol.StateRetrying, protocol.StateRunning, protocol.StateDLQPending, protocol.StateDLQRecorded, protocol.StateFailed,
	}
	for v, want := range map[protocol.Vocabulary]string{
		protocol.VocabularyB2:  "queued -> running -> queued -> running -> retrying -> running -> dlq_pending -> dlq_recorded -> failed",
		protocol.VocabularyMEN: "pending -> ready -> running -> ready -> running -> ready -> running -> failed",
		protocol.VocabularyTQP: "queued -> running -> queued -> running -> failed",
		"none":                 "",
	} {
		if got := v.Path(history); got != want {
			t.Errorf("%s: %q, want %q", v, got, want)
		}
	}
}

// Only one document has a word of its own for a code.
func TestVocabularyCode(t *testing.T) {
	t.Parallel()
	if got := protocol.VocabularyB2.Code(protocol.CodeInvalidTransition); got != "WF_STATE_TRANSITION_INVALID" {
		t.Errorf("b2: %s", got)
	}
	if got := protocol.VocabularyB2.Code(protocol.CodeRetryExhausted); got != "TASK_RETRY_EXHAUSTED" {
		t.Errorf("b2: %s", got)
	}
	for _, v := range []protocol.Vocabulary{protocol.VocabularyMEN, protocol.VocabularyP3C, protocol.VocabularyTQP} {
		if got := v.Code(protocol.CodeInvalidTransition); got != "TASK_INVALID_TRANSITION" {
			t.Errorf("%s: %s", v, got)
		}
	}
}
