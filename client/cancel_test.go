package client_test

import (
	"testing"
	"time"

	"github.com/penstock-dev/penstock/client"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	c := testkit.Client(t, testkit.StartOrchestrator(t, s.Config()).URL)
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	rs := []*task.Request{{Type: "t", Queue: "mail", ExpiresAt: at}}
	for range 1500 {
		rs = append(rs, &task.Request{Type: "t", Queue: "mail", StartWithin: time.Hour, Delay: time.Hour})
	}
	res, err := c.EnqueueMany(t.Context(), rs)
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res[0].Err)
	}
	first := res[0].Value.TaskID
	got, err := c.CancelTask(t.Context(), "", first, "why")
	if err != nil || got.State != "cancelled" || !got.ExpiresAt.AsTime().Equal(at) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = c.CancelTask(t.Context(), "", first, "why"); err != nil || got.State != "cancelled" {
		t.Errorf("again: %v, %v", got, err)
	}
	if _, err := c.CancelTask(t.Context(), "", "nobody", ""); protocol.CodeOf(err) != protocol.CodeNotFound {
		t.Errorf("nobody: %v", err)
	}
	if _, err := c.CancelTask(t.Context(), "", first, "\xff"); protocol.CodeOf(err) != protocol.CodeInputInvalid {
		t.Errorf("bad reason: %v", err)
	}
	if _, err := c.CancelTasks(t.Context(), client.CancelFilter{}, ""); protocol.CodeOf(err) != protocol.CodeInputInvalid {
		t.Errorf("no filter: %v", err)
	}
	n, err := c.CancelTasks(t.Context(), client.CancelFilter{Queue: "mail", States: []string{"pending"}}, "why")
	if err != nil || n != 1500 { // more than one call takes
		t.Errorf("%d cancelled, %v, want 1500", n, err)
	}
	testkit.VerifyEvents(t, s)
}
