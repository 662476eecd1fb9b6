package api_test

import (
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// What can't be a heartbeat is refused by name, and leaves nothing.
func TestHeartbeatBadInput(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := protocol.NameID("a", "b").String()
	for field, edit := range map[string]func(m *penstockv1.HeartbeatRequest){
		"worker_id":   func(m *penstockv1.HeartbeatRequest) { m.WorkerId = "" },
		"host":        func(m *penstockv1.HeartbeatRequest) { m.Host = "a\x00" },
		"version":     func(m *penstockv1.HeartbeatRequest) { m.Version = strings.Repeat("x", 256) },
		"queues[1]":   func(m *penstockv1.HeartbeatRequest) { m.Queues = []string{"q", "\x00"} },
		"interval_ms": func(m *penstockv1.HeartbeatRequest) { m.IntervalMs = 0 },
		"tasks":       func(m *penstockv1.HeartbeatRequest) { m.Tasks = make([]*penstockv1.RunningTask, 10_001) },
		"tasks[0].id": func(m *penstockv1.HeartbeatRequest) { m.Tasks = []*penstockv1.RunningTask{{Id: "x"}} },
		"tasks[0].progress": func(m *penstockv1.HeartbeatRequest) {
			m.Tasks = []*penstockv1.RunningTask{{Id: id, Progress: []byte("{")}}
		},
		"tasks[1].progress": func(m *penstockv1.HeartbeatRequest) {
			m.Tasks = []*penstockv1.RunningTask{{Id: id}, {Id: id, Progress: fmt.Appendf(nil, "%q", strings.Repeat("x", 4095))}}
		},
	} {
		m := &penstockv1.HeartbeatRequest{WorkerId: "w", IntervalMs: 1000}
		edit(m)
		for i := range m.Tasks {
			if m.Tasks[i] == nil {
				m.Tasks[i] = &penstockv1.RunningTask{Id: id, Delivery: 1}
			}
		}
		_, err := e.rpc.Heartbeat(t.Context(), connect.NewRequest(m))
		if info := rpc.InfoOf(err); info.GetCode() != string(protocol.CodeInputInvalid) || info.GetField() != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	res, err := e.rpc.ListWorkers(t.Context(), connect.NewRequest(&penstockv1.ListWorkersRequest{}))
	if err != nil || len(res.Msg.Workers) != 0 {
		t.Errorf("%v, %v", res, err)
	}
}

// A worker in another language can send heartbeats as JSON.
func TestHeartbeatOverREST(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	id := protocol.NameID("a", "b").String()
	body := fmt.Sprintf(`{"host":"h","pid":1,"interval_ms":60000,"queues":["default"],"concurrency":2,"running":1,"tasks":[{"id":%q,"delivery":3,"progress":{"n":[1]}}]}`, id)
	r := e.post(t, "/api/v1/workers/w-1/heartbeat", body)
	if want := fmt.Sprintf(`"superseded":[{"id":%q,"delivery":3}]`, id); r.status != 200 || !strings.Contains(r.body, want) || !strings.Contains(r.body, `"drain":false`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := e.get(t, "/api/v1/workers"); r.status != 200 || !strings.Contains(r.body, `"worker_id":"w-1"`) || !strings.Contains(r.body, `"queues":["default"]`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := e.post(t, "/api/v1/workers/w-1/drain", "{}"); r.status != 200 || !strings.Contains(r.body, `"drain_by":"anonymous"`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := e.post(t, "/api/v1/workers/w-1/heartbeat", `{"interval_ms":60000}`); !strings.Contains(r.body, `"drain":true`) {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := e.post(t, "/api/v1/workers/w-1/heartbeat", `{"leaving":true}`); r.status != 200 {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := e.post(t, "/api/v1/workers/w-1/drain", "{}"); r.status != 404 {
		t.Errorf("%d %s", r.status, r.body)
	}
}
