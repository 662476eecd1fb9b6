package replay

import (
	"testing"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
)

// A task whose edges are gone by the time they are read is not made anew, nor is
// anything stored for it.
func TestAdoptWithoutEdges(t *testing.T) {
	t.Parallel()
	root, kept, lost, odd := pgid.ID{1}, pgid.ID{2}, pgid.ID{3}, pgid.ID{4}
	pl := &plan{result: &Requeued{}}
	g := &regraph{task: map[pgid.ID]pgid.ID{}, plan: map[pgid.ID]*plan{}}
	g.root(root, pl)
	front := g.adopt([]pgid.ID{kept, lost, odd}, []*dbsqlc.EdgesToCloneRow{
		{TaskID: kept, UpstreamID: root, StandIn: root}, {TaskID: odd, UpstreamID: pgid.ID{9}, StandIn: pgid.ID{9}},
	})
	if len(front) != 1 || front[0] != kept || len(g.order) != 1 || len(g.edges) != 1 || g.plan[kept] != pl || g.plan[lost] != nil || g.task[odd] != (pgid.ID{}) {
		t.Errorf("front %v, order %v, %d edges", front, g.order, len(g.edges))
	}
	g.keep(nil)
	if len(g.edges) != 1 || g.edges[0].StandIn != pgid.ID(pl.task) {
		t.Errorf("edges %+v", g.edges)
	}
}

// What stands for an upstream may itself be made anew in the same call.
func TestKeepStandInMadeAnew(t *testing.T) {
	t.Parallel()
	g := &regraph{task: map[pgid.ID]pgid.ID{{2}: {3}}, edges: []*dbsqlc.EdgesToCloneRow{{UpstreamID: pgid.ID{1}, StandIn: pgid.ID{2}}, {UpstreamID: pgid.ID{7}, StandIn: pgid.ID{8}}}}
	g.keep([]*dbsqlc.LockUpstreamsRow{{ID: pgid.ID{2}}})
	if len(g.edges) != 1 || g.edges[0].StandIn != (pgid.ID{3}) {
		t.Errorf("edges %+v", g.edges)
	}
}
