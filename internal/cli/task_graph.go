package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func taskGraphCmd() *cobra.Command {
	req := &penstockv1.GetTaskGraphRequest{}
	dot := false
	c := &cobra.Command{
		Use: "graph TASK_ID", Short: "Show the tasks that a task depends on or that depend on it", Args: args(cobra.ExactArgs(1)),
		Long: "Show the tasks that a task depends on or that depend on it, directly or through others. A task stands\nunder each of those it depends on: after the first time with \"see above\", and without those that depend on it.",
		RunE: func(cmd *cobra.Command, a []string) error {
			w, asJSON, err := output(cmd)
			if err != nil {
				return err
			}
			if asJSON && dot {
				return usage(fmt.Errorf("--dot and -o json exclude each other"))
			}
			cl, err := dial(cmd)
			if err != nil {
				return err
			}
			req.TaskId, req.Tenant = a[0], tenantOf(cmd)
			res, err := cl.RPC().GetTaskGraph(cmd.Context(), connect.NewRequest(req))
			switch {
			case err != nil:
				return err
			case asJSON:
				return writeMessage(w, res.Msg)
			case dot:
				return graphDot(w, res.Msg)
			}
			if err := graphTree(w, res.Msg); err != nil {
				return err
			}
			if res.Msg.Truncated {
				_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "there are more tasks: --max-tasks shows up to 20000\n")
			}
			return nil
		},
	}
	c.Flags().Int32Var(&req.MaxTasks, "max-tasks", 0, "at most this many tasks, up to 20000 (default 1000)")
	c.Flags().BoolVar(&dot, "dot", false, "print it in the language of Graphviz")
	return c
}

// drawing is a graph as a forest: each task under the first that it depends on.
type drawing struct {
	w     io.Writer
	tasks map[string]*penstockv1.GraphTask
	below map[string][]*penstockv1.GraphEdge // by upstream
	names map[string]string                  // what others call a task
	asked string
	drawn map[string]bool
}

func graphTree(w io.Writer, g *penstockv1.GetTaskGraphResponse) error {
	d := &drawing{w: w, tasks: map[string]*penstockv1.GraphTask{}, below: map[string][]*penstockv1.GraphEdge{}, names: map[string]string{}, drawn: map[string]bool{}}
	for _, t := range g.Tasks {
		d.tasks[t.Id] = t
	}
	if len(g.Tasks) > 0 {
		d.asked = g.Tasks[0].Id
	}
	depends := map[string]bool{}
	for _, e := range g.Edges {
		depends[e.Id] = true
		d.below[e.UpstreamId] = append(d.below[e.UpstreamId], e)
		if e.Name != "" {
			d.names[e.UpstreamId] = e.Name
		}
	}
	roots := slices.DeleteFunc(slices.Clone(g.Tasks), func(t *penstockv1.GraphTask) bool { return depends[t.Id] })
	for _, t := range roots {
		if err := d.draw(t.Id, "", ""); err != nil {
			return err
		}
	}
	return nil
}

// maxTreeDepth bounds the indentation.
const maxTreeDepth = 64

// draw prints a task and those below it; first stands before its own line, rest
// before theirs.
func (d *drawing) draw(id, first, rest string) error {
	t := d.tasks[id]
	if t == nil {
		return nil
	}
	line := first + d.label(t)
	again := d.drawn[id]
	if d.drawn[id] = true; again {
		line += "  (see above)"
	}
	if _, err := fmt.Fprintln(d.w, line); err != nil || again {
		return err
	}
	if strings.Count(rest, " ")/3 > maxTreeDepth {
		_, err := fmt.Fprintln(d.w, rest+"└─ …")
		return err
	}
	for i, e := range d.below[id] {
		mark, indent := "├─ ", "│  "
		if i == len(d.below[id])-1 {
			mark, indent = "└─ ", "   "
		}
		if err := d.draw(e.Id, rest+mark, rest+indent); err != nil {
			return err
		}
	}
	return nil
}

// label describes a task in one line.
func (d *drawing) label(t *penstockv1.GraphTask) string {
	s := t.TaskId
	if n := d.names[t.Id]; n != "" && n != t.TaskId {
		s = n + " " + s
	}
	if t.Id == d.asked {
		s = "* " + s
	}
	state := t.State
	if state == "" {
		state = "removed"
	}
	s += "  " + t.Type + "  " + state
	if t.OpenDependencies > 0 {
		s += fmt.Sprintf(", waits for %d", t.OpenDependencies)
	}
	if t.OnDependencyFailure == "run" {
		s += ", runs despite failures"
	}
	if t.ErrorCode != "" {
		s += "  " + t.ErrorCode
	}
	return s
}

// graphDot prints the graph for Graphviz.
func graphDot(w io.Writer, g *penstockv1.GetTaskGraphResponse) error {
	var b strings.Builder
	b.WriteString("digraph tasks {\n  rankdir=LR;\n  node [shape=box];\n")
	for _, t := range g.Tasks {
		fmt.Fprintf(&b, "  %q [label=%q];\n", t.Id, t.TaskId+"\n"+t.Type+"\n"+t.State)
	}
	for _, e := range g.Edges {
		fmt.Fprintf(&b, "  %q -> %q;\n", e.UpstreamId, e.Id)
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return err
}
