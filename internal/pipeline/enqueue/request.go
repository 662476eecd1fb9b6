// Package enqueue accepts tasks: it validates them, stores whole batches in
// one transaction each, and puts those that are due into their streams.
package enqueue

import (
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/protocol"
)

// Request is one task as its caller asks for it; see the RPC's EnqueueRequest
// for the bounds of each field.
type Request struct {
	TaskID           string
	Type             string
	Payload          []byte
	ScheduleType     string
	ScheduledAt      time.Time // zero: not given
	DelayMS          int64
	TimeoutMS        *int32
	MaxRetries       *int32
	IdempotencyKey   string
	IdempotencyScope string
	Tenant           string
	Queue            string
	TraceID          string
	Policy           *protocol.RetryPolicy
}

// Limits are the configurable bounds and defaults of requests.
type Limits struct {
	MaxPayloadBytes  int
	MaxPayloadDepth  int
	MaxScheduleAhead time.Duration
	DefaultTimeout   time.Duration
	MaxRetries       int // of a task that names none
}

// Schedule types.
const (
	scheduleNow   = "now"
	scheduleAt    = "at"
	scheduleDelay = "delay"
)

// Bits of the column given.
const (
	givenTimeout    = 1
	givenMaxRetries = 2
)

// item is a validated request.
type item struct {
	id          protocol.ID
	name        string // the caller's own id, unless it is the stored id
	stale       protocol.ID
	tenant      string
	queue       string
	typ         string
	payload     []byte
	schedule    string
	scheduledAt time.Time
	delayMS     int64
	timeoutMS   int32
	maxRetries  int32
	given       int16
	policy      *protocol.RetryPolicy
	scope       string
	key         string
	traceID     string
}

func (it *item) taskID() string {
	if it.name != "" {
		return it.name
	}
	return it.id.String()
}

func bad(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
}

// validate turns a request into an item. The error is an *protocol.Error with
// code TASK_INPUT_INVALID that names the field.
func validate(r *Request, lim Limits, now time.Time) (*item, error) {
	it := &item{typ: r.Type, key: r.IdempotencyKey, traceID: r.TraceID, policy: r.Policy}
	var err error
	if it.tenant, err = name("tenant", r.Tenant, protocol.DefaultTenant); err != nil {
		return nil, err
	}
	if it.queue, err = name("queue", r.Queue, protocol.DefaultQueue); err != nil {
		return nil, err
	}
	if err := checkType(r.Type); err != nil {
		return nil, err
	}
	for _, f := range [...][2]string{
		{"task_id", r.TaskID}, {"idempotency_key", r.IdempotencyKey}, {"idempotency_scope", r.IdempotencyScope}, {"trace_id", r.TraceID},
	} {
		if err := text(f[0], f[1]); err != nil {
			return nil, err
		}
	}
	if it.scope = r.IdempotencyScope; it.scope == "" {
		it.scope = it.tenant
	}
	if it.payload, err = checkPayload(r.Payload, lim); err != nil {
		return nil, err
	}
	if err := it.setSchedule(r, lim, now); err != nil {
		return nil, err
	}
	if err := it.setBounds(r, lim); err != nil {
		return nil, err
	}
	it.setID(r.TaskID, now)
	return it, nil
}

func (it *item) setID(taskID string, now time.Time) {
	switch {
	case taskID == "":
		it.id = protocol.ID(uuid.Must(uuid.NewV7()))
	default:
		var stale bool
		it.id, stale = protocol.ResolveTaskID(it.tenant, taskID, now)
		if it.id.Named() {
			it.name = taskID
		}
		if stale { // an old UUIDv7: maybe a repeat of an old request
			it.stale, _ = protocol.ParseID(taskID)
		}
	}
	if it.traceID == "" {
		it.traceID = fmt.Sprintf("trace-run-%s:1-%s", it.id, uuid.NewString()) // bounded, unlike the caller's own id
	}
}

