package schedule_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
)

// crossing triggers a schedule by a UUIDv7 that is about to be stored under
// another id, as edge from now counts differently, and returns when it would be.
func (r *rig) crossing(t *testing.T, name string, edge time.Duration) (string, *dbsqlc.ScheduleFire) {
	t.Helper()
	for margin := time.Second; ; margin *= 2 {
		id := protocol.ID(uuid.Must(uuid.NewV7()))
		ms := time.Now().Add(edge + margin).UnixMilli()
		for i := range 6 {
			id[i] = byte(ms >> (40 - 8*i))
		}
		before, _ := protocol.ResolveTaskID("default", id.String(), time.Now())
		f, _, err := r.stage.Trigger(t.Context(), "", name, id.String(), "bob")
		if err != nil {
			t.Fatal(err)
		}
		if protocol.ID(*f.TaskID) != before { // it took too long
			continue
		}
		testkit.Eventually(t, "the id counts differently", func() (bool, string) {
			now, err := r.Store.Clock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			a, _ := protocol.ResolveTaskID("default", id.String(), now)
			b, _ := protocol.ResolveTaskID("default", id.String(), time.Now())
			return a != before && b != before, a.String()
		})
		return id.String(), f
	}
}

// A trigger can be repeated, however old its id is by then.
func TestTriggerIsRepeatableForEver(t *testing.T) {
	t.Parallel()
	for name, edge := range map[string]time.Duration{"an id that is a day old": -24 * time.Hour, "an id that was an hour ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, testkit.NewStores(t))
			r.create(t, "s", definition(3600))
			id, first := r.crossing(t, "s", edge)
			tasks := r.Count(t, "SELECT count(*) FROM tasks")
			again, task, err := r.stage.Trigger(t.Context(), "", "s", id, "bob")
			if err != nil || task != id || !again.FireAt.Equal(first.FireAt) || *again.TaskID != *first.TaskID {
				t.Errorf("again: %+v, %q, %v; want %+v", again, task, err, first)
			}
			r.want(t, "s", map[string]int{"manual fired": tasks})
			if n := r.Count(t, "SELECT count(*) FROM tasks"); n != tasks {
				t.Errorf("%d tasks, want %d", n, tasks)
			}
		})
	}
}

// The old id of a task makes no second one by another schedule.
func TestOldIDOfAnotherTask(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	r.create(t, "s", definition(3600))
	r.create(t, "other", definition(3600))
	id, _ := r.crossing(t, "s", -24*time.Hour)
	if _, _, err := r.stage.Trigger(t.Context(), "", "other", id, "bob"); protocol.CodeOf(err) != protocol.CodeDuplicate {
		t.Errorf("by another schedule: %v", err)
	}
	r.want(t, "other", nil)
}

// The name of a tenant that has only schedules is nobody else's scope, as that of
// any other tenant that has tasks.
func TestTenantOfAScheduleIsNoScope(t *testing.T) {
	t.Parallel()
	r := newRig(t, testkit.NewStores(t))
	for _, tenant := range []string{"due", "by-hand"} {
		if _, _, err := r.stage.Create(t.Context(), tenant, tenant, definition(3600), false, "ada"); err != nil {
			t.Fatal(err)
		}
	}
	r.late(t, "due", 0)
	r.fire(t)
	if _, _, err := r.stage.Trigger(t.Context(), "by-hand", "by-hand", "", "ada"); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{"due", "by-hand"} {
		for _, key := range []string{"", "k"} {
			_, err := r.Enqueuer.Enqueue(t.Context(), &enqueue.Request{Type: "t", Tenant: "mallory", IdempotencyScope: tenant, IdempotencyKey: key})
			if e, ok := err.(*protocol.Error); !ok || e.Code != protocol.CodeInputInvalid || e.Field != "idempotency_scope" {
				t.Errorf("scope %s of another tenant, key %q: %v", tenant, key, err)
			}
		}
		if _, err := r.Enqueuer.Enqueue(t.Context(), &enqueue.Request{Type: "t", Tenant: tenant, IdempotencyKey: "k"}); err != nil {
			t.Errorf("its own key: %v", err)
		}
	}
}
