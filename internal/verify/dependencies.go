package verify

import (
	"strconv"

	"github.com/penstock-dev/penstock/protocol"
)

// checkDependencies: a live task waits for as many tasks as its edges say, and is
// told of each that has ended. Of one that has ended retention may have removed
// edges.
func (h *history) checkDependencies() {
	if protocol.State(h.row.State).Terminal() {
		return
	}
	if n := int64(h.row.OpenDependencies); n != h.row.OpenEdges {
		h.differ(CheckDependencies, 0, "open_dependencies", strconv.FormatInt(h.row.OpenEdges, 10), strconv.FormatInt(n, 10))
	}
	if n := h.row.LostEnds; n > 0 {
		h.differ(CheckDependencies, 0, "dependencies that have ended", "noted, so that they are counted", strconv.FormatInt(n, 10)+" without a note")
	}
}