func (it *item) setSchedule(r *Request, lim Limits, now time.Time) error {
	it.schedule = r.ScheduleType
	if it.schedule == "" {
		it.schedule = scheduleNow
	}
	switch it.schedule {
	case scheduleNow, scheduleAt, scheduleDelay:
	default:
		return bad("schedule_type", "is %q, want now, at or delay", clip(r.ScheduleType))
	}
	if it.schedule != scheduleAt && !r.ScheduledAt.IsZero() {
		return bad("scheduled_at", "is only for schedule_type at, not %s", it.schedule)
	}
	if it.schedule != scheduleDelay && r.DelayMS != 0 {
		return bad("delay_ms", "is only for schedule_type delay, not %s", it.schedule)
	}
	switch it.schedule {
	case scheduleAt:
		if r.ScheduledAt.IsZero() {
			return bad("scheduled_at", "is required for schedule_type at")
		}
		if r.ScheduledAt.Year() < 1970 || r.ScheduledAt.Sub(now) > lim.MaxScheduleAhead {
			return bad("scheduled_at", "is %s, want a time from 1970 to %s from now", r.ScheduledAt.UTC().Format(time.RFC3339), lim.MaxScheduleAhead)
		}
		it.scheduledAt = r.ScheduledAt.UTC().Truncate(time.Microsecond)
	case scheduleDelay:
		if r.DelayMS < 0 || r.DelayMS > lim.MaxScheduleAhead.Milliseconds() {
			return bad("delay_ms", "is %d, want 0 to %d", r.DelayMS, lim.MaxScheduleAhead.Milliseconds())
		}
		it.delayMS = r.DelayMS
	}
	return nil
}

func (it *item) setBounds(r *Request, lim Limits) error {
	it.timeoutMS, it.maxRetries = int32(lim.DefaultTimeout.Milliseconds()), int32(lim.MaxRetries)
	if r.TimeoutMS != nil {
		it.timeoutMS, it.given = *r.TimeoutMS, it.given|givenTimeout
	}
	if it.timeoutMS < 1 {
		return bad("timeout_ms", "is %d, want 1 to %d", it.timeoutMS, int32(1<<31-1))
	}
	if r.MaxRetries != nil {
		it.maxRetries, it.given = *r.MaxRetries, it.given|givenMaxRetries
	}
	if it.maxRetries < 0 || it.maxRetries > protocol.MaxRetriesLimit {
		return bad("max_retries", "is %d, want 0 to %d", it.maxRetries, protocol.MaxRetriesLimit)
	}
	if r.Policy != nil {
		return r.Policy.Validate()
	}
	return nil
}

func checkType(s string) error {
	if s == "" || len(s) > 128 {
		return bad("type", "has %d bytes, want 1 to 128", len(s))
	}
	for _, c := range []byte(s) {
		if !word(c) && c != ':' && c != '/' {
			return bad("type", "is %q, want only A-Z a-z 0-9 . _ - : /", clip(s))
		}
	}
	return nil
}

func name(field, s, def string) (string, error) {
	if s == "" {
		return def, nil
	}
	if len(s) > 64 {
		return "", bad(field, "has %d bytes, want 1 to 64", len(s))
	}
	for _, c := range []byte(s) {
		if !word(c) {
			return "", bad(field, "is %q, want only A-Z a-z 0-9 . _ -", clip(s))
		}
	}
	return s, nil
}

func word(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}

// text checks a caller's own string of at most 255 bytes.
func text(field, s string) error {
	if len(s) > 255 {
		return bad(field, "has %d bytes, at most 255 are allowed", len(s))
	}
	if !utf8.ValidString(s) {
		return bad(field, "is not valid UTF-8")
	}
	for _, r := range s {
		if unicode.IsControl(r) {
			return bad(field, "contains the control character %U", r)
		}
	}
	return nil
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}
