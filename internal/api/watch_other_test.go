package api_test

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// alertOf is the id of a tenant's alert, as watchers see it.
func alertOf(tenant string) string { return protocol.AlertID(protocol.AlertDLQGrowth, tenant).String() }

// raise raises a tenant's alert and returns the id of its event.
func raise(t *testing.T, s *store.Store, tenant string) string {
	t.Helper()
	n, err := s.RaiseAlert(t.Context(), dbsqlc.RaiseAlertParams{
		Kind: string(protocol.AlertDLQGrowth), Tenant: tenant, ID: pgid.ID(protocol.AlertID(protocol.AlertDLQGrowth, tenant)),
		Reason: "many", Actor: protocol.ActorAlerts, Data: protocol.AlertData{Kind: protocol.AlertDLQGrowth, Tenant: tenant}.JSON(),
	})
	if err != nil || n != 1 {
		t.Fatalf("raise: %d, %v", n, err)
	}
	return "evt_" + alertOf(tenant) + "_1"
}

// discardEntry makes a dead letter that is no task and an event about it.
func discardEntry(t *testing.T, e *env, s *store.Store) (id, eventID string) {
	t.Helper()
	entry := pgid.ID{0xfd, 15: 1}
	_, err := e.conn(t).Exec(t.Context(), `INSERT INTO dlq_items (dlq_id, tenant, error_code, error, retry_count, failed_at, stream, message_id)
		VALUES ($1, 'default', 'TASK_INPUT_INVALID', 'no task', 0, now(), 'stream:task', '1-1')`, entry)
	if err == nil {
		err = s.InsertEntryEvents(t.Context(), dbsqlc.InsertEntryEventsParams{
			DlqIds: []pgid.ID{entry}, Datas: []string{`{"digest":"d"}`}, Type: string(protocol.EventDiscarded), Actor: "user:u",
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	id = protocol.ID(entry).String()
	return id, "evt_" + id + "_1"
}

// TestWatchWhatIsNoTask: events of alerts and of dead letters that are no task
// have their own id as task_id and the tenant that their data names, or none.
func TestWatchWhatIsNoTask(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	s := e.stores.Store(t)
	entry, dead := discardEntry(t, e, s)
	a, b, none := raise(t, s, "a"), raise(t, s, "b"), raise(t, s, "")
	from := func(r *penstockv1.WatchEventsRequest) *watcher {
		r.Position = "earliest"
		return watch(t, e.rpc, r)
	}
	all, seen := from(&penstockv1.WatchEventsRequest{}), map[string]*penstockv1.Event{}
	for len(seen) < 4 {
		for _, ev := range all.response(t).Events {
			seen[ev.EventId] = ev
		}
	}
	for id, want := range map[string]struct{ task, tenant, typ string }{
		a: {alertOf("a"), "a", "alert.raised"}, b: {alertOf("b"), "b", "alert.raised"}, none: {alertOf(""), "", "alert.raised"}, dead: {entry, "default", "dlq.discarded"},
	} {
		ev := seen[id]
		if ev == nil || ev.TaskId != want.task || ev.Tenant != want.tenant || ev.Type != want.typ || ev.Status != "" || ev.PreviousStatus != "" || ev.Seq != 1 {
			t.Errorf("%s: %v, want %+v", id, ev, want)
		}
	}
	byTenant := from(&penstockv1.WatchEventsRequest{Tenant: "a"})
	for _, x := range []struct {
		by   string
		w    *watcher
		want []string
	}{
		{"tenant", byTenant, []string{a}},
		{"type", from(&penstockv1.WatchEventsRequest{Types: []string{"alert.raised"}}), []string{a, b, none}},
		{"alert", from(&penstockv1.WatchEventsRequest{TaskId: alertOf("a")}), []string{a}},
		{"alert and its tenant", from(&penstockv1.WatchEventsRequest{TaskId: alertOf("a"), Tenant: "a"}), []string{a}},
		{"dead letter", from(&penstockv1.WatchEventsRequest{TaskId: entry}), []string{dead}},
	} {
		if got := x.w.next(t, len(x.want)); !slices.Equal(got, x.want) {
			t.Errorf("by %s: %v, want %v", x.by, got, x.want)
		}
	}
	ofOther := from(&penstockv1.WatchEventsRequest{TaskId: alertOf("a"), Tenant: "b"})
	byTenant.quiet(t, e, &penstockv1.EnqueueRequest{Tenant: "a"})
	if len(ofOther.responses) != 0 {
		t.Errorf("tenant b is told about tenant a's alert: %v", <-ofOther.responses)
	}
	if _, err := e.rpc.ListEvents(t.Context(), connect.NewRequest(&penstockv1.ListEventsRequest{TaskId: alertOf("a")})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("list of an alert's events: %v", err)
	}
}
