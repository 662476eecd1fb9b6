package cli

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const (
	// completionTime bounds what the shell waits for; what is not known by then is
	// not completed.
	completionTime = time.Second
	// maxCandidates is how many things of a kind are asked for, and shown.
	maxCandidates = 100
)

// candidates asks an orchestrator for what there is of a kind, newest or first
// maxCandidates. A candidate may have a description after a tab.
type candidates func(ctx context.Context, cl *client.Client, cmd *cobra.Command) ([]string, error)

// argCandidates are those of arguments, by the words of Use.
var argCandidates = map[string]candidates{
	"TASK_ID": taskIDs, "TYPE": taskTypes, "QUEUE": queueNames, "SCHEDULE": scheduleNames, "WORKER_ID": workerIDs,
	"APPROVAL_ID": approvalIDs, "DLQ_ID": deadLetterIDs, "BATCH_ID": batchIDs,
}

// flagCandidates are those of flags' values.
var flagCandidates = map[string]candidates{
	"queue": queueNames, "type": taskTypes, "depends-on": taskIDs, "task": taskIDs, "batch": batchIDs, "fingerprint": fingerprints,
}

// fixed are the values of flags that have only these.
var fixed = map[string][]string{
	"on-dependency-failure": {"cancel", "run"}, "retry-strategy": {"exponential", "linear", "fixed", "schedule"}, "group-by": {"fingerprint", "type", "tenant", "code"},
}

// completed makes a command and all below it complete ids and names as Use and
// flags call for them.
func completed(c *cobra.Command) *cobra.Command {
	if c.HasSubCommands() {
		for _, sub := range c.Commands() {
			completed(sub)
		}
	} else if c.ValidArgsFunction == nil {
		c.ValidArgsFunction = completeArgs
	}
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { completeFlag(c, f) })
	c.PersistentFlags().VisitAll(func(f *pflag.Flag) { completeFlag(c, f) })
	return c
}

