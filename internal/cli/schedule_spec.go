package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// specFlags are those of the definition of a schedule.
type specFlags struct {
	cron, timezone, typ, payload, queue, missed, overlap, start, end string
	every, timeout, within, beat                                     time.Duration
	missedMax, maxRetries                                            int32
}

func (f *specFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.cron, "cron", "", "when: minute hour day month weekday, with seconds in front if there are six, or @daily and the like")
	fl.DurationVar(&f.every, "every", 0, "or: an interval of at least 1s")
	fl.StringVar(&f.timezone, "timezone", "", "IANA time zone of --cron, such as Europe/Berlin (default UTC)")
	fl.StringVar(&f.start, "start-at", "", "no fire before this RFC 3339 time")
	fl.StringVar(&f.end, "end-at", "", "no fire after this RFC 3339 time")
	fl.StringVar(&f.missed, "missed", "", "what becomes of fire times that were missed: skip, run_once (default) or run_all")
	fl.Int32Var(&f.missedMax, "missed-max", 0, "most missed fire times of run_all, 1 to 1000 (default 100)")
	fl.StringVar(&f.overlap, "overlap", "", "while a task of the schedule has not ended: allow (default) or skip")
	fl.StringVar(&f.queue, "queue", "", "queue of the tasks")
	fl.DurationVar(&f.timeout, "timeout", 0, "start-to-close timeout of one execution")
	fl.Int32Var(&f.maxRetries, "max-retries", 0, "additional attempts after the first")
	fl.DurationVar(&f.within, "start-within", 0, "cancel a task that has not started this long after its fire time")
	fl.DurationVar(&f.beat, "heartbeat-timeout", 0, "how long the handler may go without reporting progress")
}

// into changes what flags were given for.
func (f *specFlags) into(cmd *cobra.Command, s *penstockv1.ScheduleSpec) (err error) {
	given := cmd.Flags().Changed
	t := s.Task
	for flag, to := range map[string]*string{"timezone": &s.Timezone, "missed": &s.Missed, "overlap": &s.Overlap, "queue": &t.Queue, "type": &t.Type} {
		if given(flag) {
			*to, _ = cmd.Flags().GetString(flag)
		}
	}
	if given("cron") {
		s.Cron = f.cron
		if !given("every") {
			s.EveryMs = 0
		}
	}
	if given("every") {
		s.EveryMs = f.every.Milliseconds()
		if !given("cron") {
			s.Cron = ""
		}
	}
	if given("start-at") {
		if s.StartAt, err = timeFlag("start-at", f.start); err != nil {
			return err
		}
	}
	if given("end-at") {
		if s.EndAt, err = timeFlag("end-at", f.end); err != nil {
			return err
		}
	}
	if given("missed-max") {
		s.MissedMax = f.missedMax
	}
	if given("timeout") {
		t.TimeoutMs = millis32(f.timeout)
	}
	if given("heartbeat-timeout") {
		t.HeartbeatTimeoutMs = millis32(f.beat)
	}
	if given("max-retries") {
		t.MaxRetries = &f.maxRetries
	}
	if given("start-within") {
		ms := f.within.Milliseconds()
		t.ScheduleToStartTimeoutMs = &ms
	}
	return nil
}

func millis32(d time.Duration) *int32 {
	ms := int32(min(max(d.Milliseconds(), -1), 1<<31-1))
	return &ms
}

func scheduleCreateCmd() *cobra.Command {
	var f specFlags
	var paused bool
	c := &cobra.Command{
		Use: "create NAME TYPE [PAYLOAD]", Short: "Create a schedule", Args: args(cobra.RangeArgs(2, 3)),
		Long: "Create a schedule that makes a task of TYPE at each fire time. PAYLOAD is JSON, - reads it from standard\ninput. To repeat the command with the same definition changes nothing.",
		Example: `  orchestrator schedule create nightly-report report.build '{"kind":"daily"}' --cron '30 2 * * *' --timezone Europe/Berlin
  orchestrator schedule create poll feed.poll --every 30s --overlap skip --missed skip`,
		RunE: func(cmd *cobra.Command, a []string) (err error) {
			req := &penstockv1.CreateScheduleRequest{
				Name: a[0], Tenant: tenantOf(cmd), Paused: paused, Spec: &penstockv1.ScheduleSpec{Task: &penstockv1.ScheduledTask{Type: a[1]}},
			}
			if len(a) == 3 {
				if req.Spec.Task.Payload, err = payloadArg(cmd, a[2]); err != nil {
					return err
				}
			}
			if err := f.into(cmd, req.Spec); err != nil {
				return err
			}
			var res *penstockv1.CreateScheduleResponse
			return runSchedule(cmd, func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (proto.Message, error) {
				r, err := cl.CreateSchedule(ctx, connect.NewRequest(req))
				if err != nil {
					return nil, err
				}
				res = r.Msg
				return res, nil
			}, func(w io.Writer) error {
				if res.IdempotentHit {
					_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "the schedule existed already")
				}
				return scheduleDetail(w, res.Schedule)
			})
		},
	}
	f.add(c)
	c.Flags().BoolVar(&paused, "paused", false, "do not fire until it is resumed")
	return c
}

func scheduleUpdateCmd() *cobra.Command {
	var f specFlags
	c := &cobra.Command{
		Use: "update SCHEDULE", Short: "Change a schedule's definition", Args: args(cobra.ExactArgs(1)),
		Long: "Change what flags are given for; the rest stays. If the schedule fires at other times then, the next is the\nfirst after now.",
		RunE: func(cmd *cobra.Command, a []string) error {
			var s *penstockv1.Schedule
			return runSchedule(cmd, func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (proto.Message, error) {
				got, err := cl.GetSchedule(ctx, connect.NewRequest(&penstockv1.GetScheduleRequest{Schedule: a[0], Tenant: tenantOf(cmd)}))
				if err != nil {
					return nil, err
				}
				spec := got.Msg.Schedule.Spec
				if err := f.into(cmd, spec); err != nil {
					return nil, err
				}
				if cmd.Flags().Changed("payload") {
					if spec.Task.Payload, err = payloadArg(cmd, f.payload); err != nil {
						return nil, err
					}
				}
				res, err := cl.UpdateSchedule(ctx, connect.NewRequest(&penstockv1.UpdateScheduleRequest{
					Schedule: a[0], Tenant: tenantOf(cmd), Spec: spec, Revision: got.Msg.Schedule.Revision,
				}))
				if err != nil {
					return nil, err
				}
				s = res.Msg.Schedule
				return res.Msg, nil
			}, func(w io.Writer) error { return scheduleDetail(w, s) })
		},
	}
	f.add(c)
	c.Flags().StringVar(&f.typ, "type", "", "type of the tasks")
	c.Flags().StringVar(&f.payload, "payload", "", "payload of the tasks, JSON; - reads it from standard input")
	return c
}
