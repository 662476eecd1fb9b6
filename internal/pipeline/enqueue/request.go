// Package enqueue accepts tasks: it validates them, stores whole batches in
// one transaction each, and puts those that are due into their streams.
package enqueue

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/schema"
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
	Policy           *PolicyOverride
	// ExpiresAt and StartWithinMS bound when an execution may start: a time, or
	// milliseconds from when the task is due first. At most one may be given.
	ExpiresAt     time.Time
	StartWithinMS *int64
	// HeartbeatTimeoutMS is how long the handler may go without progress.
	HeartbeatTimeoutMS *int32
	// RequestedBy is the principal who asks; "": anonymous.
	RequestedBy string
	// Name is a local name within one graph.
	Name string
	// DependsOn are tasks that must have ended before this one starts.
	DependsOn []Dependency
	// OnDependencyFailure is cancel, run, or "" for the default.
	OnDependencyFailure string
	// ScheduleID is the schedule that makes the task, ChangedBy who had a hand in
	// it besides RequestedBy. Only CreateTx takes these.
	ScheduleID protocol.ID
	ChangedBy  []string
	// Internal: a job that is moved by hand. Only such a one may go to
	// protocol.QueueInternal.
	Internal bool
}

// Limits are the configurable bounds and defaults of requests.
type Limits struct {
	MaxPayloadBytes  int
	MaxPayloadDepth  int
	MaxScheduleAhead time.Duration
	// Defaults are those of types that are not in Types.
	Defaults Defaults
	Types    map[string]*Defaults
}

// Defaults are what a task of one type has where its request says nothing.
type Defaults struct {
	// Timeout is whole milliseconds, MaxRetries 0 to 1,000.
	Timeout    time.Duration
	MaxRetries int
	// HeartbeatTimeout is whole milliseconds; 0: none.
	HeartbeatTimeout time.Duration
	// Policy is valid. It is not stored with the task: a task without an
	// override follows the configuration at the time of each failure.
	Policy protocol.RetryPolicy
	// Schema is what payloads must follow; nil: anything.
	Schema *schema.Schema
}

// of returns the defaults of a type.
func (l *Limits) of(typ string) *Defaults {
	if d := l.Types[typ]; d != nil {
		return d
	}
	return &l.Defaults
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
	givenHeartbeat  = 4
	givenTrace      = 8
)

