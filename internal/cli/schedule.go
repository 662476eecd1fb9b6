package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

func scheduleCmd() *cobra.Command {
	c := group(&cobra.Command{Use: "schedule", Short: "Manage recurring schedules"})
	clientFlags(c)
	c.AddCommand(
		scheduleCreateCmd(), scheduleUpdateCmd(), scheduleListCmd(), scheduleFiresCmd(), scheduleNextCmd(), scheduleTriggerCmd(),
		scheduleOne("show", "Show a schedule", func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient, name, tenant string) (*penstockv1.Schedule, error) {
			res, err := cl.GetSchedule(ctx, connect.NewRequest(&penstockv1.GetScheduleRequest{Schedule: name, Tenant: tenant}))
			if err != nil {
				return nil, err
			}
			return res.Msg.Schedule, nil
		}),
		scheduleOne("pause", "Stop a schedule from firing", func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient, name, tenant string) (*penstockv1.Schedule, error) {
			res, err := cl.PauseSchedule(ctx, connect.NewRequest(&penstockv1.PauseScheduleRequest{Schedule: name, Tenant: tenant}))
			if err != nil {
				return nil, err
			}
			return res.Msg.Schedule, nil
		}),
		scheduleOne("resume", "Let a paused schedule fire again; what it missed is treated by its policy", func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient, name, tenant string) (*penstockv1.Schedule, error) {
			res, err := cl.ResumeSchedule(ctx, connect.NewRequest(&penstockv1.ResumeScheduleRequest{Schedule: name, Tenant: tenant}))
			if err != nil {
				return nil, err
			}
			return res.Msg.Schedule, nil
		}),
		scheduleDeleteCmd(),
	)
	return c
}

// runSchedule is what a command of this group does: it makes a call, and shows the
// message as JSON or as table does.
func runSchedule(cmd *cobra.Command, call func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (proto.Message, error), table func(w io.Writer) error) error {
	w, asJSON, err := output(cmd)
	if err != nil {
		return err
	}
	cl, err := dial(cmd)
	if err != nil {
		return err
	}
	m, err := call(cmd.Context(), cl.Schedules())
	if err != nil {
		return err
	}
	if asJSON {
		return writeMessage(w, m)
	}
	return table(w)
}

// scheduleOne makes a command about one schedule, which it shows.
func scheduleOne(name, short string, call func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient, name, tenant string) (*penstockv1.Schedule, error)) *cobra.Command {
	return &cobra.Command{
		Use: name + " SCHEDULE", Short: short, Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			var s *penstockv1.Schedule
			return runSchedule(cmd, func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (_ proto.Message, err error) {
				s, err = call(ctx, cl, a[0], tenantOf(cmd))
				return s, err
			}, func(w io.Writer) error { return scheduleDetail(w, s) })
		},
	}
}

func scheduleDeleteCmd() *cobra.Command {
	return &cobra.Command{
		Use: "delete SCHEDULE", Short: "Remove a schedule; its tasks stay", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			return runSchedule(cmd, func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (proto.Message, error) {
				res, err := cl.DeleteSchedule(ctx, connect.NewRequest(&penstockv1.DeleteScheduleRequest{Schedule: a[0], Tenant: tenantOf(cmd)}))
				if err != nil {
					return nil, err
				}
				return res.Msg, nil
			}, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "deleted %s\n", line(a[0], 64))
				return err
			})
		},
	}
}

func scheduleTriggerCmd() *cobra.Command {
	return &cobra.Command{
		Use: "trigger SCHEDULE", Short: "Make a task of a schedule now, also if it is paused", Args: args(cobra.ExactArgs(1)),
		Long: "Make a task of a schedule now, also if it is paused. Exit code 1 if its overlap policy did not\nallow it.",
		RunE: func(cmd *cobra.Command, a []string) error {
			var f *penstockv1.Fire
			err := runSchedule(cmd, func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (proto.Message, error) {
				res, err := cl.TriggerSchedule(ctx, connect.NewRequest(&penstockv1.TriggerScheduleRequest{
					Schedule: a[0], Tenant: tenantOf(cmd), TaskId: uuid.Must(uuid.NewV7()).String(),
				}))
				if err != nil {
					return nil, err
				}
				f = res.Msg.Fire
				return res.Msg, nil
			}, func(w io.Writer) error {
				if f.TaskId == "" {
					return nil
				}
				_, err := fmt.Fprintln(w, line(f.TaskId, 255))
				return err
			})
			if err == nil && f.TaskId == "" {
				return &exitError{ExitFailed, fmt.Errorf("schedule %s: %s: a task of it has not ended", a[0], f.Result)}
			}
			return err
		},
	}
}

func scheduleListCmd() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List schedules in order of their names", Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := &penstockv1.ListSchedulesResponse{}
			return runSchedule(cmd, func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (proto.Message, error) {
				for token := ""; ; {
					res, err := cl.ListSchedules(ctx, connect.NewRequest(&penstockv1.ListSchedulesRequest{Tenant: tenantOf(cmd), PageSize: 1000, PageToken: token}))
					if err != nil {
						return nil, err
					}
					out.Schedules = append(out.Schedules, res.Msg.Schedules...)
					if token = res.Msg.NextPageToken; token == "" {
						return out, nil
					}
				}
			}, func(w io.Writer) error {
				tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(tw, "NAME\tWHEN\tTYPE\tPAUSED\tNEXT\tLAST")
				for _, s := range out.Schedules {
					_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%t\t%s\t%s\n", s.Name, line(when(s.Spec), 64), line(s.Spec.Task.GetType(), 64), s.Paused, stamp(s.NextFireAt), stamp(s.LastFireAt))
				}
				return tw.Flush()
			})
		},
	}
}

