package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// searching tells, from time to time, how far a list or a search has looked whose
// filter admits little: a command goes on by itself until it has what it was
// asked for.
type searching struct {
	w    io.Writer
	told time.Time
}

// sayEvery is the least time between two lines about one search.
const sayEvery = 2 * time.Second

func (s *searching) until(t *timestamppb.Timestamp) {
	if now := time.Now(); t != nil && now.Sub(s.told) >= sayEvery {
		s.told = now
		_, _ = fmt.Fprintf(s.w, "searched until %s, going on\n", stamp(t))
	}
}

// timeBound is a flag that takes a time or a duration ago.
type timeBound struct {
	flag, value string
	set         **timestamppb.Timestamp
}

// readTimes sets what the flags say.
func readTimes(now time.Time, flags ...timeBound) error {
	for _, f := range flags {
		at, err := moment(f.flag, f.value, now)
		if err != nil {
			return usage(err)
		}
		if !at.IsZero() {
			*f.set = timestamppb.New(at)
		}
	}
	return nil
}

// more tells how to go on after a list that was cut. A duration ago is another
// time by then, which a page token does not go with.
func more(cmd *cobra.Command, token string, flags ...timeBound) {
	var b strings.Builder
	for _, f := range flags {
		if _, err := time.ParseDuration(f.value); err == nil {
			fmt.Fprintf(&b, " %s %s", f.flag, (*f.set).AsTime().Format(time.RFC3339Nano))
		}
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "there are more: --page-token %s%s\n", token, b.String())
}

// taskFilter is what the flags of task list say besides the request's own fields.
type taskFilter struct {
	since, until    string
	longer, shorter time.Duration
}

func (f *taskFilter) flags(c *cobra.Command, req *penstockv1.ListTasksRequest) {
	fs := c.Flags()
	fs.StringVar(&req.Queue, "queue", "", "only this queue")
	fs.StringVar(&req.Type, "type", "", "only this type")
	fs.StringSliceVar(&req.States, "state", nil, "only these states")
	fs.StringVar(&f.since, "since", "", "only tasks created at or after this time: RFC 3339, or a duration ago such as 2h")
	fs.StringVar(&f.until, "until", "", "only tasks created before this time: RFC 3339, or a duration ago")
	fs.StringVar(&req.WorkerId, "worker", "", "only tasks that this worker runs or ran last")
	fs.StringVar(&req.ErrorCode, "code", "", "only tasks whose last error has this code, e.g. TASK_TIMEOUT")
	fs.StringVar(&req.Error, "error", "", "only tasks whose last error contains this text, whatever its case")
	fs.DurationVar(&f.longer, "longer-than", 0, "only tasks whose last execution took at least this long, or that have been running for so long, e.g. 90s")
	fs.DurationVar(&f.shorter, "shorter-than", 0, "only tasks whose last execution took less than this, or that have been running for less")
}

// times are the flags that name a time, for readTimes and more.
func (f *taskFilter) times(req *penstockv1.ListTasksRequest) []timeBound {
	return []timeBound{{"--since", f.since, &req.CreatedAfter}, {"--until", f.until, &req.CreatedBefore}}
}

func (f *taskFilter) read(req *penstockv1.ListTasksRequest, now time.Time) error {
	for _, d := range []struct {
		flag string
		d    time.Duration
		ms   *int64
	}{{"--longer-than", f.longer, &req.MinDurationMs}, {"--shorter-than", f.shorter, &req.MaxDurationMs}} {
		if d.d < 0 || d.d > 0 && d.d < time.Millisecond {
			return usage(fmt.Errorf("%s is %s, want 1ms or more", d.flag, d.d))
		}
		*d.ms = d.d.Milliseconds()
	}
	return readTimes(now, f.times(req)...)
}
