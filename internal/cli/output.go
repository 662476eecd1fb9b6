package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/rpc"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// writeMessage writes a message in the JSON form of the REST API.
func writeMessage(w io.Writer, m proto.Message) error {
	b, err := rpc.MarshalJSON(nil, m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }

func stamp(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return clock(t.AsTime())
}

// line makes a text that users and handlers chose safe for a terminal, and
// short.
func line(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || 0x80 <= r && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func taskTable(w io.Writer, tasks []*penstockv1.Task) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "TASK ID\tTYPE\tSTATE\tATTEMPT\tQUEUE\tCREATED\tERROR")
	for _, t := range tasks {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\n", line(t.TaskId, 64), t.Type, t.State, t.Attempt, t.MaxRetries+1,
			t.Queue, stamp(t.CreatedAt), t.LastErrorCode.GetValue())
	}
	return tw.Flush()
}

func taskDetail(w io.Writer, t *penstockv1.Task) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(k string, v any) { _, _ = fmt.Fprintf(tw, "%s\t%v\n", k, v) }
	row("task_id", line(t.TaskId, 255))
	row("type", t.Type)
	row("state", t.State)
	row("queue", t.Queue)
	row("tenant", t.Tenant)
	row("attempt", fmt.Sprintf("%d of %d", t.Attempt, t.MaxRetries+1))
	row("delivery", t.Delivery)
	row("created_at", stamp(t.CreatedAt))
	row("started_at", stamp(t.StartedAt))
	row("finished_at", stamp(t.FinishedAt))
	if t.NextRetryAt != nil {
		row("next_retry_at", stamp(t.NextRetryAt))
	}
	if t.LastErrorCode != nil {
		row("last_error", t.LastErrorCode.Value+": "+line(t.LastErrorReason.GetValue(), 500))
	}
	if t.DlqId != "" {
		row("dlq_id", t.DlqId)
	}
	row("worker_id", line(t.WorkerId, 255))
	row("trace_id", line(t.TraceId, 255))
	if len(t.Payload) > 0 {
		row("payload", line(string(t.Payload), 500))
	}
	if len(t.Result) > 0 {
		row("result", line(string(t.Result), 500))
	}
	return tw.Flush()
}

// eventTable prints a timeline; times are relative to the first event.
func eventTable(w io.Writer, events []*penstockv1.Event, withTask bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if withTask {
		_, _ = fmt.Fprint(tw, "TASK ID\t")
	}
	_, _ = fmt.Fprintln(tw, "SEQ\tTIME\tEVENT\tSTATUS\tATTEMPT\tDELIVERY\tACTOR\tDETAIL")
	for _, e := range events {
		eventRow(tw, e, withTask)
	}
	return tw.Flush()
}

func eventRow(w io.Writer, e *penstockv1.Event, withTask bool) {
	status := e.Status
	if e.PreviousStatus != e.Status && e.PreviousStatus != "" {
		status = e.PreviousStatus + " → " + e.Status
	}
	var detail []string
	if e.ErrorCode != "" {
		detail = append(detail, e.ErrorCode)
	}
	if e.Reason != "" {
		detail = append(detail, line(e.Reason, 80))
	}
	if e.BackoffDelayMs != nil {
		detail = append(detail, fmt.Sprintf("next in %s", time.Duration(e.BackoffDelayMs.Value)*time.Millisecond))
	}
	if e.WorkerId != "" {
		detail = append(detail, "worker "+line(e.WorkerId, 60))
	}
	if e.MessageId != "" {
		detail = append(detail, "entry "+line(e.MessageId, 40))
	}
	if withTask {
		_, _ = fmt.Fprintf(w, "%s\t", line(e.TaskId, 64))
	}
	_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", e.Seq, stamp(e.OccurredAt), e.Type, status, e.Attempt, e.Delivery, e.Actor, strings.Join(detail, "; "))
}