// when is the rule of a schedule in a few words.
func when(s *penstockv1.ScheduleSpec) string {
	if s.EveryMs > 0 {
		return "every " + (time.Duration(s.EveryMs) * time.Millisecond).String()
	}
	return s.Cron + " " + s.Timezone
}

func scheduleFiresCmd() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use: "fires SCHEDULE", Short: "Show what became of a schedule's fire times, newest first", Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, a []string) error {
			if limit < 1 {
				return usage(fmt.Errorf("--limit is %d, want at least 1", limit))
			}
			out := &penstockv1.ListFiresResponse{}
			return runSchedule(cmd, func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (proto.Message, error) {
				for left := limit; left > 0; left = limit - len(out.Fires) {
					res, err := cl.ListFires(ctx, connect.NewRequest(&penstockv1.ListFiresRequest{
						Schedule: a[0], Tenant: tenantOf(cmd), PageSize: int32(min(left, 1000)), PageToken: out.NextPageToken,
					}))
					if err != nil {
						return nil, err
					}
					out.Fires = append(out.Fires, res.Msg.Fires...)
					if out.NextPageToken = res.Msg.NextPageToken; out.NextPageToken == "" {
						break
					}
				}
				return out, nil
			}, func(w io.Writer) error {
				tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
				_, _ = fmt.Fprintln(tw, "FIRE TIME\tUNTIL\tKIND\tRESULT\tTASK ID\tERROR")
				for _, f := range out.Fires {
					until := "-"
					if !f.Until.AsTime().Equal(f.FireAt.AsTime()) {
						until = stamp(f.Until)
					}
					_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", stamp(f.FireAt), until, f.Kind, f.Result, line(f.TaskId, 64), line(f.Error, 120))
				}
				return tw.Flush()
			})
		},
	}
	c.Flags().IntVar(&limit, "limit", 100, "at most this many")
	return c
}

func scheduleNextCmd() *cobra.Command {
	req := &penstockv1.NextFiresRequest{}
	var every time.Duration
	var after string
	c := &cobra.Command{
		Use: "next [SCHEDULE]", Short: "Show the next fire times of a schedule, or of --cron or --every", Args: args(cobra.MaximumNArgs(1)),
		Example: "  orchestrator schedule next nightly-report\n  orchestrator schedule next --cron '30 2 * * *' --timezone Europe/Berlin --count 5",
		RunE: func(cmd *cobra.Command, a []string) (err error) {
			req.Tenant, req.EveryMs = tenantOf(cmd), every.Milliseconds()
			if len(a) == 1 {
				req.Schedule = a[0]
			} else if req.Cron == "" && every == 0 {
				return usage(errors.New("name a schedule, or give --cron or --every"))
			}
			if req.After, err = timeFlag("after", after); err != nil {
				return err
			}
			var times []*timestamppb.Timestamp
			return runSchedule(cmd, func(ctx context.Context, cl penstockv1connect.ScheduleServiceClient) (proto.Message, error) {
				res, err := cl.NextFires(ctx, connect.NewRequest(req))
				if err != nil {
					return nil, err
				}
				times = res.Msg.Times
				return res.Msg, nil
			}, func(w io.Writer) error {
				for _, t := range times {
					if _, err := fmt.Fprintln(w, t.AsTime().Format(time.RFC3339Nano)); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&req.Cron, "cron", "", "a cron expression")
	c.Flags().DurationVar(&every, "every", 0, "an interval")
	c.Flags().StringVar(&req.Timezone, "timezone", "", "IANA time zone of --cron (default UTC)")
	c.Flags().Int32VarP(&req.Count, "count", "n", 10, "how many")
	c.Flags().StringVar(&after, "after", "", "after this RFC 3339 time (default: now)")
	return c
}

func scheduleDetail(w io.Writer, s *penstockv1.Schedule) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) { _, _ = fmt.Fprintf(tw, "%s\t%s\n", name, value) }
	row("name", s.Name)
	row("id", s.Id)
	row("tenant", s.Tenant)
	row("when", line(when(s.Spec), 300))
	if s.Spec.StartAt != nil || s.Spec.EndAt != nil {
		row("between", stamp(s.Spec.StartAt)+" and "+stamp(s.Spec.EndAt))
	}
	row("type", line(s.Spec.Task.GetType(), 128))
	row("queue", line(cmp.Or(s.Spec.Task.GetQueue(), protocol.DefaultQueue), 64))
	row("payload", line(cmp.Or(string(s.Spec.Task.GetPayload()), "null"), 200))
	row("missed", fmt.Sprintf("%s (at most %d)", s.Spec.Missed, s.Spec.MissedMax))
	row("overlap", s.Spec.Overlap)
	row("paused", fmt.Sprint(s.Paused))
	row("next fire", stamp(s.NextFireAt))
	row("last fire", stamp(s.LastFireAt))
	row("revision", fmt.Sprint(s.Revision))
	row("created", stamp(s.CreatedAt)+" by "+line(s.CreatedBy, 64))
	if len(s.ChangedBy) > 0 {
		row("changed by", line(fmt.Sprint(s.ChangedBy), 200))
	}
	return tw.Flush()
}
