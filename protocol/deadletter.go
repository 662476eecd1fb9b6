package protocol

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// DeadLetter is one entry of stream:dlq. The orchestrator writes it for a task
// that it gave up; a worker or orchestrator writes it for a stream entry that
// is no task at all (ID is zero, Stream, MessageID and Raw say what it was).
type DeadLetter struct {
	DLQID      ID
	ID         ID // zero if it is about no task
	TaskID     string
	Type       string // wire name: tool_name
	Tenant     string
	Payload    []byte
	Code       Code
	Error      string
	RetryCount int
	FailedAt   time.Time
	// Where an entry that is no task was found, and its fields.
	Stream, MessageID string
	Raw               map[string]string
}

// Values returns the dead letter as field-value pairs for XADD. The names task_id,
// tool_name, payload, error, retry_count and failed_at are those of the task
// queue protocol, section 7.
func (l *DeadLetter) Values() []any {
	v := []any{
		FieldVersion, WireVersion,
		FieldDLQID, l.DLQID.String(),
		FieldTaskID, l.TaskID,
		FieldToolName, l.Type,
		FieldPayload, l.Payload,
		FieldError, l.Error,
		FieldErrorCode, string(l.Code),
		FieldRetryCount, l.RetryCount,
		FieldFailedAt, l.FailedAt.UTC().Format(time.RFC3339Nano),
		FieldTenant, l.Tenant,
	}
	if !l.ID.IsZero() {
		v = append(v, FieldID, l.ID.String())
	}
	if l.Stream != "" || l.MessageID != "" {
		v = append(v, FieldStream, l.Stream, FieldMessageID, l.MessageID)
	}
	if l.Raw != nil {
		raw, _ := json.Marshal(l.Raw) // a map of strings always has a JSON form
		v = append(v, FieldRaw, raw)
	}
	return v
}

// DecodeDeadLetter reads an entry of stream:dlq. The error is an *Error with
// code TASK_INPUT_INVALID that names the field.
func DecodeDeadLetter(values map[string]any) (*DeadLetter, error) {
	d := decoder{values: values}
	d.version()
	l := &DeadLetter{
		DLQID:      d.id(FieldDLQID),
		TaskID:     d.optional(FieldTaskID, maxName),
		Type:       d.optional(FieldToolName, maxName),
		Tenant:     d.optional(FieldTenant, maxName),
		Payload:    []byte(d.optional(FieldPayload, maxContent)),
		Code:       Code(d.optional(FieldErrorCode, maxName)),
		Error:      Text(d.optional(FieldError, maxContent)),
		RetryCount: int(d.integer(FieldRetryCount, 0, 1<<31-1)),
		Stream:     d.optional(FieldStream, maxName),
		MessageID:  d.optional(FieldMessageID, maxName),
	}
	if d.optional(FieldID, maxName) != "" {
		l.ID = d.id(FieldID)
	}
	t, err := time.Parse(time.RFC3339Nano, d.required(FieldFailedAt, maxName))
	t = t.UTC()
	if err != nil || t.Year() < 0 || t.Year() > 9999 { // its zone may lead out of the years that have a form
		d.fail(FieldFailedAt, "is not an RFC 3339 time")
	}
	l.FailedAt = t
	if raw := d.optional(FieldRaw, 2*maxContent); raw != "" {
		if err := json.Unmarshal([]byte(raw), &l.Raw); err != nil {
			d.fail(FieldRaw, "is not a JSON object of strings")
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	return l, nil
}

// EntryIDByte is the first byte of the id of a dead letter that is about no
// task.
const EntryIDByte = 0xfd

// Garbage makes the dead letter of a stream entry that is no task: cause says
// why it can't be read. Its id is derived from where the entry was and what it
// held, so that the same entry found twice has the same dead letter.
func Garbage(stream, messageID string, values map[string]any, cause error, now time.Time) *DeadLetter {
	raw := make(map[string]string, len(values))
	for _, k := range slices.Sorted(maps.Keys(values)) { // sorted: two names may become one
		raw[Text(k)] = Text(fmt.Sprint(values[k]))
	}
	content, _ := json.Marshal(raw) // sorted by key: deterministic
	return &DeadLetter{
		DLQID:     hashID(EntryIDByte, "garbage", stream+" "+messageID, string(content)),
		Code:      CodeInputInvalid,
		Error:     Text(cause.Error()),
		FailedAt:  now,
		Stream:    stream,
		MessageID: messageID,
		Raw:       raw,
	}
}

// RecordDeadLetter finishes the dead-letter sub-flow after the dead letter is
// in stream:dlq. ok is false if the task is not in it.
func (t *Task) RecordDeadLetter(env Env) (events []*Event, ok bool) {
	if t.State == StateDLQPending {
		e := t.move(StateDLQRecorded, EventDLQ, env, ActorDeadLetter)
		e.Code, e.Reason = t.Code, t.Reason
		e.Data = data(DLQData{Step: StateDLQRecorded, DLQID: t.DLQID.String()})
		events = append(events, e)
	}
	if t.State != StateDLQRecorded {
		return nil, false
	}
	e := t.move(StateFailed, EventFailed, env, ActorDeadLetter)
	e.Code, e.Reason = t.Code, t.Reason
	if !t.EndedAt.IsZero() {
		t.FinishedAt = t.EndedAt
		e.tell(Times{FinishedAt: t.EndedAt})
	}
	return append(events, e), true
}
