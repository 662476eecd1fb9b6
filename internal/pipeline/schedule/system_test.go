package schedule_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
	"github.com/penstock-dev/penstock/task"
	"github.com/penstock-dev/penstock/worker"
)

func service(t *testing.T, s testkit.Stores) (penstockv1connect.ScheduleServiceClient, *testkit.Orchestrator) {
	t.Helper()
	o := testkit.StartOrchestrator(t, s.Config())
	cl := testkit.Client(t, o.URL).Schedules()
	testkit.Eventually(t, "ready", func() (bool, string) {
		_, err := cl.ListSchedules(t.Context(), connect.NewRequest(&penstockv1.ListSchedulesRequest{}))
		return err == nil, fmt.Sprint(err)
	})
	return cl, o
}

// every is a definition that fires every second.
func every(change ...func(*penstockv1.ScheduleSpec)) *penstockv1.ScheduleSpec {
	s := &penstockv1.ScheduleSpec{EveryMs: 1000, Task: &penstockv1.ScheduledTask{Type: "tick", Payload: []byte(`{"n": 1}`)}}
	for _, f := range change {
		f(s)
	}
	return s
}

// Two orchestrators, one of which is stopped in between: the handler sees each
// fire time once, and no earlier than that.
func TestHandlersSeeEachFireTimeOnce(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cl, _ := service(t, s)
	_, second := service(t, s)
	var mu sync.Mutex
	seen, early := map[time.Time]int{}, 0
	s.StartWorker(t, worker.Options{}, func(w *worker.Worker) {
		w.HandleRaw("tick", func(_ context.Context, r *task.Raw) (json.RawMessage, error) {
			mu.Lock()
			defer mu.Unlock()
			seen[r.ScheduledAt.UTC()]++
			if time.Now().Before(r.ScheduledAt.Add(-5 * time.Millisecond)) {
				early++
			}
			return nil, nil
		})
	})
	if _, err := cl.CreateSchedule(t.Context(), connect.NewRequest(&penstockv1.CreateScheduleRequest{Name: "tick", Spec: every()})); err != nil {
		t.Fatal(err)
	}
	after := func(n int) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprint(n, " fires"), func() (bool, string) {
			mu.Lock()
			defer mu.Unlock()
			return len(seen) >= n, fmt.Sprint(len(seen))
		})
	}
	after(2)
	second.Stop(t)
	after(5)
	if _, err := cl.PauseSchedule(t.Context(), connect.NewRequest(&penstockv1.PauseScheduleRequest{Schedule: "tick"})); err != nil {
		t.Fatal(err)
	}
	var want []time.Time
	rows, err := s.SQL(t).Query(t.Context(), "SELECT fire_at FROM schedule_fires ORDER BY fire_at")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var at time.Time
		if err := rows.Scan(&at); err != nil {
			t.Fatal(err)
		}
		want = append(want, at.UTC())
	}
	after(len(want))
	testkit.VerifyQuiet(t, s)
	mu.Lock()
	defer mu.Unlock()
	for i, at := range want {
		if seen[at] != 1 || i > 0 && at.Sub(want[i-1]) != time.Second {
			t.Errorf("fire time %s was seen %d times", at, seen[at])
		}
	}
	if len(seen) != len(want) || early > 0 {
		t.Errorf("%d fire times seen, %d fires recorded, %d too early", len(seen), len(want), early)
	}
}

