package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// deadPage is how many dead letters are asked for at once: each may carry two
// payloads.
const deadPage = 100

// maxGroups is the most groups the server returns.
const maxGroups = 1000

func dlqListCmd(con *console) *cobra.Command {
	var f filterFlags
	var groupBy, token string
	var limit int
	c := &cobra.Command{
		Use: "list", Short: "List dead letters, newest first, or count them in groups", Args: args(cobra.NoArgs),
		Example: `  dlq-replay list --type email.send --newer-than 2h
  dlq-replay list --group-by fingerprint --status open
  dlq-replay list --limit 0 -o jsonl | jq -r 'select(.payload.amount > 100) | .dlq_id' | dlq-replay requeue -`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, _, err := f.build(cmd.Flags(), time.Now())
			if err != nil {
				return err
			}
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			if groupBy != "" {
				if token != "" {
					return usage(errors.New("--group-by has no pages: leave out --page-token"))
				}
				return s.groups(cmd.Context(), filter, groupBy, limit)
			}
			return s.list(cmd.Context(), filter, limit, token)
		},
	}
	f.add(c.Flags(), "any")
	c.Flags().StringVar(&groupBy, "group-by", "", "count them by fingerprint, type, tenant or code instead")
	c.Flags().StringVar(&token, "page-token", "", "go on after an earlier list")
	c.Flags().IntVar(&limit, "limit", 100, "at most this many; 0: all")
	return c
}

func (s *session) list(ctx context.Context, f *penstockv1.DeadLetterFilter, limit int, token string) error {
	l := &listing[*penstockv1.DeadLetter]{
		p: s.out, key: "dead_letters", of: &penstockv1.ListDeadLettersResponse{}, row: deadRow,
		head: "DLQ ID\tFAILED AT\tSTATUS\tTYPE\tTASK OR ENTRY\tRETRIES\tCODE\tCAUSE\tFINGERPRINT\tERROR",
	}
	search := searching{w: s.cmd.ErrOrStderr()}
	next, err := l.pages(limit, deadPage, token, func(size int32, token string) ([]*penstockv1.DeadLetter, string, error) {
		res, err := s.dead.ListDeadLetters(ctx, connect.NewRequest(&penstockv1.ListDeadLettersRequest{
			Tenant: f.Tenant, Type: f.Type, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint, Queue: f.Queue, Status: f.Status,
			FailedAfter: f.FailedAfter, FailedBefore: f.FailedBefore, PageSize: size, PageToken: token,
		}))
		if err != nil {
			return nil, "", err
		}
		search.until(res.Msg.SearchedUntil)
		return res.Msg.DeadLetters, res.Msg.NextPageToken, nil
	})
	if err == nil && next != "" && s.out.format != "json" {
		s.say("there are more: --page-token %s%s", next, s.sameTimes(f))
	}
	return err
}

// sameTimes are the flags that say what an age among those given meant: later it
// would mean another time, and a page token holds for the same one only.
func (s *session) sameTimes(f *penstockv1.DeadLetterFilter) (out string) {
	if s.cmd.Flags().Changed("newer-than") {
		out += " --since " + f.FailedAfter.AsTime().Format(time.RFC3339Nano) + " (instead of --newer-than)"
	}
	if s.cmd.Flags().Changed("older-than") {
		out += " --until " + f.FailedBefore.AsTime().Format(time.RFC3339Nano) + " (instead of --older-than)"
	}
	return out
}

// more tells how to go on after a list that was cut.
func (s *session) more(next string, err error) {
	if err == nil && next != "" && s.out.format != "json" {
		s.say("there are more: --page-token %s", next)
	}
}

func deadRow(w io.Writer, d *penstockv1.DeadLetter) {
	_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", d.DlqId, stamp(d.FailedAt), deadStatus(d), orDash(line(d.Type, 64)),
		line(about(d), 64), d.RetryCount, line(d.ErrorCode, 40), line(d.CauseCode, 40), line(d.Fingerprint, 16), line(d.Error, 80))
}

// about names the task, or the stream entry where there was none.
func about(d *penstockv1.DeadLetter) string {
	if d.TaskId != "" {
		return d.TaskId
	}
	return d.Stream + " " + d.MessageId
}

func deadStatus(d *penstockv1.DeadLetter) string {
	out := d.Status
	if d.RequeueCount > 1 {
		out += fmt.Sprintf(" %d×", d.RequeueCount)
	}
	if d.Revision > 0 {
		out += ", edited"
	}
	return out
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func (s *session) groups(ctx context.Context, f *penstockv1.DeadLetterFilter, by string, limit int) error {
	switch by {
	case "code":
		by = "error_code"
	case "fingerprint", "type", "tenant":
	default:
		return usage(fmt.Errorf("--group-by is %q, want fingerprint, type, tenant or code", by))
	}
	if limit < 0 || limit > maxGroups {
		return usage(fmt.Errorf("--limit is %d, want at most %d groups, or 0 for as many", limit, maxGroups))
	}
	if limit == 0 {
		limit = maxGroups
	}
	res, err := s.dead.GroupDeadLetters(ctx, connect.NewRequest(&penstockv1.GroupDeadLettersRequest{
		GroupBy: by, Tenant: f.Tenant, Type: f.Type, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint, Queue: f.Queue, Status: f.Status,
		FailedAfter: f.FailedAfter, FailedBefore: f.FailedBefore, Limit: int32(limit),
	}))
	if err != nil {
		return err
	}
	switch s.out.format {
	case "json":
		return writeMessage(s.out.w, res.Msg)
	case "jsonl":
		for _, g := range res.Msg.Groups {
			if err := writeMessage(s.out.w, g); err != nil {
				return err
			}
		}
		return nil
	}
	heads := map[string]string{"fingerprint": "FINGERPRINT", "type": "TYPE", "tenant": "TENANT", "error_code": "CAUSE"}
	return s.out.columns(func(w io.Writer) { groupTable(w, heads[by], res.Msg.Groups) })
}

// groupTable writes groups with the newest of each as an example.
func groupTable(w io.Writer, head string, groups []*penstockv1.DeadLetterGroup) {
	with := head == "FINGERPRINT" // a fingerprint says nothing by itself
	extra := ""
	if with {
		extra = "TYPE\tCAUSE\t"
	}
	_, _ = fmt.Fprintf(w, "COUNT\t%s\tFIRST\tLAST\t%sNEWEST\tERROR\n", head, extra)
	for _, g := range groups {
		d := g.Sample
		if d == nil {
			d = &penstockv1.DeadLetter{}
		}
		if with {
			extra = orDash(line(d.Type, 64)) + "\t" + line(d.CauseCode, 40) + "\t"
		}
		_, _ = fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s%s\t%s\n", g.Count, orDash(line(g.Key, 64)), stamp(g.FirstFailedAt), stamp(g.LastFailedAt),
			extra, d.DlqId, line(d.Error, 80))
	}
}
