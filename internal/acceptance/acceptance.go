// Package acceptance runs the acceptance lists of the specifications against
// a running system, each line by its name: real tasks, enqueued through the
// RPC, executed by workers of its own on queues of its own, and judged by what
// the RPC, Redis and Postgres say about them afterwards. docs/acceptance.md
// says what each line proves.
package acceptance

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/client"
)

// Tenant is whose tasks those of an acceptance are, so that the dead letters
// that it leaves are easily told from others.
const Tenant = "acceptance"

// Options are the settings of Run.
type Options struct {
	// Client reaches the system's RPC, REST its REST form; see NewREST.
	Client *client.Client
	REST   REST
	// Approver is somebody else, with the role approver: who asks for a task can't
	// approve it. nil: whether an approval lets a task go on is not found out.
	Approver *client.Client
	// Server, Token and TLS are what the workers are told about the RPC.
	Server, Token string
	TLS           *tls.Config
	// RedisURL and PostgresURL are the system's. Role is the one to take in
	// Postgres; empty: that of the URL.
	RedisURL, PostgresURL, Role string
	// RedisKeyPrefix is the system's redis.key_prefix.
	RedisKeyPrefix string
	// VisibilityTimeout is the system's, for which three of the lines wait; 0:
	// 300 s.
	VisibilityTimeout time.Duration
	// LineTimeout is how long a line may take besides what it waits for or
	// measures; after that what has not happened is a failure. 0: a minute.
	LineTimeout time.Duration
	// Timeout bounds the whole: what is not known then stays so. 0: see
	// DefaultTimeout.
	Timeout time.Duration
	// Only names the lines to run, or the beginnings of their names; none: all.
	Only []string
	// Steps is how many steps of each kind are measured, at least 20; 0: 100.
	Steps int
	// Report is told each line as soon as it is known; nil: nobody is.
	Report func(Line)
	// Log gets what the workers have to say.
	Log *slog.Logger
}

// Verdict is what became of a line.
type Verdict string

// The verdicts.
const (
	// Pass: the system does what the line says.
	Pass Verdict = "pass"
	// Fail: it does not.
	Fail Verdict = "fail"
	// Inconclusive: it is not known. A figure was not reached, but this machine
	// was too busy to measure it; or the time of the whole was over before that of
	// the line; or it takes a role, or somebody else, that was not there.
	Inconclusive Verdict = "inconclusive"
)

// Line is one line of the acceptance.
type Line struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"`
	Verdict Verdict `json:"verdict"`
	// Reasons say what is not as it must be; empty if it passed.
	Reasons []string `json:"reasons,omitempty"`
	// Notes are figures and ids: what was seen.
	Notes   []string `json:"notes,omitempty"`
	Seconds float64  `json:"seconds"`
}

// Report is what became of all lines, in the order of Names.
type Report struct {
	Passed       int    `json:"passed"`
	Failed       int    `json:"failed"`
	Inconclusive int    `json:"inconclusive"`
	Queue        string `json:"queue"`
	Lines        []Line `json:"lines"`
	// Left says what could not be cleaned up; empty if nothing is left.
	Left string `json:"left,omitempty"`
}

const (
	// defaultVisibility is the protocol's.
	defaultVisibility = 300 * time.Second
	defaultLine       = time.Minute
	defaultSteps      = 100
	// stepTime is how long three steps, one of each kind, may take on average
	// while they are measured.
	stepTime = 600 * time.Millisecond
	// spare is what DefaultTimeout has beyond the lines' own times.
	spare = 30 * time.Second
)

// check is one line: what it is called and how it is found out. Checks that are
// slow wait for the visibility timeout; those that measure run while no other
// does anything but wait.
type check struct {
	name, title    string
	slow, measures bool
	run            func(ctx context.Context, r *run, f *finding) error
}

// finding is what a check has found so far.
type finding struct {
	wrong, notes []string
	unsure       bool // what is wrong may be this machine's fault, or is only not known
}

// lacks makes it unknown how the line would have ended, for what was missing to
// find out. What is wrong stays wrong.
func (f *finding) lacks(missing []string) {
	if len(missing) > 0 && len(f.wrong) == 0 {
		f.wrong, f.unsure = missing, true
	}
}

func (f *finding) wrongf(format string, args ...any) {
	f.wrong = append(f.wrong, fmt.Sprintf(format, args...))
}

func (f *finding) notef(format string, args ...any) {
	f.notes = append(f.notes, fmt.Sprintf(format, args...))
}

// Names lists all lines in order.
func Names() []string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.name
	}
	return names
}

// selected returns the checks that Only admits. The error names what admits
// none.
func selected(only []string) ([]check, error) {
	if len(only) == 0 {
		return checks, nil
	}
	var out []check
	used := make([]bool, len(only))
	for _, c := range checks {
		take := false
		for i, o := range only {
			if o != "" && strings.HasPrefix(strings.ToLower(c.name), strings.ToLower(o)) {
				take, used[i] = true, true
			}
		}
		if take {
			out = append(out, c)
		}
	}
	for i, u := range used {
		if !u {
			return nil, fmt.Errorf("no line is called %q, or begins so; there are: %s", only[i], strings.Join(Names(), ", "))
		}
	}
	return out, nil
}

// Slow lists the lines among those that only admits that wait for the
// visibility timeout. The error names what admits none.
func Slow(only []string) (names []string, err error) {
	cs, err := selected(only)
	for _, c := range cs {
		if c.slow {
			names = append(names, c.name)
		}
	}
	return names, err
}

// DefaultTimeout is longer than all lines that o selects may take by their own
// times. o's other fields may be empty.
func DefaultTimeout(o Options) time.Duration {
	o.defaults()
	cs, _ := selected(o.Only)
	var quick, measures, slow time.Duration
	for _, c := range cs {
		switch limit := o.limit(c); {
		case c.slow:
			slow = limit
		case c.measures: // what one measures, the others judge
			measures = limit
		default:
			quick = limit
		}
	}
	return max(quick+measures, slow) + spare
}

// limit is how long a line may take: then what it waits for has not happened.
func (o *Options) limit(c check) time.Duration {
	switch {
	case c.slow:
		return o.LineTimeout + o.VisibilityTimeout*3/2
	case c.measures:
		return o.LineTimeout + time.Duration(o.Steps+warmUps)*stepTime
	}
	return o.LineTimeout
}

// defaults fills in what is a number.
func (o *Options) defaults() {
	if o.VisibilityTimeout == 0 {
		o.VisibilityTimeout = defaultVisibility
	}
	if o.LineTimeout == 0 {
		o.LineTimeout = defaultLine
	}
	if o.Steps == 0 {
		o.Steps = defaultSteps
	}
}

func (o *Options) complete() error {
	o.defaults()
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout(*o)
	}
	if o.Report == nil {
		o.Report = func(Line) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Steps < 20:
		return fmt.Errorf("acceptance: %d steps are too few for a p99, want at least 20", o.Steps)
	case o.Client == nil || o.REST == nil || o.RedisURL == "" || o.PostgresURL == "":
		return errors.New("acceptance: the RPC, its REST form, Redis and Postgres are all needed")
	}
	return nil
}
