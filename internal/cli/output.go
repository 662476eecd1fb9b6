package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/protocol"
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
		if unsafeRune(r) {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// unsafeRune reports what moves the cursor, colours, rings, breaks the line or
// shows the text in another order than it is stored.
func unsafeRune(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// block makes a text of several lines safe for a terminal.
func block(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = line(l, len(l)+1)
	}
	return strings.Join(lines, "\n")
}

// prettyJSON indents a JSON value; its numbers and the order of its keys stay.
func prettyJSON(b []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, bytes.TrimSpace(b), "", "  ") != nil {
		return string(b)
	}
	return out.String()
}

// printer writes what a command found, in the format of --output.
type printer struct {
	w      io.Writer
	format string // table, json or jsonl
}

func newPrinter(cmd *cobra.Command) (*printer, error) {
	f, _ := cmd.Flags().GetString("output")
	switch f {
	case "table", "json", "jsonl":
		return &printer{cmd.OutOrStdout(), f}, nil
	}
	return nil, usage(fmt.Errorf("--output is %q, want table, json or jsonl", f))
}

func (p *printer) table() bool { return p.format == "table" }

// columns writes a table whose cells are separated by tabs.
func (p *printer) columns(fill func(w io.Writer)) error {
	tw := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	fill(tw)
	return tw.Flush()
}

// listing writes a list that comes in pages and keeps one page at a time: rows
// of a table, the elements of one JSON document, or a JSON object a line.
type listing[T proto.Message] struct {
	p   *printer
	key string // of the list in the JSON document
	// of is a message like the RPC's response, if its list leaves fields out.
	of   proto.Message
	head string // of the table
	row  func(w io.Writer, item T)
	n    int // items written

	begun bool
}

// pages fetches and writes at most limit items (0: all) and returns the token
// of the page after them.
func (l *listing[T]) pages(limit, size int, token string, fetch func(size int32, token string) ([]T, string, error)) (string, error) {
	if limit < 0 {
		return "", usage(fmt.Errorf("--limit is %d, want at least 1, or 0 for all", limit))
	}
	for {
		n := size
		if limit > 0 {
			n = min(size, limit-l.n)
		}
		items, next, err := fetch(int32(n), token)
		if err != nil {
			return "", err
		}
		last := next == "" || limit > 0 && l.n+len(items) >= limit
		if err := l.page(items, next, last); err != nil {
			return "", err
		}
		if last {
			return next, nil
		}
		token = next
	}
}

func (l *listing[T]) page(items []T, next string, last bool) error {
	first := !l.begun
	l.begun = true
	l.n += len(items)
	if l.p.table() {
		return l.p.columns(func(w io.Writer) {
			if first {
				_, _ = fmt.Fprintln(w, l.head)
			}
			for _, i := range items {
				l.row(w, i)
			}
		})
	}
	var b []byte
	if l.p.format == "json" && first {
		b = fmt.Appendf(b, `{"%s":[`, l.key)
	}
	for n, i := range items {
		if l.p.format == "json" && (n > 0 || !first) {
			b = append(b, ',')
		}
		var err error
		if l.of != nil {
			b, err = rpc.MarshalItem(b, l.of, l.key, i)
		} else {
			b, err = rpc.MarshalJSON(b, i)
		}
		if err != nil {
			return err
		}
		if l.p.format == "jsonl" {
			b = append(b, '\n')
		}
	}
	if l.p.format == "json" && last {
		token, err := json.Marshal(next)
		if err != nil {
			return err
		}
		b = fmt.Appendf(b, "],\"next_page_token\":%s}\n", token)
	}
	_, err := l.p.w.Write(b)
	return err
}

func taskTable(w io.Writer, tasks []*penstockv1.Task) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "TASK ID\tTENANT\tTYPE\tSTATE\tATTEMPT\tQUEUE\tCREATED\tEXPIRES\tERROR")
	for _, t := range tasks {
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d/%d\t%s\t%s\t%s\t%s\n", line(t.TaskId, 64), t.Tenant, t.Type, t.State, t.Attempt, t.MaxRetries+1,
			t.Queue, stamp(t.CreatedAt), stamp(t.ExpiresAt), taskError(t))
	}
	return tw.Flush()
}

// hidden stands for what the caller may not read.
const hidden = "hidden: reading it takes the role payloads"

// taskError is why a task ended, and what failed last where that is another code.
func taskError(t *penstockv1.Task) string {
	code := t.LastErrorCode.GetValue()
	if t.CauseCode != "" && t.CauseCode != code {
		code += ": " + line(t.CauseCode, 40)
	}
	return code
}

func taskDetail(w io.Writer, t *penstockv1.Task) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(k string, v any) { _, _ = fmt.Fprintf(tw, "%s\t%v\n", k, v) }
	row("task_id", line(t.TaskId, 255))
	row("type", t.Type)
	row("state", t.State)
	if t.WaitsFor != "" {
		row("waits_for", line(t.WaitsFor+waitsHint(t), 1000))
	}
	if t.TypeUnknownSince != nil {
		row("type_unknown", "no worker that lives knows the type; handed back since "+stamp(t.TypeUnknownSince))
	}
	row("queue", t.Queue)
	row("tenant", t.Tenant)
	row("attempt", fmt.Sprintf("%d of %d", t.Attempt, t.MaxRetries+1))
	row("delivery", t.Delivery)
	row("created_at", stamp(t.CreatedAt))
	row("started_at", stamp(t.StartedAt))
	row("finished_at", stamp(t.FinishedAt))
	if t.ScheduledAt != nil {
		row("scheduled_at", stamp(t.ScheduledAt))
	}
	if t.ScheduleId != "" {
		row("schedule_id", t.ScheduleId)
	}
	if t.ExpiresAt != nil {
		row("expires_at", stamp(t.ExpiresAt))
	}
	if t.HeartbeatTimeoutMs > 0 {
		row("heartbeat_timeout", time.Duration(t.HeartbeatTimeoutMs)*time.Millisecond)
	}
	if t.NextRetryAt != nil {
		row("next_retry_at", stamp(t.NextRetryAt))
	}
	if t.LastErrorCode != nil {
		row("last_error", t.LastErrorCode.Value+": "+line(t.LastErrorReason.GetValue(), 500))
		row("cause_code", line(t.CauseCode, 40))
	}
	if t.DlqId != "" {
		row("dlq_id", t.DlqId)
	}
	if t.OriginDlqId != "" {
		row("origin_dlq_id", t.OriginDlqId)
	}
	row("requested_by", line(t.RequestedBy, 255))
	row("worker_id", line(t.WorkerId, 255))
	row("trace_id", line(t.TraceId, 255))
	if t.HeartbeatAt != nil {
		row("heartbeat_at", stamp(t.HeartbeatAt))
	}
	switch {
	case t.ErasedAt != nil:
		row("content", "erased at "+stamp(t.ErasedAt))
	case t.ContentHidden:
		row("content", hidden)
	}
	if len(t.Progress) > 0 {
		row("progress", line(string(t.Progress), 500))
	}
	if len(t.Payload) > 0 {
		row("payload", line(string(t.Payload), 500))
	}
	if len(t.Result) > 0 {
		row("result", line(string(t.Result), 500))
	}
	return tw.Flush()
}

// waitsHint is the command that shows more of what a task waits for.
func waitsHint(t *penstockv1.Task) string {
	switch {
	case t.State == string(protocol.StateWaitingApproval):
		return ": orchestrator approval list --task " + t.TaskId
	case t.State == string(protocol.StatePending) && t.OpenDependencies > 0:
		return ": orchestrator task graph " + t.TaskId
	}
	return ""
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
