package verify_test

import (
	"time"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/protocol"
)

// decision makes what store.Decide asks for out of a decision about one task.
func decision(env protocol.Env, fn func(task *protocol.Task, env protocol.Env) []*protocol.Event) func(time.Time, map[protocol.ID]*store.Locked) ([]*store.Locked, []*protocol.Event) {
	return func(now time.Time, tasks map[protocol.ID]*store.Locked) (changed []*store.Locked, events []*protocol.Event) {
		env.Now = now
		for _, t := range tasks {
			changed, events = append(changed, t), append(events, fn(&t.Task, env)...)
		}
		return changed, events
	}
}
