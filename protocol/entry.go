package protocol

import (
	"cmp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds that every decoder enforces, so that no entry can make a reader
// allocate without limit. The payload's own limit is the orchestrator's.
const (
	maxName    = 255     // bytes of an id, key, type or worker name
	maxText    = 4 << 10 // bytes of an error text kept in an event
	maxContent = MaxContent
)

// TaskEntry is one entry of a task stream: one delivery of one task.
type TaskEntry struct {
	ID       ID
	TaskID   string // the caller's id; ID's string if it gave none
	Type     string // wire name: tool_name
	Payload  []byte // JSON
	Tenant   string
	Attempt  int
	Delivery int64
	// MaxRetries is the number of additional attempts after the first.
	MaxRetries     int
	Timeout        time.Duration // start-to-close, whole milliseconds
	IdempotencyKey string
	// KeyOwn: IdempotencyKey is the id of a task that has no idempotency key, this
	// one or the one it was requeued from.
	KeyOwn bool
	// IdempotencyScope is that of the key; of a task without one it is its tenant.
	IdempotencyScope string
	TraceID          string
	EnqueuedAt       time.Time // whole milliseconds
	// HeartbeatTimeout is how long the handler may go without reporting
	// progress, whole milliseconds; 0: for ever.
	HeartbeatTimeout time.Duration
	// Solo: the task's last workers were lost with it. It is to be run only
	// while nothing else runs in the process.
	Solo bool
	// ScheduledAt is the time of a schedule's fire that the task was made for,
	// whole milliseconds; zero: it was not made by a schedule.
	ScheduledAt time.Time
	// Approvals tells of approvals that were given, a JSON array; empty: none.
	Approvals []byte
	// Dependencies tells how the tasks ended that this one depends on, a JSON
	// object; empty: it depends on none.
	Dependencies []byte
}

// SoloAfter: a task interrupted this often is dispatched marked solo.
const SoloAfter = 2

// EffectKey returns the key under which a task's effects are kept, the scope of that
// key, and whether it is the id of a task, in its tenant's scope, and no caller's key.
// effectKey, if not empty, stands before the task's own key, which stands before its
// id; effectOwn tells that effectKey is the id of a task. As penstock_effect_key in the
// database.
func EffectKey(effectKey string, effectOwn bool, key, taskID, scope, tenant string) (effect, effectScope string, own bool) {
	if own = effectOwn || effectKey == "" && key == ""; own {
		scope = tenant
	}
	return cmp.Or(effectKey, key, taskID), scope, own
}

// Values returns the entry as field-value pairs for XADD. Entries have the same
// fields in the same order, so that Redis stores the names once a node; only
// what few tasks have is left out where it is not set.
func (e *TaskEntry) Values() []any {
	taskID, key := e.TaskID, e.IdempotencyKey
	id := e.ID.String()
	if taskID == id {
		taskID = ""
	}
	if key == e.TaskID {
		key = ""
	}
	v := []any{
		FieldVersion, WireVersion,
		FieldID, id,
		FieldTaskID, taskID,
		FieldToolName, e.Type,
		FieldPayload, e.Payload,
		FieldTenant, e.Tenant,
		FieldAttempt, e.Attempt,
		FieldMaxRetries, e.MaxRetries,
		FieldDelivery, e.Delivery,
		FieldTimeoutMS, e.Timeout.Milliseconds(),
		FieldIdempotencyKey, key,
		FieldTraceID, e.TraceID,
		FieldEnqueuedAt, e.EnqueuedAt.UnixMilli(),
	}
	if e.KeyOwn != (e.IdempotencyKey == e.TaskID) {
		kind := KeyGiven
		if e.KeyOwn {
			kind = KeyOfTask
		}
		v = append(v, FieldIdempotencyKeyKind, kind)
	}
	if e.IdempotencyScope != "" && e.IdempotencyScope != e.Tenant {
		v = append(v, FieldIdempotencyScope, e.IdempotencyScope)
	}
	if e.HeartbeatTimeout > 0 {
		v = append(v, FieldHeartbeatTimeoutMS, e.HeartbeatTimeout.Milliseconds())
	}
	if e.Solo {
		v = append(v, FieldSolo, "1")
	}
	if !e.ScheduledAt.IsZero() {
		v = append(v, FieldScheduledAt, e.ScheduledAt.UnixMilli())
	}
	if len(e.Approvals) > 0 {
		v = append(v, FieldApprovals, e.Approvals)
	}
	if len(e.Dependencies) > 0 {
		v = append(v, FieldDependencies, e.Dependencies)
	}
	return v
}

// Pair is the identity of one delivery: it is in its stream at most once.
type Pair struct {
	ID       ID
	Delivery int64
}

// String is the pair as it is a member of KeyTombstones: the task's id and the
// delivery with a colon between.
func (p Pair) String() string { return p.ID.String() + ":" + strconv.FormatInt(p.Delivery, 10) }

// ParsePair reads what String writes; ok is false if s is not of that form.
func ParsePair(s string) (p Pair, ok bool) {
	id, delivery, ok := strings.Cut(s, ":")
	if !ok {
		return p, false
	}
	var err error
	if p.ID, err = ParseID(id); err != nil {
		return Pair{}, false
	}
	if p.Delivery, err = strconv.ParseInt(delivery, 10, 64); err != nil {
		return Pair{}, false
	}
	return p, p.String() == s
}

// PairOf reads only the identity of a task entry; ok is false if the entry is
// no task.
func PairOf(values map[string]any) (p Pair, ok bool) {
	d := decoder{values: values}
	p = Pair{d.id(FieldID), d.integer(FieldDelivery, 1, 1<<62)}
	return p, d.err == nil
}

// DecodeTask reads a task entry. Unknown fields are ignored. The error is an
// *Error with code TASK_INPUT_INVALID that names the field.
func DecodeTask(values map[string]any) (*TaskEntry, error) {
	d := decoder{values: values}
	d.version()
	e := &TaskEntry{
		ID:             d.id(FieldID),
		TaskID:         d.optional(FieldTaskID, maxName),
		Type:           d.required(FieldToolName, maxName),
		Payload:        []byte(d.required(FieldPayload, maxContent)),
		Tenant:         d.optional(FieldTenant, maxName),
		Attempt:        int(d.integer(FieldAttempt, 1, 1<<31-1)),
		MaxRetries:     int(d.integer(FieldMaxRetries, 0, 1<<31-1)),
		Delivery:       d.integer(FieldDelivery, 1, 1<<62),
		Timeout:        time.Duration(d.integer(FieldTimeoutMS, 1, 1<<31-1)) * time.Millisecond,
		IdempotencyKey: d.optional(FieldIdempotencyKey, maxName),
		TraceID:        d.optional(FieldTraceID, maxName),
		EnqueuedAt:     d.time(FieldEnqueuedAt),
		Solo:           d.optional(FieldSolo, maxName) == "1",
		ScheduledAt:    d.optionalTime(FieldScheduledAt),
		Approvals:      d.bytes(FieldApprovals),
		Dependencies:   d.bytes(FieldDependencies),

		IdempotencyScope: d.optional(FieldIdempotencyScope, maxName),
	}
	kind := d.optional(FieldIdempotencyKeyKind, maxName)
	if d.optional(FieldHeartbeatTimeoutMS, maxName) != "" {
		e.HeartbeatTimeout = time.Duration(d.integer(FieldHeartbeatTimeoutMS, 1, 1<<31-1)) * time.Millisecond
	}
	if d.err != nil {
		return nil, d.err
	}
	if e.TaskID == "" {
		e.TaskID = e.ID.String()
	}
	if e.IdempotencyKey == "" {
		e.IdempotencyKey = e.TaskID
	}
	if e.Tenant == "" {
		e.Tenant = DefaultTenant
	}
	if e.IdempotencyScope == "" {
		e.IdempotencyScope = e.Tenant
	}
	e.KeyOwn = kind == KeyOfTask || kind == "" && e.IdempotencyKey == e.TaskID
	return e, nil
}

// Text makes s fit for an event or a dead letter: valid UTF-8 without NUL, at
// most 4 KiB.
func Text(s string) string {
	ok := len(s) <= maxText && utf8.ValidString(s)
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] != 0
	}
	if ok {
		return s
	}
	out := make([]rune, 0, min(len(s), maxText))
	n := 0
	for _, r := range s {
		if r == 0 {
			r = utf8.RuneError
		}
		if n += utf8.RuneLen(r); n > maxText-len("…") {
			return string(out) + "…"
		}
		out = append(out, r)
	}
	return string(out)
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
