package protocol

// Vocabulary is one of the specifications' own words for states.
type Vocabulary string

// The vocabularies of the contract, section 12.
const (
	VocabularyB2  Vocabulary = "b2"  // jobs
	VocabularyMEN Vocabulary = "men" // task_state_changed events
	VocabularyP3C Vocabulary = "p3c" // task_runs
	VocabularyTQP Vocabulary = "tqp" // task queue protocol
)

// projections maps our states. A missing entry means "the state before": such
// a state is not shown, the task still seems to be where it was.
var projections = map[Vocabulary]map[State]string{
	VocabularyB2: {
		StatePending: "queued", StateWaitingApproval: "queued", StateQueued: "queued",
		StateRunning: "running", StateRetrying: "retrying", StateInterrupted: "running",
		StateDLQPending: "dlq_pending", StateDLQRecorded: "dlq_recorded",
		StateSucceeded: "succeeded", StateFailed: "failed", StateCancelled: "cancelled",
	},
	VocabularyMEN: {
		StatePending: "pending", StateWaitingApproval: "pending", StateQueued: "ready",
		StateRunning: "running", StateRetrying: "ready", StateInterrupted: "ready",
		StateSucceeded: "succeeded", StateFailed: "failed", StateCancelled: "cancelled",
	},
	VocabularyP3C: {
		StatePending: "queued", StateWaitingApproval: "queued", StateQueued: "queued",
		StateRunning: "running", StateRetrying: "retry_scheduled", StateInterrupted: "interrupted",
		StateSucceeded: "succeeded", StateFailed: "failed", StateCancelled: "cancelled",
	},
	VocabularyTQP: {
		StatePending: "queued", StateWaitingApproval: "waiting_approval", StateQueued: "queued",
		StateRunning: "running", StateRetrying: "running", StateInterrupted: "running",
		StateSucceeded: "succeeded", StateFailed: "failed", StateCancelled: "failed",
	},
}

// Project returns the vocabulary's word for s. before is the word for the
// state the task was in before; it is returned for states that the vocabulary
// does not show. Unknown vocabularies and states give "".
func (v Vocabulary) Project(s State, before string) string {
	m, ok := projections[v]
	if !ok || !s.Valid() {
		return ""
	}
	if w, ok := m[s]; ok {
		return w
	}
	return before
}

// Moves projects a task's history: the pairs of words that the vocabulary
// shows, collapsed where two of our states have the same word. The first pair
// starts from "".
func (v Vocabulary) Moves(states []State) [][2]string {
	var out [][2]string
	at := ""
	for _, s := range states {
		if w := v.Project(s, at); w != at {
			out = append(out, [2]string{at, w})
			at = w
		}
	}
	return out
}
