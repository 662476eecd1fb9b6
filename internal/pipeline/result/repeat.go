package result

import (
	"context"
	"fmt"

	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// unapplied leaves out those of the outcomes at the given places that were
// applied before. An outcome may be read for a second time after an orchestrator
// died between its commit and its XACK, or after stream:result lost its group or
// went back; meanwhile its task may have gone on, and its row tells of its last
// outcome only. Taken for refused they would raise an alarm.
func (s *Stage) unapplied(ctx context.Context, outcomes []outcome, at []int) ([]outcome, error) {
	p := dbsqlc.AppliedOutcomesParams{Actor: protocol.ActorWorker}
	for _, i := range at {
		o := outcomes[i]
		p.Places = append(p.Places, int32(i))
		p.TaskIds = append(p.TaskIds, pgid.ID(o.ID))
		p.Deliveries = append(p.Deliveries, o.Delivery)
		p.WorkerIds = append(p.WorkerIds, o.WorkerID)
		p.MessageIds = append(p.MessageIds, o.MessageID)
		p.Claims = append(p.Claims, o.Kind == protocol.OutcomeClaimed)
	}
	places, err := s.o.Store.AppliedOutcomes(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("look up %d outcomes: %w", len(at), err)
	}
	applied := make(map[int32]bool, len(places))
	for _, i := range places {
		applied[i] = true
		s.outcomes.WithLabelValues(string(outcomes[i].Kind), protocol.Repeated.String()).Inc()
	}
	var left []outcome
	for i, o := range outcomes {
		if !applied[int32(i)] {
			left = append(left, o)
		}
	}
	return left, nil
}