func TestCreateAndUpdate(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cl, _ := service(t, s)
	n := int32(2)
	spec := every(func(x *penstockv1.ScheduleSpec) {
		x.EveryMs, x.Cron, x.Timezone = 0, "30 2 * * *", "Europe/Berlin"
		x.Task.MaxRetries, x.Task.RetryPolicy = &n, &penstockv1.RetryPolicy{Strategy: "schedule", ScheduleMs: []int64{1, 2}}
	})
	create := func(spec *penstockv1.ScheduleSpec) (*penstockv1.CreateScheduleResponse, error) {
		res, err := cl.CreateSchedule(t.Context(), connect.NewRequest(&penstockv1.CreateScheduleRequest{Name: "night", Spec: spec}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	first, err := create(spec)
	if err != nil || first.IdempotentHit || first.Schedule.CreatedBy != "anonymous" || first.Schedule.Spec.Missed != "run_once" || string(first.Schedule.Spec.Task.Payload) != `{"n":1}` {
		t.Fatalf("%v, %v", first, err)
	}
	next := first.Schedule.NextFireAt.AsTime()
	if berlin, err := time.LoadLocation("Europe/Berlin"); err != nil || next.In(berlin).Format("15:04:05") != "02:30:00" && next.In(berlin).Format("15:04:05") != "03:00:00" || time.Until(next) > 25*time.Hour {
		t.Errorf("next fire %s, %v", next, err)
	}
	if again, err := create(spec); err != nil || !again.IdempotentHit || again.Schedule.Id != first.Schedule.Id {
		t.Errorf("again: %v, %v", again, err)
	}
	spec.Task.Payload = []byte(`{"n": 2}`)
	_, err = create(spec)
	if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeDuplicate) || info.GetField() != "spec.task.payload" {
		t.Errorf("another payload: %v", err)
	}
	update := func(revision int64) (*penstockv1.Schedule, error) {
		res, err := cl.UpdateSchedule(t.Context(), connect.NewRequest(&penstockv1.UpdateScheduleRequest{Schedule: first.Schedule.Id, Spec: spec, Revision: revision}))
		if err != nil {
			return nil, err
		}
		return res.Msg.Schedule, nil
	}
	got, err := update(1)
	if err != nil || got.Revision != 2 || string(got.Spec.Task.Payload) != `{"n":2}` || !got.NextFireAt.AsTime().Equal(next) {
		t.Errorf("update: %v, %v", got, err)
	}
	if _, err = update(1); rpc.InfoOf(err).GetCode() != string(protocol.CodeInvalidTransition) {
		t.Errorf("update of an old revision: %v", err)
	}
	spec.Cron, spec.EveryMs, spec.Timezone = "", 60_000, ""
	if got, err = update(0); err != nil || time.Until(got.NextFireAt.AsTime()) > time.Minute || got.Spec.Cron != "" {
		t.Errorf("update to an interval: %v, %v", got, err)
	}
	list, err := cl.ListSchedules(t.Context(), connect.NewRequest(&penstockv1.ListSchedulesRequest{}))
	if err != nil || len(list.Msg.Schedules) != 1 || list.Msg.NextPageToken != "" {
		t.Errorf("list: %v, %v", list, err)
	}
	times, err := cl.NextFires(t.Context(), connect.NewRequest(&penstockv1.NextFiresRequest{Schedule: "night", Count: 3}))
	if err != nil || len(times.Msg.Times) != 3 || !times.Msg.Times[0].AsTime().Equal(got.NextFireAt.AsTime()) {
		t.Errorf("next: %v, %v", times, err)
	}
}

// What can't be is refused with a code and the field, and nothing is stored.
func TestNonsense(t *testing.T) {
	t.Parallel()
	s := testkit.NewStores(t)
	cl, o := service(t, s)
	over := timestamppb.New(time.Now().Add(-time.Hour))
	type spec = *penstockv1.ScheduleSpec
	for name, c := range map[string]struct {
		name  string
		edit  func(spec)
		field string
	}{
		"no name":       {"", func(spec) {}, "name"},
		"long name":     {strings.Repeat("x", 65), func(spec) {}, "name"},
		"10 kB of name": {strings.Repeat("x", 10_000), func(spec) {}, "name"},
		"name of words": {"a b", func(spec) {}, "name"},
		"name is an id": {"0192f0c1-2345-7abc-8def-0123456789ab", func(spec) {}, "name"},
		"no rule":       {"s", func(x spec) { x.EveryMs = 0 }, "spec.cron"},
		"cron nonsense": {"s", func(x spec) { x.EveryMs, x.Cron = 0, "at noon" }, "spec.cron"},
		"no such day":   {"s", func(x spec) { x.EveryMs, x.Cron = 0, "0 0 31 2 *" }, "spec.cron"},
		"10 kB of cron": {"s", func(x spec) { x.EveryMs, x.Cron = 0, strings.Repeat("* ", 5000) }, "spec.cron"},
		"both":          {"s", func(x spec) { x.Cron = "* * * * *" }, "spec.every_ms"},
		"too often":     {"s", func(x spec) { x.EveryMs = 999 }, "spec.every_ms"},
		"overflow":      {"s", func(x spec) { x.EveryMs = 1 << 62 }, "spec.every_ms"},
		"zone":          {"s", func(x spec) { x.Timezone = "Mars/Olympus" }, "spec.timezone"},
		"missed":        {"s", func(x spec) { x.Missed = "sometimes" }, "spec.missed"},
		"missed_max":    {"s", func(x spec) { x.MissedMax = 1001 }, "spec.missed_max"},
		"overlap":       {"s", func(x spec) { x.Overlap = "maybe" }, "spec.overlap"},
		"over":          {"s", func(x spec) { x.EndAt = over }, "spec.end_at"},
		"end first":     {"s", func(x spec) { x.StartAt, x.EndAt = timestamppb.Now(), over }, "spec.end_at"},
		"no time":       {"s", func(x spec) { x.StartAt = &timestamppb.Timestamp{Seconds: 1 << 60} }, "spec.start_at"},
		"no type":       {"s", func(x spec) { x.Task.Type = "" }, "spec.task.type"},
		"no task":       {"s", func(x spec) { x.Task = nil }, "spec.task.type"},
		"no JSON":       {"s", func(x spec) { x.Task.Payload = []byte("{") }, "spec.task.payload"},
		"large payload": {"s", func(x spec) { x.Task.Payload = []byte(`"` + strings.Repeat("x", 300_000) + `"`) }, "spec.task.payload"},
		"queue":         {"s", func(x spec) { x.Task.Queue = "a b" }, "spec.task.queue"},
		"internal":      {"s", func(x spec) { x.Task.Queue = protocol.QueueInternal }, "spec.task.queue"},
	} {
		m := every()
		c.edit(m)
		_, err := cl.CreateSchedule(t.Context(), connect.NewRequest(&penstockv1.CreateScheduleRequest{Name: c.name, Spec: m}))
		if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeInputInvalid) || info.GetField() != c.field {
			t.Errorf("%s: %v, want TASK_INPUT_INVALID of %s", name, err, c.field)
		}
	}
	for name, m := range map[string]*penstockv1.NextFiresRequest{
		"count": {Cron: "* * * * *", Count: 1001}, "nothing": {}, "both": {Schedule: "s", Cron: "* * * * *"}, "nonsense": {Cron: "x"}, "often": {EveryMs: 1}, "negative": {EveryMs: -1},
	} {
		if _, err := cl.NextFires(t.Context(), connect.NewRequest(m)); rpc.InfoOf(err).GetCode() != string(protocol.CodeInputInvalid) {
			t.Errorf("next fires, %s: %v", name, err)
		}
	}
	if _, err := cl.GetSchedule(t.Context(), connect.NewRequest(&penstockv1.GetScheduleRequest{Schedule: "s\x00"})); rpc.InfoOf(err).GetCode() != string(protocol.CodeNotFound) {
		t.Errorf("no such schedule: %v", err)
	}
	// A start without an offset, over REST.
	res, err := http.Post(o.URL+"/api/v1/schedules", "application/json", strings.NewReader(`{"name": "s", "spec": {"every_ms": 1000, "start_at": "2030-01-01T00:00:00", "task": {"type": "x"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var reply struct{ Code, Field string }
	if err := json.NewDecoder(res.Body).Decode(&reply); err != nil || res.StatusCode != http.StatusBadRequest || reply.Code != string(protocol.CodeInputInvalid) || reply.Field != "spec.start_at" {
		t.Errorf("no offset: %s, %+v, %v", res.Status, reply, err)
	}
	var n int
	if err := s.SQL(t).QueryRow(t.Context(), "SELECT count(*) FROM schedules").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d schedules, %v; want none", n, err)
	}
}
