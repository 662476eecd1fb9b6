// Package cli holds the command trees of the three programs.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/version"
	"github.com/penstock-dev/penstock/protocol"
)

// Exit codes of all programs.
const (
	ExitOK          = 0
	ExitFailed      = 1   // the operation failed
	ExitUsage       = 2   // wrong arguments, flags or configuration
	ExitNotFound    = 3   // the thing asked for does not exist
	ExitConflict    = 4   // it exists with other fields, or its state forbids it
	ExitDenied      = 5   // the caller's token is wrong or missing, or is not allowed to
	ExitNotFinished = 7   // a wait ended before the task did
	ExitInterrupted = 130 // stopped by a signal
)

const exitHelp = `Exit codes: 0 success, 1 failed, 2 wrong usage or configuration, 3 not found,
4 conflict, 5 not authenticated or not allowed, 7 not finished in time,
130 interrupted.`

// exitError gives an error its exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{ExitUsage, err}
}

// Main runs a command tree with the process' arguments and signals, and
// returns the exit code. Errors go to standard error.
func Main(root *cobra.Command) int {
	redis.SetLogger(redisLog{})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A second signal ends the process at once, unless a command handles it.
	context.AfterFunc(ctx, stop)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return ExitOK
	}
	_, _ = fmt.Fprintf(os.Stderr, "%s: %s\n", root.Name(), describe(err))
	return exitCode(ctx, err)
}

// onSecondSignal calls fn when the process gets its second SIGTERM or SIGINT,
// and leaves a third to end the process at once, until release is called. The
// first is Main's: it ends ctx.
func onSecondSignal(ctx context.Context, fn func()) (release func()) {
	sig, done := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(sig, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		defer signal.Stop(sig)
		if ctx.Err() == nil {
			select {
			case <-sig:
			case <-done:
				return
			}
		}
		select {
		case <-sig:
			fn()
		case <-done:
		}
	}()
	return func() { close(done) }
}

// describe adds what the server said in detail.
func describe(err error) string {
	if info := rpc.InfoOf(err); info != nil && info.Code != "" {
		return (&protocol.Error{Code: protocol.Code(info.Code), Field: info.Field, Message: info.Message}).Error()
	}
	if connect.CodeOf(err) == connect.CodeUnauthenticated && !strings.Contains(err.Error(), "--token") {
		return config.RedactText(fmt.Sprintf("%v (--token, --token-file, PENSTOCK_TOKEN or PENSTOCK_TOKEN_FILE say who you are)", err))
	}
	if connect.CodeOf(err) == connect.CodeUnavailable && !connect.IsWireError(err) {
		return config.RedactText(fmt.Sprintf("no orchestrator answers: %v (is it running? --server or PENSTOCK_SERVER says where)", err))
	}
	if e, ok := errors.AsType[*connect.Error](err); ok && e.Code() == connect.CodePermissionDenied {
		return config.RedactText(e.Message())
	}
	return config.RedactText(err.Error())
}

func exitCode(ctx context.Context, err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[*devstack.MissingError](err); ok {
		return ExitUsage
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return ExitInterrupted
	}
	code := protocol.CodeOf(err)
	if info := rpc.InfoOf(err); info != nil {
		code = protocol.Code(info.Code)
	}
	switch code {
	case protocol.CodeNotFound:
		return ExitNotFound
	case protocol.CodeDuplicate, protocol.CodeInvalidTransition:
		return ExitConflict
	case protocol.CodeInputInvalid:
		return ExitUsage
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument:
		return ExitUsage
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return ExitDenied
	}
	return ExitFailed
}

// root makes a program's root command.
func root(name, short, long string) *cobra.Command {
	c := &cobra.Command{
		Use: name, Short: short, Long: strings.TrimSpace(long) + "\n\n" + exitHelp,
		SilenceUsage: true, SilenceErrors: true, Version: version.String(),
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true}, SuggestionsMinimumDistance: 2,
	}
	group(c)
	c.SetUsageTemplate(usageTemplate)
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	c.PersistentFlags().String("config", os.Getenv(config.FileEnv), "configuration file (YAML, TOML or JSON); also "+config.FileEnv)
	return c
}

// group makes a command that only holds others: alone it prints its help, and
// an unknown subcommand is a usage error.
func group(c *cobra.Command) *cobra.Command {
	c.Args, c.SuggestionsMinimumDistance = cobra.ArbitraryArgs, 2
	c.RunE = func(cmd *cobra.Command, a []string) error {
		if len(a) == 0 {
			return cmd.Help()
		}
		hint := ""
		if s := cmd.SuggestionsFor(a[0]); len(s) > 0 {
			hint = fmt.Sprintf("; did you mean %s?", strings.Join(s, " or "))
		}
		return usage(fmt.Errorf("unknown command %q for %q%s", a[0], cmd.CommandPath(), hint))
	}
	return c
}

// args makes an argument check whose error is a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, a []string) error {
		if err := check(cmd, a); err != nil {
			return usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
		}
		return nil
	}
}

func configFile(cmd *cobra.Command) string {
	f, _ := cmd.Flags().GetString("config")
	return f
}

// clientFlags adds what commands that talk to an orchestrator share.
func clientFlags(c *cobra.Command) {
	config.AddFlags(c.PersistentFlags(), config.DefaultClient())
	c.PersistentFlags().StringP("output", "o", "table", "output format: table or json")
	c.PersistentFlags().String("tenant", "", "tenant; default: \"default\" where one task is named or a filter changes tasks, every tenant where tasks are listed, counted or watched")
}

// dial makes the client of a command. A configuration file that --config or
// PENSTOCK_CONFIG names is the orchestrator's, not the client's.
func dial(cmd *cobra.Command) (*client.Client, error) {
	c, cfg, err := connectTo(cmd)
	if err != nil {
		return nil, err
	}
	if cfg.Token != "" && exposed(cfg.Server) {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "warning: the token goes to %s unencrypted; use https://\n", config.RedactURL(cfg.Server))
	}
	return c, nil
}

// connectTo is dial without its warnings.
func connectTo(cmd *cobra.Command) (*client.Client, config.Client, error) {
	cfg, _, err := config.LoadClient("", cmd.Flags())
	if err != nil {
		return nil, cfg, usage(err)
	}
	tls, err := cfg.TLS.Files().Config()
	if err != nil {
		return nil, cfg, usage(fmt.Errorf("tls: %w", err))
	}
	c, err := client.NewWith(cfg.Server, client.Options{RetryFor: -1, Token: cfg.Token, TLS: tls})
	return c, cfg, usage(err)
}

// exposed reports whether calls to a server can be read on the way.
func exposed(server string) bool {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" {
		return false
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		return !ip.IsLoopback()
	}
	return u.Hostname() != "localhost"
}

// output returns the writer of a command's results and whether they are JSON.
func output(cmd *cobra.Command) (w io.Writer, asJSON bool, err error) {
	f, _ := cmd.Flags().GetString("output")
	switch f {
	case "table", "json":
		return cmd.OutOrStdout(), f == "json", nil
	}
	return nil, false, usage(fmt.Errorf("--output is %q, want table or json", f))
}

// redisLog takes what the Redis library says on its own; every error that
// matters reaches us as a return value.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, v ...any) {
	slog.DebugContext(ctx, config.RedactText(fmt.Sprintf(format, v...)), "library", "go-redis")
}
