package cli

import (
	"strings"
	"testing"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// diamond is a graph as the server answers it.
func diamond() *penstockv1.GetTaskGraphResponse {
	node := func(id, state string, open int32) *penstockv1.GraphTask {
		return &penstockv1.GraphTask{Id: id, TaskId: id, Type: "t", State: state, OpenDependencies: open}
	}
	g := &penstockv1.GetTaskGraphResponse{Tasks: []*penstockv1.GraphTask{
		node("end", "pending", 2), node("left", "running", 0), node("right", "cancelled", 0), node("root", "succeeded", 0),
	}}
	g.Tasks[2].ErrorCode, g.Tasks[0].OnDependencyFailure = "TASK_CANCELLED", "run"
	for _, e := range [][3]string{{"left", "root", "first"}, {"right", "root", "first"}, {"end", "left", ""}, {"end", "right", ""}} {
		g.Edges = append(g.Edges, &penstockv1.GraphEdge{Id: e[0], UpstreamId: e[1], Name: e[2]})
	}
	return g
}

func TestGraphTree(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := graphTree(&b, diamond()); err != nil {
		t.Fatal(err)
	}
	want := `first root  t  succeeded
├─ left  t  running
│  └─ * end  t  pending, waits for 2, runs despite failures
└─ right  t  cancelled  TASK_CANCELLED
   └─ * end  t  pending, waits for 2, runs despite failures  (see above)
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

// The task that was asked for is marked beside its name, or its id where nothing
// below names it.
func TestGraphTreeMarksTheAsked(t *testing.T) {
	t.Parallel()
	g := diamond()
	g.Tasks[0], g.Tasks[3] = g.Tasks[3], g.Tasks[0]
	var b strings.Builder
	if err := graphTree(&b, g); err != nil {
		t.Fatal(err)
	}
	if first, _, _ := strings.Cut(b.String(), "\n"); first != "* first root  t  succeeded" {
		t.Errorf("first line %q", first)
	}
}

func TestGraphDot(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := graphDot(&b, diamond()); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"digraph tasks {", `"end" [label="end\nt\npending"];`, `"root" -> "left";`, `"right" -> "end";`} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("no %s in\n%s", line, b.String())
		}
	}
}
