package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-dev/penstock/internal/rpc"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// maxShown bounds the tasks whose state is asked for, and the events shown, of
// one dead letter.
const (
	maxShownTasks  = 100
	maxShownEvents = 10_000
)

func dlqShowCmd(con *console) *cobra.Command {
	return &cobra.Command{
		Use: "show DLQ_ID", Short: "Show one dead letter: payload, edits, attempts, timeline, requeues", Args: args(cobra.ExactArgs(1)),
		Long: `Show one dead letter: its payload and what was edited, the error of every
attempt, the timeline of its task, and the tasks that came out of it with their
present state. As JSON it is the dead letter with two more members: "timeline",
its task's events, and "requeued_tasks", the new tasks as they are now.`,
		Example: "  dlq-replay show 01998a52-3f4e-7c11-9d2a-0f1e2d3c4b5a\n  dlq-replay show DLQ_ID -o json | jq .payload > payload.json",
		RunE: func(cmd *cobra.Command, a []string) error {
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			d, err := s.get(cmd.Context(), a[0])
			if err != nil {
				return err
			}
			events, err := s.timeline(cmd.Context(), d)
			if err != nil {
				return err
			}
			tasks, err := s.cameOut(cmd.Context(), d)
			if err != nil {
				return err
			}
			if !s.out.table() {
				return writeDeadJSON(s.out.w, d, events, tasks)
			}
			return s.showDead(d, events, tasks)
		},
	}
}

// timeline is the event log of the dead letter's task, or of the dead letter
// itself where there was no task; nothing if the log was removed.
func (s *session) timeline(ctx context.Context, d *penstockv1.DeadLetter) (out []*penstockv1.Event, err error) {
	req := &penstockv1.ListEventsRequest{TaskId: d.TaskId, Tenant: d.Tenant, PageSize: 1000}
	if req.TaskId == "" {
		req.TaskId = d.DlqId
	}
	for len(out) < maxShownEvents {
		res, err := s.tasks.ListEvents(ctx, connect.NewRequest(req))
		if connect.CodeOf(err) == connect.CodeNotFound {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, res.Msg.Events...)
		if req.AfterSeq = res.Msg.NextAfterSeq; req.AfterSeq == 0 {
			return out, nil
		}
	}
	s.say("only the first %d events are shown; orchestrator task events has all", len(out))
	return out, nil
}

// cameOut are the tasks that a dead letter was requeued as, by task id; those
// that were removed are missing.
func (s *session) cameOut(ctx context.Context, d *penstockv1.DeadLetter) (map[string]*penstockv1.Task, error) {
	out := map[string]*penstockv1.Task{}
	last := d.Requeues[max(0, len(d.Requeues)-maxShownTasks):]
	for _, r := range last {
		res, err := s.tasks.GetTask(ctx, connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: r.TaskId, Tenant: d.Tenant}))
		switch {
		case connect.CodeOf(err) == connect.CodeNotFound:
		case err != nil:
			return nil, err
		default:
			out[r.TaskId] = res.Msg.Task
		}
	}
	return out, nil
}

// writeDeadJSON writes a dead letter with what was looked up about it.
func writeDeadJSON(w io.Writer, d *penstockv1.DeadLetter, events []*penstockv1.Event, tasks map[string]*penstockv1.Task) error {
	b, err := rpc.MarshalJSON(nil, d)
	if err != nil {
		return err
	}
	var came []*penstockv1.Task
	for _, r := range d.Requeues {
		if t := tasks[r.TaskId]; t != nil {
			came = append(came, t)
		}
	}
	if b, err = appendMember(b, "timeline", events); err != nil {
		return err
	}
	if b, err = appendMember(b, "requeued_tasks", came); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// appendMember adds a member with a list to a JSON object that is not empty.
func appendMember[T proto.Message](object []byte, name string, list []T) ([]byte, error) {
	b := fmt.Appendf(object[:len(object)-1], `,"%s":[`, name)
	for i, m := range list {
		if i > 0 {
			b = append(b, ',')
		}
		var err error
		if b, err = rpc.MarshalJSON(b, m); err != nil {
			return nil, err
		}
	}
	return append(b, "]}"...), nil
}

func (s *session) showDead(d *penstockv1.DeadLetter, events []*penstockv1.Event, tasks map[string]*penstockv1.Task) error {
	w := s.out.w
	if err := s.out.columns(func(w io.Writer) { deadFacts(w, d) }); err != nil {
		return err
	}
	section := func(format string, a ...any) { _, _ = fmt.Fprintf(w, "\n"+format+":\n", a...) }
	switch {
	case d.ErasedAt != nil:
		section("content")
		_, _ = fmt.Fprintln(w, "  erased at "+stamp(d.ErasedAt))
	case d.ContentHidden:
		section("content")
		_, _ = fmt.Fprintln(w, "  "+hidden)
	}
	if len(d.Payload) > 0 {
		section("payload as it failed")
		_, _ = fmt.Fprintln(w, block(prettyJSON(d.Payload)))
	}
	if len(d.Raw) > 0 {
		section("fields of the entry")
		_, _ = fmt.Fprintln(w, block(prettyJSON(d.Raw)))
	}
	if n := len(d.Edits); n > 0 {
		e := d.Edits[n-1]
		section("edited payload (revision %d by %s at %s%s)", e.Revision, line(e.Principal, 64), stamp(e.CreatedAt), because(e.Reason))
		_, _ = fmt.Fprintln(w, block(prettyJSON(e.Payload)))
		section("difference")
		writeDiff(w, e.Diff)
	}
	if len(d.Errors) > 0 {
		section("attempts")
		if err := s.out.columns(func(w io.Writer) { attemptTable(w, d.Errors) }); err != nil {
			return err
		}
	}
	if len(d.Requeues) > 0 {
		section("requeues")
		if err := s.out.columns(func(w io.Writer) { requeueTable(w, d.Requeues, tasks) }); err != nil {
			return err
		}
	}
	if len(events) == 0 {
		return nil
	}
	section("timeline")
	return eventTable(w, events, false)
}

// because is a reason, if there is one, as the end of a phrase.
func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + line(reason, 200)
}

