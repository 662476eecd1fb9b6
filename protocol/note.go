package protocol

import "encoding/json"

// Note appends an event that leaves the task as it is, e.g. about the dead
// letter of a failed one.
func (t *Task) Note(typ EventType, env Env, actor, reason string, detail any) *Event {
	e := t.event(t.State, typ, env, actor)
	e.Reason, e.Data = reason, data(detail)
	return e
}

// RequeuedData is the data of dlq.requeued: the task that came out of the dead
// letter, and how its payload differs from the one that failed.
type RequeuedData struct {
	DLQID  string `json:"dlq_id"`
	TaskID string `json:"task_id"`
	// N counts the requeues of the dead letter, from 1.
	N         int    `json:"n"`
	Revision  int    `json:"revision"`
	Principal string `json:"principal"`
	BatchID   string `json:"batch_id,omitempty"`
	// Diff lists the differences: [{op, path, from, to}]; absent if there are
	// none.
	Diff json.RawMessage `json:"diff,omitempty"`
}

// OriginData is part of the data of task.created of a requeued task.
type OriginData struct {
	OriginDLQID  string `json:"origin_dlq_id"`
	OriginTaskID string `json:"origin_task_id"`
}

// DiscardData is the data of dlq.discard_proposed and dlq.discarded.
type DiscardData struct {
	DLQID       string `json:"dlq_id"`
	BatchID     string `json:"batch_id"`
	Digest      string `json:"digest"`
	ProposedBy  string `json:"proposed_by"`
	ConfirmedBy string `json:"confirmed_by,omitempty"`
}

// ExpiredData is the data of dlq.expired.
type ExpiredData struct {
	DLQID     string `json:"dlq_id"`
	SettledMS int64  `json:"settled_at_ms"`
	KeptMS    int64  `json:"kept_ms"`
}