// item is a validated request.
type item struct {
	id          protocol.ID
	name        string // the caller's own id, unless it is the stored id
	chosen      bool   // by the caller: another task may have the id
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
	policy      *protocol.RetryPolicy // nil: the type's
	override    *PolicyOverride       // what the caller gave of it
	scope       string
	key         string
	traceID     string
	expiresAt   time.Time
	startWithin int64 // milliseconds; 0: not given
	heartbeat   int32 // milliseconds; 0: none
	requestedBy string
	// guarded: a rule stops it until a person decides.
	guarded  bool
	findings []guard.Finding // those rules
	// local is its name within the call, deps what it depends on, as given.
	local string
	deps  []dep
	// upstreams are the tasks it depends on; digest is that of all it says about
	// them, graph the first task of its graph.
	upstreams     []protocol.ID
	upstreamNames []string // what the handler knows them by; as long
	onFailure     protocol.DependencyPolicy
	digest        string
	graph         protocol.ID
	scheduleID    protocol.ID // the schedule that makes it
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
func validate(r *Request, lim *Limits, now time.Time) (*item, error) {
	it := &item{typ: r.Type, key: r.IdempotencyKey, traceID: r.TraceID, requestedBy: cmp.Or(r.RequestedBy, protocol.Anonymous), scheduleID: r.ScheduleID}
	var err error
	if it.tenant, err = name("tenant", r.Tenant, protocol.DefaultTenant); err != nil {
		return nil, err
	}
	if it.queue, err = name("queue", r.Queue, protocol.DefaultQueue); err != nil {
		return nil, err
	}
	if it.queue == protocol.QueueInternal && !r.Internal {
		return nil, bad("queue", "is %s, which is kept for jobs that are moved by hand: no worker would run it; choose another one", it.queue)
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
	def := lim.of(r.Type)
	if it.payload, err = checkPayload(r.Payload, lim, def.Schema); err != nil {
		return nil, err
	}
	if err := it.setSchedule(r, lim, now); err != nil {
		return nil, err
	}
	if err := it.setBounds(r, def); err != nil {
		return nil, err
	}
	if err := it.setExpiry(r, lim); err != nil {
		return nil, err
	}
	if err := it.setDependencies(r); err != nil {
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
		it.chosen = true
		var stale bool
		it.id, stale = protocol.ResolveTaskID(it.tenant, taskID, now)
		if it.id.Named() {
			it.name = taskID
		}
		if stale { // an old UUIDv7: maybe a repeat of an old request
			it.stale, _ = protocol.ParseID(taskID)
		}
	}
	if it.traceID != "" {
		it.given |= givenTrace
	} else {
		it.traceID = fmt.Sprintf("trace-run-%s:1-%s", it.id, uuid.NewString()) // bounded, unlike the caller's own id
	}
}

func (it *item) setSchedule(r *Request, lim *Limits, now time.Time) error {
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
			return bad("scheduled_at", "is %s, want a time from 1970 to %s", r.ScheduledAt.UTC().Format(time.RFC3339), now.Add(lim.MaxScheduleAhead).UTC().Format(time.RFC3339))
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

func (it *item) setBounds(r *Request, def *Defaults) error {
	it.timeoutMS, it.maxRetries = int32(def.Timeout.Milliseconds()), int32(def.MaxRetries)
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
	it.heartbeat = int32(def.HeartbeatTimeout.Milliseconds())
	if r.HeartbeatTimeoutMS != nil {
		it.heartbeat, it.given = *r.HeartbeatTimeoutMS, it.given|givenHeartbeat
		if it.heartbeat < 1 {
			return bad("heartbeat_timeout_ms", "is %d, want 1 to %d", it.heartbeat, int32(1<<31-1))
		}
	}
	if r.Policy != nil {
		it.policy, it.override = r.Policy.over(def.Policy), r.Policy
		return it.policy.Validate()
	}
	return nil
}

// setExpiry takes the bounds of when an execution may start. A time that is over
// is no fault: the request may be a repeat.
func (it *item) setExpiry(r *Request, lim *Limits) error {
	most := 2 * lim.MaxScheduleAhead // what is due at the latest moment can still have as long to start
	switch {
	case !r.ExpiresAt.IsZero() && r.StartWithinMS != nil:
		return bad("schedule_to_start_timeout_ms", "and expires_at are both given: give one of them")
	case !r.ExpiresAt.IsZero() && (r.ExpiresAt.Year() < 1970 || time.Until(r.ExpiresAt) > most):
		return bad("expires_at", "is %s, want a time from 1970 to %s", r.ExpiresAt.UTC().Format(time.RFC3339), time.Now().Add(most).UTC().Format(time.RFC3339))
	case r.StartWithinMS != nil && (*r.StartWithinMS < 1 || *r.StartWithinMS > most.Milliseconds()):
		return bad("schedule_to_start_timeout_ms", "is %d, want 1 to %d", *r.StartWithinMS, most.Milliseconds())
	case r.HeartbeatTimeoutMS != nil && *r.HeartbeatTimeoutMS < 1:
		return bad("heartbeat_timeout_ms", "is %d, want 1 to %d", *r.HeartbeatTimeoutMS, int32(1<<31-1))
	}
	if !r.ExpiresAt.IsZero() {
		it.expiresAt = r.ExpiresAt.UTC().Truncate(time.Microsecond)
	}
	if r.StartWithinMS != nil {
		it.startWithin = *r.StartWithinMS
	}
	if r.HeartbeatTimeoutMS != nil {
		it.heartbeat = *r.HeartbeatTimeoutMS
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
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}
