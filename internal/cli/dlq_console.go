package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
)

// console is what a command may know about the terminal it runs at.
type console struct {
	// interactive: there is somebody to ask. Standard input and standard error
	// are terminals.
	interactive bool
	// bar: progress can be drawn. Standard error is a terminal.
	bar bool
	// getenv looks up VISUAL and EDITOR.
	getenv func(string) string
	// poll is the first pause between two looks at a batch; it grows tenfold.
	poll time.Duration

	in *bufio.Reader // of the answers; what it has read ahead stays in it
}

func systemConsole() *console {
	tty := isatty.IsTerminal(os.Stderr.Fd())
	return &console{interactive: tty && isatty.IsTerminal(os.Stdin.Fd()), bar: tty, getenv: os.Getenv, poll: 100 * time.Millisecond}
}

// ask puts a yes-or-no question; only "y" and "yes" are a yes. The error is
// ctx's.
func (c *console) ask(ctx context.Context, cmd *cobra.Command, question string) (bool, error) {
	if c.in == nil {
		c.in = bufio.NewReader(cmd.InOrStdin())
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		text, _ := c.in.ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(text))
	}()
	select {
	case <-ctx.Done():
		_, _ = fmt.Fprintln(cmd.ErrOrStderr())
		return false, ctx.Err()
	case a := <-answer:
		return a == "y" || a == "yes", nil
	}
}

// editor finds the user's editor: VISUAL, EDITOR, or vi where there is
// somebody to use it.
func (c *console) editor() (string, error) {
	for _, name := range []string{"VISUAL", "EDITOR"} {
		if e := strings.TrimSpace(c.getenv(name)); e != "" {
			return e, nil
		}
	}
	if c.interactive {
		if vi, err := exec.LookPath("vi"); err == nil {
			return vi, nil
		}
	}
	return "", usage(errors.New("there is no editor: set VISUAL or EDITOR, or give the change with --set, --unset or --file"))
}

// runEditor runs an editor, which may be a command with arguments, on a file.
func (s *session) runEditor(editor, file string) error {
	// The shell waits for the editor even if that handles an interrupt.
	c := exec.Command("sh", "-c", "trap : INT; "+editor+` "$1"`, "sh", file)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stderr, os.Stderr // standard output may be a file
	// Ctrl-C and the like belong to the editor meanwhile; the channel takes
	// them without ending this program, and the editor starts with the default.
	taken := make(chan os.Signal, 1)
	signal.Reset(os.Interrupt)
	signal.Notify(taken, os.Interrupt)
	defer signal.Stop(taken)
	if err := c.Run(); err != nil {
		return fmt.Errorf("editor %q: %w", editor, err)
	}
	return nil
}
