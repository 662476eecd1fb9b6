package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// editFlags are those of edit.
type editFlags struct {
	changes  changes
	file     string
	reason   string
	revision int32
	original bool
	requeue  bool
	again    bool
}

func dlqEditCmd(con *console) *cobra.Command {
	var f editFlags
	c := &cobra.Command{
		Use: "edit DLQ_ID", Short: "Change the payload that the next requeue sends", Args: args(cobra.ExactArgs(1)),
		Long: `Change the payload that the next requeue of a dead letter sends. The payload as it
failed is kept. Without --set, --unset or --file it opens in VISUAL or EDITOR;
leaving it as it was stores nothing.

A path is keys and indexes: customer.name, items[0].sku, ["odd.key"].x; the index
after the last one appends, and "." is the whole payload. A value is JSON if it
is valid JSON, else a string: --set n=12 a number, --set 'n="12"' and
--set name=Ann strings, --set name= an empty one.`,
		Example: `  dlq-replay edit DLQ_ID
  dlq-replay edit DLQ_ID --set customer.email=a@example.com --unset coupon --requeue
  dlq-replay show DLQ_ID -o json | jq '.payload | .amount /= 100' | dlq-replay edit DLQ_ID --file -`,
		RunE: func(cmd *cobra.Command, a []string) error {
			if len(f.changes) > 0 && cmd.Flags().Changed("file") {
				return usage(errors.New("--file and --set or --unset exclude each other"))
			}
			s, err := open(cmd, con)
			if err != nil {
				return err
			}
			return f.run(cmd.Context(), s, a[0])
		},
	}
	fs := c.Flags()
	fs.Var(setFlag{&f.changes}, "set", "set the value at a path; can be repeated")
	fs.Var(unsetFlag{&f.changes}, "unset", "remove the value at a path; can be repeated")
	fs.StringVar(&f.file, "file", "", "take the whole payload from this file; - is standard input")
	fs.BoolVar(&f.original, "original", false, "start from the payload as it failed, not from the last edit")
	fs.Int32Var(&f.revision, "revision", 0, "only if the dead letter is still at this revision (default: as it is now)")
	fs.StringVar(&f.reason, "reason", "", "why")
	fs.BoolVar(&f.requeue, "requeue", false, "requeue it at once after the edit")
	fs.BoolVar(&f.again, "again", false, "with --requeue: even if it was requeued before")
	return c
}

func (f *editFlags) run(ctx context.Context, s *session, id string) error {
	d, err := s.get(ctx, id)
	if err != nil {
		return err
	}
	if err := f.editable(d); err != nil {
		return err
	}
	if !s.cmd.Flags().Changed("revision") {
		f.revision = d.Revision
	}
	if d.ContentHidden && f.file == "" {
		return connect.NewError(connect.CodePermissionDenied, errors.New("your token may not read the payload, so it can't be edited in part: "+
			"give a whole new one with --file, or use a token with the role payloads"))
	}
	base, now := d.Payload, d.Payload
	if d.Revision > 0 {
		now = d.EditedPayload
		if !f.original {
			base = now
		}
	}
	if len(base) == 0 {
		base = []byte("null")
	}
	payload, kept, err := f.payload(ctx, s, d.DlqId, base)
	if err != nil {
		return err
	}
	if bytes.Equal(payload, compact(now)) {
		_ = removeFile(kept)
		s.say("the payload is unchanged: nothing was stored%s", map[bool]string{true: ", and nothing requeued"}[f.requeue])
		if !s.out.table() {
			return writeEdit(s.out.w, d, nil, false, nil)
		}
		return nil
	}
	res, err := s.dead.EditDeadLetter(ctx, connect.NewRequest(&penstockv1.EditDeadLetterRequest{
		DlqId: d.DlqId, Payload: payload, Revision: f.revision, Reason: f.reason,
	}))
	if err != nil {
		if kept != "" {
			s.say("your text is kept in %s", kept)
		}
		return err
	}
	if err := removeFile(kept); err != nil {
		s.say("%v", err)
	}
	return f.done(ctx, s, res.Msg)
}

// editable refuses early what the server would refuse after the editing.
func (f *editFlags) editable(d *penstockv1.DeadLetter) error {
	switch {
	case d.TaskId == "":
		return protocol.Errorf(protocol.CodeInputInvalid, "dlq_id", "dead letter %s is a stream entry that was no task: it has no payload to edit", d.DlqId)
	case d.Status != "open" && d.Status != "requeued":
		return protocol.Errorf(protocol.CodeInvalidTransition, "dlq_id", "dead letter %s is %s: it can't be edited", d.DlqId, d.Status)
	case f.requeue && !f.again && d.Status == "requeued":
		return protocol.Errorf(protocol.CodeInvalidTransition, "dlq_id", "dead letter %s was requeued already: leave out --requeue, or give --again, too", d.DlqId)
	}
	return nil
}

