package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func enqueueCmd() *cobra.Command {
	var f struct {
		id, key, scope, queue, trace, at string
		expires                          string
		delay, timeout, within, beat     time.Duration
		maxRetries                       int32
	}
	c := &cobra.Command{
		Use: "enqueue TYPE [PAYLOAD]", Short: "Enqueue one task", Args: args(cobra.RangeArgs(1, 2)),
		Long: "Enqueue one task. PAYLOAD is one JSON value; \"-\" reads it from standard input, without one\nit is null. Prints the task's id once the task is committed.",
		Example: `  orchestrator enqueue echo '{"n":1}'
  orchestrator enqueue email.send - --key order-42 --delay 10m < mail.json`,
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			req := &penstockv1.EnqueueRequest{
				TaskId: f.id, Type: a[0], IdempotencyKey: f.key, IdempotencyScope: f.scope, Queue: f.queue, TraceId: f.trace,
			}
			req.Tenant, _ = cmd.Flags().GetString("tenant")
			if req.TaskId == "" {
				req.TaskId = uuid.Must(uuid.NewV7()).String()
			}
			if len(a) == 2 {
				if req.Payload, err = payloadArg(cmd, a[1]); err != nil {
					return err
				}
			}
			if f.at != "" {
				t, err := time.Parse(time.RFC3339Nano, f.at)
				if err != nil {
					return usage(fmt.Errorf("--at is %q, want an RFC 3339 time such as 2026-02-25T12:00:00Z", f.at))
				}
				req.ScheduleType, req.ScheduledAt = "at", timestamppb.New(t)
			}
			if cmd.Flags().Changed("delay") {
				if f.at != "" {
					return usage(fmt.Errorf("--at and --delay exclude each other"))
				}
				req.ScheduleType, req.DelayMs = "delay", f.delay.Milliseconds()
			}
			if cmd.Flags().Changed("timeout") {
				ms := int32(min(max(f.timeout.Milliseconds(), -1), 1<<31-1))
				req.TimeoutMs = &ms
			}
			if req.ExpiresAt, err = timeFlag("expires-at", f.expires); err != nil {
				return err
			}
			if cmd.Flags().Changed("start-within") {
				if f.expires != "" {
					return usage(fmt.Errorf("--expires-at and --start-within exclude each other"))
				}
				ms := f.within.Milliseconds()
				req.ScheduleToStartTimeoutMs = &ms
			}
			if cmd.Flags().Changed("heartbeat-timeout") {
				ms := int32(min(max(f.beat.Milliseconds(), -1), 1<<31-1))
				req.HeartbeatTimeoutMs = &ms
			}
			if cmd.Flags().Changed("max-retries") {
				req.MaxRetries = &f.maxRetries
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.RPC().Enqueue(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if asJSON {
				return writeMessage(w, res.Msg)
			}
			if res.Msg.IdempotentHit {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "the task existed already (idempotent hit)")
			}
			_, err = fmt.Fprintln(w, line(res.Msg.Task.TaskId, 255))
			return err
		},
	}
	clientFlags(c)
	c.Flags().StringVar(&f.id, "id", "", "the task's id (default: a new UUIDv7)")
	c.Flags().StringVar(&f.key, "key", "", "idempotency key: one task's within its scope, whatever the type")
	c.Flags().StringVar(&f.scope, "scope", "", "where the key is unique, e.g. TENANT/TYPE (default: the tenant)")
	c.Flags().StringVar(&f.queue, "queue", "", "queue (default \"default\")")
	c.Flags().StringVar(&f.trace, "trace-id", "", "trace id (default: one is made)")
	c.Flags().StringVar(&f.at, "at", "", "run at this RFC 3339 time")
	c.Flags().DurationVar(&f.delay, "delay", 0, "run this long from now")
	c.Flags().DurationVar(&f.timeout, "timeout", 0, "start-to-close timeout of one execution")
	c.Flags().StringVar(&f.expires, "expires-at", "", "cancel the task if it has not started by this RFC 3339 time")
	c.Flags().DurationVar(&f.within, "start-within", 0, "the same, counted from when the task is due")
	c.Flags().DurationVar(&f.beat, "heartbeat-timeout", 0, "how long the handler may go without reporting progress")
	c.Flags().Int32Var(&f.maxRetries, "max-retries", 0, "additional attempts after the first")
	return c
}

// maxStdin bounds what is read as a payload; the server's own limit is lower.
const maxStdin = 8 << 20

func payloadArg(cmd *cobra.Command, a string) ([]byte, error) {
	if a != "-" {
		return []byte(a), nil
	}
	in := cmd.InOrStdin()
	if in == nil {
		in = os.Stdin
	}
	b, err := io.ReadAll(io.LimitReader(in, maxStdin+1))
	if err != nil {
		return nil, fmt.Errorf("read the payload from standard input: %w", err)
	}
	if len(b) > maxStdin {
		return nil, usage(fmt.Errorf("the payload on standard input is larger than %d bytes", maxStdin))
	}
	return b, nil
}