func completeFlag(c *cobra.Command, f *pflag.Flag) {
	var fn cobra.CompletionFunc
	values := fixed[f.Name]
	switch {
	case f.Name == "output":
		values = []string{"table", "json"}
		if strings.Contains(f.Usage, "jsonl") {
			values = append(values, "jsonl")
		}
	case f.Name == "state" && strings.Contains(f.Usage, "states"):
		for _, s := range protocol.States() {
			values = append(values, string(s))
		}
	case f.Name == "type" && strings.Contains(f.Usage, "event types"):
		for _, t := range protocol.EventTypes() {
			values = append(values, string(t))
		}
	}
	switch find := flagCandidates[f.Name]; {
	case values != nil:
		fn = func(_ *cobra.Command, _ []string, begun string) (out []string, _ cobra.ShellCompDirective) {
			for _, v := range values {
				if strings.HasPrefix(v, begun) {
					out = append(out, v)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
	case find != nil:
		fn = func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			return find.complete(cmd, nil, begun)
		}
	default:
		return
	}
	_ = c.RegisterFlagCompletionFunc(f.Name, fn) // fails if a command has one of its own
}

// completeArgs completes the argument that follows args.
func completeArgs(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if find := argCandidates[argName(cmd.Use, len(args))]; find != nil {
		return find.complete(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// argName is the word for the n-th argument in a command's Use, e.g. TASK_ID in
// "get TASK_ID" and "cancel [TASK_ID...]", or "".
func argName(use string, n int) string {
	for i, word := range strings.Fields(use)[1:] {
		name := strings.TrimFunc(word, func(r rune) bool { return r == '[' || r == ']' })
		repeated := strings.HasSuffix(name, "...")
		name = strings.TrimSuffix(name, "...")
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsUpper(r) && r != '_' }) {
			return ""
		}
		if i == n || repeated {
			return name
		}
	}
	return ""
}

// complete asks for candidates and leaves those that begin so and are not among
// the arguments. Nothing is said of a failure: there is nothing to complete then.
func (find candidates) complete(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	cl, _, err := connectTo(cmd)
	if err != nil {
		return nil, directive
	}
	defer func() { _ = cl.Close() }()
	found, err := find(ctx, cl, cmd)
	if err != nil {
		return nil, directive
	}
	found = slices.DeleteFunc(found, func(s string) bool {
		word, _, _ := strings.Cut(s, "\t")
		return !strings.HasPrefix(word, begun) || slices.Contains(args, word) || strings.ContainsFunc(s, func(r rune) bool { return r != '\t' && unsafeRune(r) })
	})
	return found[:min(maxCandidates, len(found))], directive
}

func describeCandidate(id string, words ...string) string {
	return id + "\t" + strings.Join(words, " ")
}

func listTasks(ctx context.Context, cl *client.Client, cmd *cobra.Command, n int32) ([]*penstockv1.Task, error) {
	req := &penstockv1.ListTasksRequest{Tenant: tenantOf(cmd), PageSize: n}
	if req.Tenant == "" {
		req.Tenant = protocol.DefaultTenant // that of tasks that are named
	}
	res, err := cl.RPC().ListTasks(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg.Tasks, nil
}

func taskIDs(ctx context.Context, cl *client.Client, cmd *cobra.Command) (out []string, err error) {
	tasks, err := listTasks(ctx, cl, cmd, maxCandidates)
	for _, t := range tasks {
		if cmd.Name() == "cancel" && protocol.State(t.State).Terminal() {
			continue
		}
		out = append(out, describeCandidate(t.TaskId, t.Type, t.State))
	}
	return out, err
}

// taskTypes are those of the newest tasks.
func taskTypes(ctx context.Context, cl *client.Client, cmd *cobra.Command) (out []string, err error) {
	tasks, err := listTasks(ctx, cl, cmd, 1000)
	for _, t := range tasks {
		if !slices.Contains(out, t.Type) {
			out = append(out, t.Type)
		}
	}
	slices.Sort(out)
	return out, err
}

func queueNames(ctx context.Context, cl *client.Client, _ *cobra.Command) (out []string, err error) {
	res, err := cl.RPC().ListQueues(ctx, connect.NewRequest(&penstockv1.ListQueuesRequest{PageSize: maxCandidates}))
	if err != nil {
		return nil, err
	}
	for _, q := range res.Msg.Queues {
		out = append(out, q.Queue)
	}
	return out, nil
}

func scheduleNames(ctx context.Context, cl *client.Client, cmd *cobra.Command) (out []string, err error) {
	res, err := cl.Schedules().ListSchedules(ctx, connect.NewRequest(&penstockv1.ListSchedulesRequest{Tenant: tenantOf(cmd), PageSize: maxCandidates}))
	if err != nil {
		return nil, err
	}
	for _, s := range res.Msg.Schedules {
		out = append(out, describeCandidate(s.Name, s.GetSpec().GetTask().GetType()))
	}
	return out, nil
}

func workerIDs(ctx context.Context, cl *client.Client, _ *cobra.Command) (out []string, err error) {
	res, err := cl.Workers().ListWorkers(ctx, connect.NewRequest(&penstockv1.ListWorkersRequest{}))
	if err != nil {
		return nil, err
	}
	for _, w := range res.Msg.Workers {
		out = append(out, describeCandidate(w.WorkerId, w.Host, strings.Join(w.Queues, ",")))
	}
	return out, nil
}

// approvalIDs are those that wait for a decision.
func approvalIDs(ctx context.Context, cl *client.Client, _ *cobra.Command) (out []string, err error) {
	res, err := cl.Approvals().ListApprovals(ctx, connect.NewRequest(&penstockv1.ListApprovalsRequest{PageSize: maxCandidates}))
	if err != nil {
		return nil, err
	}
	for _, a := range res.Msg.Approvals {
		out = append(out, describeCandidate(a.ApprovalId, a.Name, a.Type, a.TaskId))
	}
	return out, nil
}

func deadLetterIDs(ctx context.Context, cl *client.Client, cmd *cobra.Command) (out []string, err error) {
	req := &penstockv1.ListDeadLettersRequest{PageSize: maxCandidates}
	if cmd.Name() != "show" {
		req.Status = "open"
	}
	res, err := cl.DeadLetters().ListDeadLetters(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	for _, d := range res.Msg.DeadLetters {
		out = append(out, describeCandidate(d.DlqId, d.Type, d.ErrorCode, d.Status))
	}
	return out, nil
}

// batchIDs are those with which the command can do something.
func batchIDs(ctx context.Context, cl *client.Client, cmd *cobra.Command) (out []string, err error) {
	status := map[string]string{"requeue": "draft", "start": "draft", "confirm": "proposed", "reject": "proposed", "pause": "running", "resume": "paused"}[cmd.Name()]
	res, err := cl.DeadLetters().ListDeadLetterBatches(ctx, connect.NewRequest(&penstockv1.ListDeadLetterBatchesRequest{Status: status, PageSize: maxCandidates}))
	if err != nil {
		return nil, err
	}
	for _, b := range res.Msg.Batches {
		out = append(out, describeCandidate(b.BatchId, b.Kind, b.Status, dead(b.Total)))
	}
	return out, nil
}

func fingerprints(ctx context.Context, cl *client.Client, _ *cobra.Command) (out []string, err error) {
	res, err := cl.DeadLetters().GroupDeadLetters(ctx, connect.NewRequest(&penstockv1.GroupDeadLettersRequest{GroupBy: "fingerprint", Status: "open", Limit: maxCandidates}))
	if err != nil {
		return nil, err
	}
	for _, g := range res.Msg.Groups {
		out = append(out, describeCandidate(g.Key, dead(int32(min(g.Count, 1<<31-1)))))
	}
	return out, nil
}