// facts writes names and values, without those that are empty.
func facts(w io.Writer, rows [][2]string) {
	for _, r := range rows {
		if r[1] != "" && r[1] != "-" {
			_, _ = fmt.Fprintf(w, "%s\t%s\n", r[0], line(r[1], 2000))
		}
	}
}

func deadFacts(w io.Writer, d *penstockv1.DeadLetter) {
	facts(w, [][2]string{
		{"dlq_id", d.DlqId}, {"status", deadStatus(d)}, {"task_id", d.TaskId}, {"type", d.Type}, {"tenant", d.Tenant}, {"queue", d.Queue},
		{"failed_at", stamp(d.FailedAt)}, {"recorded_at", stamp(d.RecordedAt)}, {"settled_at", stamp(d.SettledAt)},
		{"retry_count", fmt.Sprint(d.RetryCount)}, {"error_code", d.ErrorCode}, {"cause_code", d.CauseCode}, {"error", d.Error}, {"fingerprint", d.Fingerprint},
		{"stream", d.Stream}, {"message_id", d.MessageId},
		{"discard_reason", d.DiscardReason}, {"discard_proposed_by", d.DiscardProposedBy},
		{"discard_confirmed_by", d.DiscardConfirmedBy}, {"discard_batch_id", d.DiscardBatchId},
	})
}

func attemptTable(w io.Writer, errs []*penstockv1.AttemptError) {
	_, _ = fmt.Fprintln(w, "ATTEMPT\tAT\tCODE\tWORKER\tNEXT AFTER\tERROR")
	for _, e := range errs {
		next := "-"
		if e.BackoffDelayMs != nil {
			next = (time.Duration(e.BackoffDelayMs.Value) * time.Millisecond).String()
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", e.Attempt, stamp(e.At), line(e.ErrorCode, 40), orDash(line(e.WorkerId, 60)), next, line(e.Error, 200))
	}
}

func requeueTable(w io.Writer, requeues []*penstockv1.Requeue, tasks map[string]*penstockv1.Task) {
	_, _ = fmt.Fprintln(w, "N\tTASK ID\tSTATE\tAT\tBY\tPAYLOAD\tBATCH")
	for _, r := range requeues {
		state := "-"
		if t := tasks[r.TaskId]; t != nil {
			state = t.State
		}
		payload := "as it failed"
		if r.Revision > 0 {
			payload = fmt.Sprintf("revision %d", r.Revision)
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\n", r.N, line(r.TaskId, 64), state, stamp(r.CreatedAt), line(r.Principal, 64), payload, orDash(r.BatchId))
	}
}

// writeDiff writes the changes of an edit, one a line.
func writeDiff(w io.Writer, diff []byte) {
	var changes []struct {
		Op, Path string
		From, To json.RawMessage
	}
	if len(diff) == 0 || json.Unmarshal(diff, &changes) != nil {
		_, _ = fmt.Fprintln(w, "  "+line(string(diff), 2000))
		return
	}
	if len(changes) == 0 {
		_, _ = fmt.Fprintln(w, "  none: the payload is as it failed")
	}
	for _, c := range changes {
		path := line(c.Path, 200)
		if path == "" {
			path = "the whole payload"
		}
		var out string
		switch c.Op {
		case "add":
			out = "+ " + path
		case "remove":
			out = "- " + path
		case "more":
			out = fmt.Sprintf("… and %s more changes", line(string(c.To), 20))
			c.To = nil
		default:
			out = "~ " + path
		}
		var values []string
		for _, v := range []json.RawMessage{c.From, c.To} {
			if len(v) > 0 {
				values = append(values, line(string(v), 200))
			}
		}
		if len(values) > 0 {
			out += ": " + strings.Join(values, " → ")
		}
		_, _ = fmt.Fprintln(w, "  "+out)
	}
}
