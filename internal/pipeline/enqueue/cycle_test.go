package enqueue_test

import (
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/protocol"
)

// A cycle is refused by code and field, whatever the tasks in it are called.
func TestCycleOfLongNames(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	for _, letter := range []string{"甲", "é", "🙂", "a"} {
		a, b := strings.Repeat(letter, 40), "b"+strings.Repeat(letter, 40)
		e.refusedGraph(t, letter, protocol.CodeInputInvalid, "tasks[0].depends_on", "cycle, in which each task waits for the one before: b"+letter, node(a, b), node(b, a))
	}
	e.wantCounts(t, 0, 0)
}
