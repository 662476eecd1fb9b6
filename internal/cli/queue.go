package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func queueCmd() *cobra.Command {
	c := group(&cobra.Command{
		Use: "queue", Short: "Look at queues: what they hold, how long it waits, how fast it comes and goes",
		Long: `Look at queues: what they hold, how long it waits, and how fast it comes and goes.

UNDELIVERED  in the stream, no worker has it    BACKLOG    due, waits for room in the stream
PENDING      a worker holds it                  SCHEDULED  not due yet
OLDEST       for how long the one that waits longest for a worker has been due

Rates are tasks a minute, within the last minute or as much of it as the latest
20,000 tasks or events of the deployment cover; FAILED is for good. They, and
the counts by state, are up to 2 s old. A + says that counting stopped: there
may be more.`,
	})
	unknown := c.RunE
	c.RunE = func(cmd *cobra.Command, a []string) error {
		err := unknown(cmd, a)
		if len(a) == 1 && err != nil {
			return usage(fmt.Errorf("%w; to show a queue: %s get %s", err, cmd.CommandPath(), shellWord(a[0])))
		}
		return err
	}
	clientFlags(c)
	c.AddCommand(queueListCmd(), queueGetCmd())
	return c
}

func queueListCmd() *cobra.Command {
	var limit int
	var token string
	c := &cobra.Command{
		Use: "list", Short: "List queues by name", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := newPrinter(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			l := &listing[*penstockv1.GetQueueResponse]{
				p: p, key: "queues", row: queueRow,
				head: "QUEUE\tUNDELIVERED\tPENDING\tBACKLOG\tSCHEDULED\tOLDEST\tENQUEUED/MIN\tSUCCEEDED/MIN\tFAILED/MIN",
			}
			next, err := l.pages(limit, 100, token, func(size int32, token string) ([]*penstockv1.GetQueueResponse, string, error) {
				res, err := cl.RPC().ListQueues(cmd.Context(), connect.NewRequest(&penstockv1.ListQueuesRequest{PageSize: size, PageToken: token}))
				if err != nil {
					return nil, "", err
				}
				return res.Msg.Queues, res.Msg.NextPageToken, nil
			})
			if err == nil && next != "" && p.table() {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "there are more: --page-token %s\n", next)
			}
			return err
		},
	}
	c.Flags().StringVar(&token, "page-token", "", "go on after an earlier list")
	c.Flags().IntVar(&limit, "limit", 100, "at most this many; 0: all")
	return c
}

// counted is a number of which there may be more than were counted.
func counted(n int64, atLeast bool) string {
	s := strconv.FormatInt(n, 10)
	if atLeast {
		s += "+"
	}
	return s
}

// maxDepth is where the server stops counting what waits in Postgres.
const maxDepth = 10_000

func queueRow(w io.Writer, q *penstockv1.GetQueueResponse) {
	r := q.GetRates()
	_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", line(q.Queue, 64), q.Undelivered, q.Pending,
		counted(q.Backlog, q.Backlog >= maxDepth), counted(q.Scheduled, q.Scheduled >= maxDepth), waiting(q),
		perMinute(r.GetEnqueued()), perMinute(r.GetSucceeded()), perMinute(r.GetFailed()))
}

func waiting(q *penstockv1.GetQueueResponse) string {
	if q.OldestWaitingMs == 0 {
		return "-"
	}
	d := time.Duration(q.OldestWaitingMs) * time.Millisecond
	if d >= time.Minute {
		d = d.Round(time.Second)
	}
	return d.String()
}

func perMinute(perSecond float64) string {
	return strconv.FormatFloat(math.Round(perSecond*600)/10, 'f', -1, 64)
}

func queueGetCmd() *cobra.Command {
	return &cobra.Command{
		Use: "get [QUEUE]", Short: "Show one queue, \"default\" by default; exit code 3 if there is none of that name", Args: args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			req := &penstockv1.GetQueueRequest{Queue: protocol.DefaultQueue}
			if len(a) == 1 {
				if req.Queue = a[0]; a[0] == "" {
					return usage(errors.New("the queue's name is empty"))
				}
			}
			res, err := cl.RPC().GetQueue(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			return (&printer{w: w}).columns(func(w io.Writer) { queueFacts(w, res.Msg) })
		},
	}
}

func queueFacts(w io.Writer, q *penstockv1.GetQueueResponse) {
	r := q.GetRates()
	rows := [][2]string{
		{"queue", q.Queue}, {"stream", q.Stream},
		{"undelivered", strconv.FormatInt(q.Undelivered, 10)}, {"pending", strconv.FormatInt(q.Pending, 10)}, {"length", strconv.FormatInt(q.Length, 10)},
		{"backlog", counted(q.Backlog, q.Backlog >= maxDepth)}, {"scheduled", counted(q.Scheduled, q.Scheduled >= maxDepth)},
		{"oldest", waiting(q)},
	}
	for _, s := range q.States {
		rows = append(rows, [2]string{s.State, counted(s.Count, q.AtLeast)})
	}
	over := (time.Duration(r.GetWindowMs()) * time.Millisecond).String()
	for _, p := range []struct {
		name string
		rate float64
	}{{"enqueued", r.GetEnqueued()}, {"succeeded", r.GetSucceeded()}, {"failed", r.GetFailed()}, {"cancelled", r.GetCancelled()}} {
		rows = append(rows, [2]string{p.name, perMinute(p.rate) + "/min, over " + over})
	}
	facts(w, rows)
}
