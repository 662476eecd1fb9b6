package cli

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// filterFlags select dead letters.
type filterFlags struct {
	tenant, typ, code, fingerprint, queue, status string

	older, newer age
	since, until string

	// allTenants lifts the default of --tenant where a command changes something.
	allTenants bool
}

// filterNames are the flags, for whether any was given.
var filterNames = []string{"type", "tenant", "code", "fingerprint", "queue", "status", "older-than", "newer-than", "since", "until"}

// addChanging adds the flags to a command that changes what they select. As in
// all of our programs, that is of one tenant unless it is told otherwise.
func (f *filterFlags) addChanging(fs *pflag.FlagSet) {
	f.add(fs, "open")
	fs.Lookup("tenant").Usage = "only this tenant (default: \"default\")"
	fs.BoolVar(&f.allTenants, "all-tenants", false, "of every tenant, and entries that were no task, too")
}

func (f *filterFlags) add(fs *pflag.FlagSet, status string) {
	fs.StringVar(&f.typ, "type", "", "only this task type")
	fs.StringVar(&f.tenant, "tenant", "", "only this tenant (default: every tenant)")
	fs.StringVar(&f.code, "code", "", "only those whose last failure has this code, e.g. TASK_TIMEOUT; TASK_RETRY_EXHAUSTED: those whose retries are used up")
	fs.StringVar(&f.fingerprint, "fingerprint", "", "only this kind of error; list --group-by fingerprint shows them")
	fs.StringVar(&f.queue, "queue", "", "only this queue")
	fs.StringVar(&f.status, "status", "", "only open, requeued, discarded or expired ones (default: "+status+")")
	fs.Var(&f.older, "older-than", "only those that failed longer ago than this, e.g. 90m, 36h, 7d")
	fs.Var(&f.newer, "newer-than", "only those that failed no longer ago than this")
	fs.StringVar(&f.since, "since", "", "only those that failed at or after this RFC 3339 time")
	fs.StringVar(&f.until, "until", "", "only those that failed before this RFC 3339 time")
}

// build makes the filter; given tells whether any flag was set. A flag that is
// set but empty, as by an unset shell variable, must not select everything.
func (f *filterFlags) build(fs *pflag.FlagSet, now time.Time) (out *penstockv1.DeadLetterFilter, given bool, err error) {
	for _, name := range filterNames {
		if !fs.Changed(name) {
			continue
		}
		if given = true; fs.Lookup(name).Value.String() == "" {
			return nil, true, usage(fmt.Errorf("--%s is empty; leave it out to select all", name))
		}
	}
	for _, pair := range [][2]string{{"older-than", "until"}, {"newer-than", "since"}} {
		if fs.Changed(pair[0]) && fs.Changed(pair[1]) {
			return nil, true, usage(fmt.Errorf("--%s and --%s exclude each other", pair[0], pair[1]))
		}
	}
	out = &penstockv1.DeadLetterFilter{
		Tenant: f.tenant, Type: f.typ, ErrorCode: f.code, Fingerprint: f.fingerprint, Queue: f.queue, Status: f.status,
	}
	if out.FailedAfter, err = bound("since", f.since, f.newer, now); err != nil {
		return nil, true, err
	}
	out.FailedBefore, err = bound("until", f.until, f.older, now)
	return out, given, err
}

// bound is one end of the time range: a time or an age, or neither.
func bound(name, at string, old age, now time.Time) (*timestamppb.Timestamp, error) {
	switch {
	case at != "":
		t, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return nil, usage(fmt.Errorf("--%s is %q, want an RFC 3339 time such as 2026-02-25T12:00:00Z", name, at))
		}
		return timestamppb.New(t), nil
	case old.given:
		return timestamppb.New(now.Add(-old.d)), nil
	}
	return nil, nil
}

// age is a flag: a duration that may also have weeks and days.
type age struct {
	d     time.Duration
	given bool
}

var ageUnits = regexp.MustCompile(`^(?:(\d{1,4})w)?(?:(\d{1,5})d)?(.*)$`)

func (a *age) Set(s string) error {
	m := ageUnits.FindStringSubmatch(s)
	if s == "" || m == nil {
		return errors.New("want a duration such as 90m, 36h or 7d")
	}
	var d time.Duration
	for i, unit := range []time.Duration{7 * 24 * time.Hour, 24 * time.Hour} {
		if m[i+1] != "" {
			n, _ := strconv.Atoi(m[i+1]) // the pattern bounds it
			d += time.Duration(n) * unit
		}
	}
	if m[3] != "" {
		rest, err := time.ParseDuration(m[3])
		if err != nil || rest < 0 {
			return errors.New("want a duration such as 90m, 36h or 7d")
		}
		d += rest
	}
	*a = age{d, true}
	return nil
}

func (a *age) String() string {
	if !a.given {
		return ""
	}
	return a.d.String()
}

func (*age) Type() string { return "duration" }

// maxIDs bounds what is read as a list of ids.
const maxIDs = 1_000_000

// idArgs are the dead letters that a command line names, each once; "-" reads
// them from standard input, separated by white space.
func idArgs(cmd *cobra.Command, a []string) ([]string, error) {
	if len(a) == 1 && a[0] == "-" {
		b, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), 64*maxIDs))
		if err != nil {
			return nil, fmt.Errorf("read ids from standard input: %w", err)
		}
		if a = strings.Fields(string(b)); len(a) == 0 {
			return nil, usage(errors.New("standard input names no dead letter"))
		}
		if len(a) > maxIDs {
			return nil, usage(fmt.Errorf("standard input names more than %d dead letters", maxIDs))
		}
	}
	seen := make(map[string]bool, len(a))
	var ids []string
	for _, id := range a {
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// selection is what a command that changes dead letters was told to take:
// either ids or a filter.
type selection struct {
	ids    []string
	filter *penstockv1.DeadLetterFilter
}

func selectionOf(cmd *cobra.Command, a []string, f *filterFlags, all bool) (sel selection, err error) {
	filter, given, err := f.build(cmd.Flags(), time.Now())
	switch {
	case err != nil:
		return sel, err
	case len(a) > 0 && (given || all || f.allTenants):
		return sel, usage(errors.New("give either ids or filters, not both"))
	case len(a) > 0:
		sel.ids, err = idArgs(cmd, a)
		return sel, err
	case filter.Tenant != "" && f.allTenants:
		return sel, usage(errors.New("--tenant and --all-tenants exclude each other"))
	case given && all:
		return sel, usage(errors.New("--all and filters exclude each other"))
	case !given && !all:
		return sel, usage(fmt.Errorf("name dead letters, or select them with filters; --all takes every open one of a tenant; see %s --help", cmd.CommandPath()))
	}
	if filter.Tenant == "" && !f.allTenants {
		filter.Tenant = protocol.DefaultTenant
	}
	sel.filter = filter
	return sel, nil
}