// done reports a stored edit and requeues if that was asked for.
func (f *editFlags) done(ctx context.Context, s *session, m *penstockv1.EditDeadLetterResponse) error {
	if s.out.table() {
		_, _ = fmt.Fprintf(s.out.w, "dead letter %s is at revision %d; difference to the payload as it failed:\n", m.DeadLetter.DlqId, m.DeadLetter.Revision)
		writeDiff(s.out.w, m.Diff)
	}
	var result *penstockv1.RequeueResult
	var failed error
	if f.requeue {
		if result, failed = f.send(ctx, s, m.DeadLetter.DlqId); failed != nil {
			s.say("the edit is stored, but the dead letter was not requeued")
		}
	}
	switch {
	case !s.out.table():
		return errors.Join(writeEdit(s.out.w, m.DeadLetter, m.Diff, true, result), failed)
	case failed != nil:
		return failed
	case f.requeue:
		_, err := fmt.Fprintf(s.out.w, "requeued as task %s\n", line(result.TaskId, 64))
		return err
	}
	s.say("to send it: %s", s.command("requeue", m.DeadLetter.DlqId))
	return nil
}

// send requeues what was edited.
func (f *editFlags) send(ctx context.Context, s *session, id string) (*penstockv1.RequeueResult, error) {
	res, err := s.dead.RequeueDeadLetters(ctx, connect.NewRequest(&penstockv1.RequeueDeadLettersRequest{DlqIds: []string{id}, Again: f.again, Reason: f.reason}))
	if err != nil {
		return nil, err
	}
	if len(res.Msg.Results) != 1 {
		return nil, fmt.Errorf("the server answered %d results for one dead letter", len(res.Msg.Results))
	}
	r := res.Msg.Results[0]
	if r.Error != nil {
		return r, refusal(r.Error)
	}
	return r, nil
}

// writeEdit writes what became of an edit as one JSON object.
func writeEdit(w io.Writer, d *penstockv1.DeadLetter, diff []byte, changed bool, requeue *penstockv1.RequeueResult) error {
	b, err := rpc.MarshalJSON([]byte(`{"dead_letter":`), d)
	if err != nil {
		return err
	}
	if len(diff) == 0 {
		diff = []byte("[]")
	}
	b = fmt.Appendf(b, `,"changed":%t,"diff":%s,"requeue":`, changed, diff)
	if requeue == nil {
		b = append(b, "null"...)
	} else if b, err = rpc.MarshalJSON(b, requeue); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s}\n", b)
	return err
}

// payload makes the new payload, in compact form. kept is the file that holds
// what the user wrote in an editor.
func (f *editFlags) payload(ctx context.Context, s *session, id string, base []byte) (payload []byte, kept string, err error) {
	switch {
	case len(f.changes) > 0:
		for _, c := range f.changes {
			if base, err = setJSON(base, c.path, c.value); err != nil {
				return nil, "", usage(err)
			}
		}
		return compact(base), "", nil
	case s.cmd.Flags().Changed("file"):
		b, err := f.read(s)
		if err != nil {
			return nil, "", err
		}
		if err := validJSON(b); err != nil {
			return nil, "", usage(fmt.Errorf("--file %s: %w", f.file, err))
		}
		return compact(b), "", nil
	}
	return s.inEditor(ctx, id, base)
}

func (f *editFlags) read(s *session) ([]byte, error) {
	if f.file == "-" {
		return payloadArg(s.cmd, "-")
	}
	b, err := os.ReadFile(f.file)
	if err != nil {
		return nil, usage(err)
	}
	return b, nil
}

// inEditor lets the user change the payload in an editor, again while it is not
// JSON and they want to.
func (s *session) inEditor(ctx context.Context, id string, base []byte) (payload []byte, file string, err error) {
	editor, err := s.con.editor()
	if err != nil {
		return nil, "", err
	}
	if file, err = tempFile(id, prettyJSON(base)+"\n"); err != nil {
		return nil, "", err
	}
	for {
		if err := s.runEditor(editor, file); err != nil {
			return nil, "", fmt.Errorf("%w; your text is kept in %s", err, file)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, "", fmt.Errorf("read what was edited: %w", err)
		}
		if err = validJSON(b); err == nil {
			return compact(b), file, nil
		}
		bad := fmt.Errorf("%w: nothing was stored; your text is kept in %s", err, file)
		if !s.con.interactive {
			return nil, "", usage(bad)
		}
		s.say("%v", err)
		switch yes, err := s.con.ask(ctx, s.cmd, "Edit it again?"); {
		case err != nil:
			return nil, "", &exitError{ExitInterrupted, bad}
		case !yes:
			return nil, "", usage(bad)
		}
	}
}

// tempFile makes a file that only its owner can read: payloads are private.
func tempFile(id, text string) (string, error) {
	file, err := os.CreateTemp("", "dlq-"+id+"-*.json")
	if err != nil {
		return "", fmt.Errorf("file for the editor: %w", err)
	}
	_, err = file.WriteString(text)
	if err = errors.Join(err, file.Close()); err != nil {
		_ = os.Remove(file.Name())
		return "", fmt.Errorf("file for the editor: %w", err)
	}
	return file.Name(), nil
}

func removeFile(name string) error {
	if name == "" {
		return nil
	}
	return os.Remove(name)
}

// validJSON tells where a text is not one JSON value.
func validJSON(b []byte) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return errors.New("the text is empty, want one JSON value")
	}
	var v json.RawMessage
	err := json.Unmarshal(b, &v)
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		before := b[:min(int(e.Offset), len(b))]
		return fmt.Errorf("line %d: not JSON: %w", 1+bytes.Count(before, []byte("\n")), e)
	}
	return err
}

// compact leaves out white space, so that only real changes count.
func compact(b []byte) []byte {
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return b
	}
	return out.Bytes()
}
