package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// enqueueFlags are those of `orchestrator enqueue`.
type enqueueFlags struct {
	id, key, scope, queue, trace, at string
	expires                          string
	delay, timeout, within, beat     time.Duration
	maxRetries                       int32
	dependsOn                        []string
	onFailure                        string
	strategy                         string
	base, maxBackoff, jitter         time.Duration
	schedule                         []time.Duration
	wait                             bool
	waitTimeout                      time.Duration
}

func enqueueCmd() *cobra.Command {
	var f enqueueFlags
	c := &cobra.Command{
		Use: "enqueue TYPE [PAYLOAD]", Short: "Enqueue one task", Args: args(cobra.RangeArgs(1, 2)),
		Long: `Enqueue one task. PAYLOAD is one JSON value; "-" reads it from standard input, without one
it is null. Prints the task's id once the task is committed.

With --wait it prints the id to standard error, waits until the task has ended, and prints
its result. Exit code 0 if it succeeded, 1 if it failed or was cancelled, 7 if it had not
ended within --wait-timeout; the task goes on then, and when this command is interrupted.`,
		Example: `  orchestrator enqueue echo '{"n":1}' --wait
  orchestrator enqueue email.send - --key order-42 --delay 10m < mail.json
  orchestrator enqueue report.build --depends-on TASK_ID --depends-on TASK_ID --max-retries 5 --retry-base 10s`,
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			req, err := f.request(cmd, a)
			if err != nil {
				return err
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			res, err := cl.RPC().Enqueue(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if res.Msg.IdempotentHit && !asJSON {
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "the task existed already (idempotent hit)")
			}
			id := line(res.Msg.Task.TaskId, 255)
			switch {
			case f.wait:
				_, _ = fmt.Fprintln(cmd.ErrOrStderr(), id)
				return f.await(cmd, cl, res.Msg.Task, w, asJSON)
			case asJSON:
				return writeMessage(w, res.Msg)
			}
			_, err = fmt.Fprintln(w, id)
			return err
		},
	}
	clientFlags(c)
	f.add(c.Flags())
	return c
}

func (f *enqueueFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.id, "id", "", "the task's id (default: a new UUIDv7)")
	fs.StringVar(&f.key, "key", "", "idempotency key: one task's within its scope, whatever the type")
	fs.StringVar(&f.scope, "scope", "", "where the key is unique, e.g. TENANT/TYPE (default: the tenant)")
	fs.StringVar(&f.queue, "queue", "", "queue (default \"default\")")
	fs.StringVar(&f.trace, "trace-id", "", "trace id (default: one is made)")
	fs.StringVar(&f.at, "at", "", "run at this RFC 3339 time")
	fs.DurationVar(&f.delay, "delay", 0, "run this long from now")
	fs.DurationVar(&f.timeout, "timeout", 0, "start-to-close timeout of one execution")
	fs.StringVar(&f.expires, "expires-at", "", "cancel the task if it has not started by this RFC 3339 time")
	fs.DurationVar(&f.within, "start-within", 0, "the same, counted from when the task is due")
	fs.DurationVar(&f.beat, "heartbeat-timeout", 0, "how long the handler may go without reporting progress")
	fs.StringArrayVar(&f.dependsOn, "depends-on", nil, "a task of the same tenant that must have ended first; may be repeated")
	fs.StringVar(&f.onFailure, "on-dependency-failure", "", "if one of those does not succeed: cancel (the default) or run")
	fs.Int32Var(&f.maxRetries, "max-retries", 0, "additional attempts after the first")
	fs.StringVar(&f.strategy, "retry-strategy", "", "how delays grow from retry to retry: exponential, linear, fixed or schedule")
	fs.DurationVar(&f.base, "retry-base", 0, "the delay before the first retry")
	fs.DurationVar(&f.maxBackoff, "retry-max-backoff", 0, "the longest delay, before jitter")
	fs.DurationVar(&f.jitter, "retry-jitter", 0, "the largest jitter, which is added")
	fs.DurationSliceVar(&f.schedule, "retry-schedule", nil, "the delays of strategy schedule, e.g. 1m,5m,15m; the last one repeats")
	fs.BoolVar(&f.wait, "wait", false, "wait until the task has ended, and print its result")
	fs.DurationVar(&f.waitTimeout, "wait-timeout", 5*time.Minute, "with --wait: wait at most this long")
}

// millis is a flag in whole milliseconds. One that is not 0 and below a
// millisecond is refused, for it would become 0.
func millis(name string, d time.Duration) (int64, error) {
	if d%time.Millisecond != 0 {
		return 0, usage(fmt.Errorf("--%s is %s, want whole milliseconds", name, d))
	}
	return d.Milliseconds(), nil
}

