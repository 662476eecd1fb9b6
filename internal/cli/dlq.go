package cli

import (
	"context"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/rpc"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// DLQReplay is the command tree of the dlq-replay program.
func DLQReplay() *cobra.Command { return dlqReplay(systemConsole()) }

func dlqReplay(con *console) *cobra.Command {
	c := root("dlq-replay", "Looks at dead letters, requeues, edits and discards them", `
Penstock's dead-letter tool. It talks to an orchestrator about tasks that were
given up, and stream entries that were no task.

  dlq-replay list --group-by fingerprint        what went wrong, and how often
  dlq-replay show DLQ_ID                        one of them, with every attempt
  dlq-replay edit DLQ_ID --set amount=12        change the payload for a requeue
  dlq-replay requeue --fingerprint 4f2a… --dry-run
  dlq-replay discard propose DLQ_ID --reason "test data"

What changes many dead letters is a batch on the server: it goes on when this
program ends. Commands that name several dead letters exit with 0 if all of
them were done, with 4 if all were refused because of their state, and with 1
otherwise; each refusal is a line on standard error.`)
	config.AddFlags(c.PersistentFlags(), config.DefaultClient())
	c.PersistentFlags().StringP("output", "o", "table", "output format: table, json (one document) or jsonl (one object a line)")
	c.AddCommand(dlqListCmd(con), dlqShowCmd(con), dlqRequeueCmd(con), dlqEditCmd(con), dlqDiscardCmd(con), dlqBatchCmd(con))
	return completed(c)
}

// session is what one run of a command works with.
type session struct {
	cmd   *cobra.Command
	con   *console
	out   *printer
	dead  penstockv1connect.DeadLetterServiceClient
	tasks penstockv1connect.TaskServiceClient
}

// open checks --output and makes the client; it does not connect.
func open(cmd *cobra.Command, con *console) (*session, error) {
	out, err := newPrinter(cmd)
	if err != nil {
		return nil, err
	}
	cl, err := dial(cmd)
	if err != nil {
		return nil, err
	}
	return &session{cmd: cmd, con: con, out: out, dead: cl.DeadLetters(), tasks: cl.RPC()}, nil
}

// say writes for people: to standard error, so that results stay apart.
func (s *session) say(format string, a ...any) {
	_, _ = fmt.Fprintf(s.cmd.ErrOrStderr(), format+"\n", a...)
}

// command is a command line for the user to run next, against the same server.
func (s *session) command(args ...string) string {
	words := append([]string{s.cmd.Root().Name()}, args...)
	if f := s.cmd.Flags().Lookup("server"); f != nil && f.Changed {
		words = append(words, "--server", config.RedactText(f.Value.String()))
	}
	for i, w := range words {
		words[i] = shellWord(w)
	}
	return strings.Join(words, " ")
}

// dead counts dead letters in words.
func dead(n int32) string {
	if n == 1 {
		return "1 dead letter"
	}
	return fmt.Sprintf("%d dead letters", n)
}

// shellWord quotes a word for a POSIX shell where it has to be.
func shellWord(w string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@,=+%", r)
	}
	if w != "" && strings.IndexFunc(w, func(r rune) bool { return !plain(r) }) < 0 {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

func (s *session) get(ctx context.Context, id string) (*penstockv1.DeadLetter, error) {
	res, err := s.dead.GetDeadLetter(ctx, connect.NewRequest(&penstockv1.GetDeadLetterRequest{DlqId: id}))
	if err != nil {
		return nil, err
	}
	return res.Msg.DeadLetter, nil
}

// refused reports whether an answer is final: the server looked at the call
// and did nothing.
func refused(err error) bool {
	i := rpc.InfoOf(err)
	return i != nil && !i.Retryable
}
