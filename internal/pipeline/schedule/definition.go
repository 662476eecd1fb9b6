package schedule

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/internal/recur"
	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/protocol"
)

// Definition says when a schedule fires and what it makes; see the RPC's
// ScheduleSpec.
type Definition struct {
	// One of Cron and EveryMS is set.
	Cron     string
	EveryMS  int64
	Timezone string
	Task     Template
	Missed   string
	// MissedMax is 1 to 1,000; 0: 100.
	MissedMax      int32
	Overlap        string
	StartAt, EndAt time.Time
}

// Template is the task of each fire.
type Template struct {
	Type               string          `json:"type"`
	Payload            json.RawMessage `json:"payload,omitempty"`
	Queue              string          `json:"queue,omitempty"`
	TimeoutMS          *int32          `json:"timeout_ms,omitempty"`
	MaxRetries         *int32          `json:"max_retries,omitempty"`
	Policy             *Policy         `json:"retry_policy,omitempty"`
	StartWithinMS      *int64          `json:"schedule_to_start_timeout_ms,omitempty"`
	HeartbeatTimeoutMS *int32          `json:"heartbeat_timeout_ms,omitempty"`
}

// Policy is a retry policy as far as it is not the type's.
type Policy struct {
	Strategy     string  `json:"strategy,omitempty"`
	BaseMS       *int64  `json:"base_ms,omitempty"`
	MaxBackoffMS *int64  `json:"max_backoff_ms,omitempty"`
	JitterMaxMS  *int64  `json:"jitter_max_ms,omitempty"`
	ScheduleMS   []int64 `json:"schedule_ms,omitempty"`
}

const (
	defaultMissedMax = 100
	maxMissedMax     = 1000
)

func bad(field, format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, field, format, args...)
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func checkName(name string) error {
	if !nameForm.MatchString(name) {
		return bad("name", "has %d bytes, want 1 to 64 of A-Z a-z 0-9 . _ -", len(name))
	}
	if _, err := protocol.ParseID(name); err == nil {
		return bad("name", "is a UUID, as ids of schedules are: choose a name")
	}
	return nil
}

// check fills in defaults and refuses what can't be; the error names the field
// below spec. now is when intervals are counted from.
func (s *Stage) check(tenant string, d *Definition, now time.Time) (*recur.Rule, error) {
	d.Timezone, d.Missed = cmp.Or(d.Timezone, "UTC"), cmp.Or(d.Missed, MissedRunOnce)
	d.Overlap, d.MissedMax = cmp.Or(d.Overlap, OverlapAllow), cmp.Or(d.MissedMax, defaultMissedMax)
	d.StartAt, d.EndAt = d.StartAt.Truncate(time.Millisecond), d.EndAt.Truncate(time.Millisecond)
	switch d.Missed {
	case MissedSkip, MissedRunOnce, MissedRunAll:
	default:
		return nil, bad("spec.missed", "is %q, want skip, run_once or run_all", clip(d.Missed))
	}
	switch {
	case d.Overlap != OverlapAllow && d.Overlap != OverlapSkip:
		return nil, bad("spec.overlap", "is %q, want allow or skip", clip(d.Overlap))
	case d.MissedMax < 1 || d.MissedMax > maxMissedMax:
		return nil, bad("spec.missed_max", "is %d, want 1 to %d", d.MissedMax, maxMissedMax)
	case d.EveryMS < 0 || d.EveryMS > recur.MaxEvery.Milliseconds():
		return nil, bad("spec.every_ms", "is %d, want %d to %d", d.EveryMS, recur.MinEvery.Milliseconds(), recur.MaxEvery.Milliseconds())
	}
	for field, at := range map[string]time.Time{"spec.start_at": d.StartAt, "spec.end_at": d.EndAt} {
		if !at.IsZero() && (at.Year() < 1970 || at.Year() > 9999) {
			return nil, bad(field, "is not a time from year 1970 to 9999")
		}
	}
	rule, err := d.rule(now)
	if f := recur.AsFault(err); f != nil {
		return nil, bad("spec."+f.Field, "%s", f.Message)
	}
	if err := s.o.Enqueue.Check(d.task(tenant, now)); err != nil {
		return nil, below(err)
	}
	return rule, nil
}

