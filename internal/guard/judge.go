package guard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/penstock-dev/penstock/protocol"
)

// Task is what rules see of a task.
type Task struct {
	Type, Queue, Tenant string
	// TaskID is the id that its caller knows.
	TaskID  string
	Payload []byte
	// ScheduleType, ScheduledAt and DelayMS are the schedule as it was asked for,
	// StartAt is when it lets the task start; zero times: none, at once.
	ScheduleType   string
	ScheduledAt    time.Time
	DelayMS        int64
	StartAt        time.Time
	MaxRetries     int
	TimeoutMS      int64
	IdempotencyKey string
	RequestedBy    string
}

// variables are what an expression reads.
func (t *Task) variables() (map[string]any, error) {
	payload, err := Decode(t.Payload)
	if err != nil {
		return nil, err
	}
	var scheduledAt any
	if !t.ScheduledAt.IsZero() {
		scheduledAt = t.ScheduledAt
	}
	return map[string]any{
		"task.type": t.Type, "task.queue": t.Queue, "task.tenant": t.Tenant, "task.task_id": t.TaskID, "task.payload": payload,
		"task.schedule_type": t.ScheduleType, "task.scheduled_at": scheduledAt, "task.delay_ms": t.DelayMS,
		"task.max_retries": int64(t.MaxRetries), "task.timeout_ms": t.TimeoutMS, "task.idempotency_key": t.IdempotencyKey,
		"task.requested_by": t.RequestedBy,
	}, nil
}

// Digest identifies what is approved: the task's type, payload and schedule,
// the name of the rule (or what a handler asks for) and its revision. Approving
// one digest approves no other.
func (t *Task) Digest(kind, name string, revision int64) string {
	return t.digest(Canonical(t.Payload), kind, name, revision)
}

func (t *Task) digest(canonical, kind, name string, revision int64) string {
	sum := sha256.Sum256(t.digested(canonical, kind, name, revision))
	return hex.EncodeToString(sum[:])
}

// digested is JSON, so that no two tasks have the same text.
func (t *Task) digested(canonical, kind, name string, revision int64) []byte {
	b, _ := json.Marshal([]any{ // strings and numbers always have a JSON form
		t.Type, canonical, t.ScheduleType, micros(t.ScheduledAt), t.DelayMS, micros(t.StartAt), kind, name, revision,
	})
	return b
}

// micros is a time as Postgres keeps it.
func micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Finding is a rule that stops a task.
type Finding struct {
	Rule *Rule
	// Error says why the rule could not be evaluated; "": it is true.
	Error  string
	Digest string
	found  *found
}

// found is a task that rules stop, with the canonical form of its payload: that
// takes a while to make, and each finding has a digest of it.
type found struct {
	task      Task
	canonical string
}

// StartAt makes the digest that of the task once it is known when its schedule
// lets it start.
func (f *Finding) StartAt(at time.Time) {
	f.found.task.StartAt = at
	f.digest()
}

func (f *Finding) digest() {
	f.Digest = f.found.task.digest(f.found.canonical, protocol.ApprovalGuard, f.Rule.Name, f.Rule.Revision)
}

// Set is the rules in force at one revision of them all. It is immutable.
type Set struct {
	// Revision is that of guard_state: a random number, or 1 where there never
	// was a rule.
	Revision int64
	rules    []*Compiled
	broken   []Finding // rules that can't be compiled: they stop everything
}

// NewSet compiles stored rules. One that does not compile any more stops every
// task.
func NewSet(revision int64, rules []*Rule) *Set {
	s := &Set{Revision: revision}
	for _, r := range rules {
		if !r.Enabled {
			continue
		}
		c, err := r.Compile()
		if err != nil {
			s.broken = append(s.broken, Finding{Rule: r, Error: err.Error()})
			continue
		}
		s.rules = append(s.rules, c)
	}
	return s
}

// Empty reports whether no rule is in force.
func (s *Set) Empty() bool { return len(s.rules) == 0 && len(s.broken) == 0 }

// Judge returns the rules that stop a task, in the order of the set. Tasks that
// are moved by hand are not judged: no worker runs them.
func (s *Set) Judge(t *Task) []Finding {
	if s.Empty() || t.Queue == protocol.QueueInternal {
		return nil
	}
	end := time.Now().Add(maxJudging)
	vars, err := t.variables()
	out := slices.Clone(s.broken)
	for _, c := range s.rules {
		match, problem := false, err
		if problem == nil {
			match, problem = c.matches(context.Background(), vars, end)
		}
		if !match && problem == nil {
			continue
		}
		f := Finding{Rule: &c.Rule}
		if problem != nil {
			f.Error = protocol.Text(problem.Error())
		}
		out = append(out, f)
	}
	if len(out) == 0 {
		return nil
	}
	all := &found{*t, Canonical(t.Payload)}
	for i := range out {
		out[i].found = all
		out[i].digest()
	}
	return out
}

// Test evaluates one rule for a task, while ctx lasts; see TestRule of the RPC.
func (c *Compiled) Test(ctx context.Context, t *Task) (stops bool, problem error) {
	vars, err := t.variables()
	if err != nil {
		return true, err
	}
	match, err := c.matches(ctx, vars, time.Now().Add(maxJudging))
	return match || err != nil, err
}