// request makes the request; what was not given is left to the server.
func (f *enqueueFlags) request(cmd *cobra.Command, a []string) (*penstockv1.EnqueueRequest, error) {
	given := cmd.Flags().Changed
	req := &penstockv1.EnqueueRequest{
		TaskId: f.id, Type: a[0], IdempotencyKey: f.key, IdempotencyScope: f.scope, Queue: f.queue, TraceId: f.trace,
		Tenant: tenantOf(cmd), OnDependencyFailure: f.onFailure,
	}
	switch {
	case given("wait-timeout") && !f.wait:
		return nil, usage(errors.New("--wait-timeout is for --wait"))
	case f.wait && f.waitTimeout <= 0:
		return nil, usage(fmt.Errorf("--wait-timeout is %s, want more than 0", f.waitTimeout))
	}
	if req.TaskId == "" {
		req.TaskId = uuid.Must(uuid.NewV7()).String()
	}
	var err error
	if len(a) == 2 {
		if req.Payload, err = payloadArg(cmd, a[1]); err != nil {
			return nil, err
		}
	}
	for _, id := range f.dependsOn {
		if id == "" {
			return nil, usage(errors.New("--depends-on is empty, want the id of a task"))
		}
		req.DependsOn = append(req.DependsOn, &penstockv1.Dependency{TaskId: id})
	}
	if err := f.times(given, req); err != nil {
		return nil, err
	}
	if given("max-retries") {
		req.MaxRetries = &f.maxRetries
	}
	req.RetryPolicy, err = f.policy(given)
	return req, err
}

// times fills in when the task may run, and for how long.
func (f *enqueueFlags) times(given func(string) bool, req *penstockv1.EnqueueRequest) (err error) {
	if f.at != "" {
		t, err := time.Parse(time.RFC3339Nano, f.at)
		if err != nil {
			return usage(fmt.Errorf("--at is %q, want an RFC 3339 time such as 2026-02-25T12:00:00Z", f.at))
		}
		req.ScheduleType, req.ScheduledAt = "at", timestamppb.New(t)
	}
	if given("delay") {
		if f.at != "" {
			return usage(errors.New("--at and --delay exclude each other"))
		}
		req.ScheduleType, req.DelayMs = "delay", f.delay.Milliseconds()
	}
	if given("timeout") {
		ms := int32(min(max(f.timeout.Milliseconds(), -1), 1<<31-1))
		req.TimeoutMs = &ms
	}
	if req.ExpiresAt, err = timeFlag("expires-at", f.expires); err != nil {
		return err
	}
	if given("start-within") {
		if f.expires != "" {
			return usage(errors.New("--expires-at and --start-within exclude each other"))
		}
		ms := f.within.Milliseconds()
		req.ScheduleToStartTimeoutMs = &ms
	}
	if given("heartbeat-timeout") {
		ms := int32(min(max(f.beat.Milliseconds(), -1), 1<<31-1))
		req.HeartbeatTimeoutMs = &ms
	}
	return nil
}

// policy is the task's own retry policy, or nil if no flag asks for one.
func (f *enqueueFlags) policy(given func(string) bool) (*penstockv1.RetryPolicy, error) {
	p, own := &penstockv1.RetryPolicy{Strategy: f.strategy}, given("retry-strategy")
	for _, d := range []struct {
		name  string
		value time.Duration
		to    **int64
	}{{"retry-base", f.base, &p.BaseMs}, {"retry-max-backoff", f.maxBackoff, &p.MaxBackoffMs}, {"retry-jitter", f.jitter, &p.JitterMaxMs}} {
		if !given(d.name) {
			continue
		}
		ms, err := millis(d.name, d.value)
		if err != nil {
			return nil, err
		}
		*d.to, own = &ms, true
	}
	if given("retry-schedule") {
		if own = true; !given("retry-strategy") {
			p.Strategy = "schedule"
		}
	}
	for _, d := range f.schedule {
		ms, err := millis("retry-schedule", d)
		if err != nil {
			return nil, err
		}
		p.ScheduleMs = append(p.ScheduleMs, ms)
	}
	if !own {
		return nil, nil
	}
	return p, nil
}

// await waits for the end of the task and prints its result.
func (f *enqueueFlags) await(cmd *cobra.Command, cl *client.Client, t *penstockv1.Task, w io.Writer, asJSON bool) error {
	t, err := waitTask(cmd, cl, t.Tenant, t.TaskId, f.waitTimeout)
	if err != nil {
		return err
	}
	if asJSON {
		return errors.Join(writeMessage(w, t), howEnded(t))
	}
	if t.State == string(protocol.StateSucceeded) {
		result := string(t.Result)
		if result == "" {
			result = "null"
		}
		_, err = fmt.Fprintln(w, block(result))
	}
	return errors.Join(err, howEnded(t))
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