// below puts the field of a task's fault below that of the schedule.
func below(err error) error {
	if e, ok := err.(*protocol.Error); ok && e.Field != "tenant" { //nolint:errorlint // as the enqueue stage returns it
		return protocol.Errorf(e.Code, "spec.task."+e.Field, "%s", e.Message)
	}
	return err
}

func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// never is the error of one that has no fire time after now.
func (d *Definition) never() error {
	switch {
	case !d.EndAt.IsZero():
		return bad("spec.end_at", "leaves no fire time after now")
	case !d.StartAt.IsZero():
		return bad("spec.start_at", "leaves no fire time up to the end of year 9999")
	}
	return bad("spec.cron", "has no fire time in the next years")
}

// rule makes the rule; its error is a *recur.Fault.
func (d *Definition) rule(anchor time.Time) (*recur.Rule, error) {
	return recur.New(recur.Spec{
		Cron: d.Cron, Every: time.Duration(d.EveryMS) * time.Millisecond, Timezone: d.Timezone, Anchor: anchor, Start: d.StartAt, End: d.EndAt,
	})
}

// task is that of a fire.
func (d *Definition) task(tenant string, at time.Time) *Task {
	return &Task{Template: d.Task, Tenant: tenant, At: at}
}

// marshal is the template as it is stored: as the caller wrote it, but for space.
func (t *Template) marshal() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(t); err != nil {
		return nil, fmt.Errorf("store the task of a schedule: %w", err)
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// DefinitionOf reads that of a stored schedule.
func DefinitionOf(r *dbsqlc.Schedule) (*Definition, error) {
	d := &Definition{
		Cron: store.Deref(r.Cron), EveryMS: store.Deref(r.EveryMs), Timezone: r.Timezone, Missed: r.Missed, MissedMax: r.MissedMax,
		Overlap: r.Overlap, StartAt: r.StartAt.Time, EndAt: r.EndAt.Time,
	}
	if err := json.Unmarshal(r.Task, &d.Task); err != nil {
		return nil, fmt.Errorf("schedule %s: stored task: %w", r.Name, err)
	}
	return d, nil
}

// sameTimes reports whether two definitions fire at the same times.
func (d *Definition) sameTimes(o *Definition) bool {
	return d.Cron == o.Cron && d.EveryMS == o.EveryMS && d.Timezone == o.Timezone && d.StartAt.Equal(o.StartAt) && d.EndAt.Equal(o.EndAt)
}

// differs names the first field in which two definitions differ, or "".
func (d *Definition) differs(o *Definition) string {
	a, b := d.Task, o.Task
	a.Payload, b.Payload = nil, nil
	switch {
	case d.Cron != o.Cron:
		return "spec.cron"
	case d.EveryMS != o.EveryMS:
		return "spec.every_ms"
	case d.Timezone != o.Timezone:
		return "spec.timezone"
	case !d.StartAt.Equal(o.StartAt):
		return "spec.start_at"
	case !d.EndAt.Equal(o.EndAt):
		return "spec.end_at"
	case d.Missed != o.Missed:
		return "spec.missed"
	case d.MissedMax != o.MissedMax:
		return "spec.missed_max"
	case d.Overlap != o.Overlap:
		return "spec.overlap"
	case !samePayload(d.Task.Payload, o.Task.Payload):
		return "spec.task.payload"
	case !reflect.DeepEqual(a, b):
		return "spec.task"
	}
	return ""
}

// samePayload reports whether two payloads are the same JSON value; none is null.
func samePayload(a, b []byte) bool { return canonical(a) == canonical(b) }

func canonical(p []byte) string {
	if len(p) == 0 {
		return "null"
	}
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil { // was checked when it was stored
		return string(p)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(p)
	}
	return string(b)
}
