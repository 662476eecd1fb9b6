package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// The task scheduling contract's three examples.
const (
	menCreateExample = `{"task_id":"task_20260225_0001","schedule_type":"at","scheduled_at":"2026-02-25T12:00:00Z","timeout_ms":30000,"max_retries":2,` +
		`"idempotency_key":"order_1001","idempotency_scope":"tenant_a","payload":{"channel":"dingtalk","request_id":"req-1"}}`
	menEventExample = `{"type":"task_state_changed","source":"gateway.scheduler","session_key":"scheduler:default","event_id":"evt_task_1",` +
		`"payload":{"task_id":"task_20260225_0001","from_state":"running","to_state":"failed","occurred_at":"2026-02-25T12:00:30Z","attempt":3,` +
		`"reason_code":"TASK_RETRY_EXHAUSTED","reason_message":"start_to_close timeout exhausted retries","idempotent_hit":false}}`
	menHitExample = `{"idempotent_hit":true,"task":{"task_id":"task_20260225_0001","schedule_type":"at","state":"ready","attempt":1,"max_retries":2,"timeout_ms":30000,` +
		`"idempotency_key":"order_1001","last_error_code":null,"last_error_reason":null,"created_at":"2026-02-25T11:59:58Z","updated_at":"2026-02-25T11:59:58Z",` +
		`"started_at":null,"finished_at":null}}`
)

// shape lists the members of a JSON object in order, with the types of their
// values: "payload.attempt number".
func shape(doc []byte) ([]string, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	var walk func(prefix string) ([]string, error)
	value := func(name string) ([]string, error) {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		switch v := t.(type) {
		case json.Delim:
			if v == '{' {
				inner, err := walk(name + ".")
				return append([]string{name + " object"}, inner...), err
			}
			for dec.More() {
				var skip json.RawMessage
				if err := dec.Decode(&skip); err != nil {
					return nil, err
				}
			}
			_, err := dec.Token()
			return []string{name + " array"}, err
		case string:
			return []string{name + " string"}, nil
		case float64:
			return []string{name + " number"}, nil
		case bool:
			return []string{name + " boolean"}, nil
		default:
			return []string{name + " null"}, nil
		}
	}
	walk = func(prefix string) (out []string, err error) {
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, err
			}
			inner, err := value(prefix + fmt.Sprint(name))
			if err != nil {
				return nil, err
			}
			out = append(out, inner...)
		}
		_, err = dec.Token()
		return out, err
	}
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, fmt.Errorf("%.100s is no JSON object", doc)
	}
	return walk("")
}

// create is the example of a request as this system takes it: with a type, and
// with names and a time of its own.
func (r *run) create(name, queue string, at time.Time) (map[string]any, error) {
	var body map[string]any
	if err := json.Unmarshal([]byte(menCreateExample), &body); err != nil {
		return nil, err
	}
	body["task_id"], body["idempotency_key"], body["idempotency_scope"] = r.name+"-"+name, r.name+"-order-"+name, r.name
	body["scheduled_at"] = at.UTC().Format(time.RFC3339)
	body["type"], body["queue"], body["tenant"] = typeStep, queue, Tenant
	return body, nil
}

// post sends a request to make a task.
func (r *run) post(ctx context.Context, body map[string]any) (status int, reply []byte, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	status, reply, err = r.o.REST(ctx, http.MethodPost, "/api/v1/tasks", b)
	if err == nil && status == http.StatusOK {
		r.keep(fmt.Sprint(body["task_id"]))
	}
	return status, reply, err
}

// menCreate has the time come after the request was stored: where that took too
// long, it asks again for a later one.
func menCreate(ctx context.Context, r *run, f *finding) error {
	for _, lead := range []dur{2 * time.Second, 10 * time.Second, time.Minute} {
		at := time.Now().Add(lead).Truncate(time.Second)
		body, err := r.create("in-"+lead.String(), r.name, at)
		if err != nil {
			return err
		}
		status, reply, err := r.post(ctx, body)
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			f.wrongf("the example is answered with %d: %s", status, reply)
			return nil
		}
		var made struct {
			Task map[string]any `json:"task"`
		}
		if err := json.Unmarshal(reply, &made); err != nil {
			return fmt.Errorf("the reply is no JSON: %w", err)
		}
		created, err := time.Parse(time.RFC3339Nano, fmt.Sprint(made.Task["created_at"]))
		if err != nil {
			return fmt.Errorf("the reply's created_at: %w", err)
		}
		if !created.Before(at) {
			continue
		}
		s, err := r.follow(ctx, fmt.Sprint(body["task_id"]))
		if err != nil {
			return err
		}
		judgeCreate(f, body, made.Task, s, at)
		return nil
	}
	f.unsure = true
	f.wrongf("a request takes more than a minute to be stored")
	return nil
}

func judgeCreate(f *finding, body, made map[string]any, s *story, at time.Time) {
	for _, name := range []string{"task_id", "schedule_type", "timeout_ms", "max_retries", "idempotency_key", "idempotency_scope"} {
		if fmt.Sprint(made[name]) != fmt.Sprint(body[name]) {
			f.wrongf("%s is %v in the reply, want %v", name, made[name], body[name])
		}
	}
	want, err := json.Marshal(body["payload"])
	if err != nil || !sameJSON(s.task.Payload, want) {
		f.wrongf("the payload is %s, want %s", s.task.Payload, want)
	}
	s.whole(f)
	s.ended(f, protocol.StateSucceeded, 1, "")
	if !s.task.ScheduledAt.AsTime().Equal(at) {
		f.wrongf("scheduled_at is %s, want %s", s.task.ScheduledAt.AsTime(), at.UTC())
	}
	claim := s.of(protocol.EventClaimed)
	if claim == nil || claim.OccurredAt.AsTime().Before(at) {
		f.wrongf("it ran before its time %s: %v", at.UTC(), claim)
		return
	}
	if p := s.path(protocol.VocabularyMEN); p != "pending -> ready -> running -> succeeded" {
		f.wrongf("its states were: %s", p)
	}
	f.notef("task %s: claimed %s after its time", s.task.TaskId, claim.OccurredAt.AsTime().Sub(at).Round(time.Millisecond))
}

// menEvent lives the example's life: three timeouts with max_retries 2.
func menEvent(ctx context.Context, r *run, f *finding) error {
	s, err := r.live(ctx, script{Timeout: always}, func(t *task.Request) { t.TaskID, t.MaxRetries, t.Timeout = r.name+"-event", ptr(2), ms(200) })
	if err != nil {
		return err
	}
	status, reply, err := r.o.REST(ctx, http.MethodGet, "/api/v1/tasks/"+s.task.TaskId+"/state-events?tenant="+Tenant, nil)
	if err != nil {
		return err
	}
	var list struct {
		Events []json.RawMessage `json:"events"`
	}
	if status != http.StatusOK || json.Unmarshal(reply, &list) != nil || len(list.Events) == 0 {
		return fmt.Errorf("the state events are answered with %d: %.200s", status, reply)
	}
	judgeEvent(f, list.Events[len(list.Events)-1], s.task.TaskId)
	return nil
}

func judgeEvent(f *finding, event []byte, taskID string) {
	want, _ := shape([]byte(menEventExample))
	got, err := shape(event)
	if err != nil || !slices.Equal(got, want) {
		f.wrongf("the event has %s, want %s (%v)", strings.Join(got, ", "), strings.Join(want, ", "), err)
		return
	}
	var e, example protocol.MENEvent
	if err := json.Unmarshal(event, &e); err != nil {
		f.wrongf("the event can't be read: %v", err)
		return
	}
	if err := json.Unmarshal([]byte(menEventExample), &example); err != nil {
		f.wrongf("the example can't be read: %v", err)
		return
	}
	if !strings.HasPrefix(e.EventID, "evt_") || !strings.Contains(e.Payload.ReasonMessage, string(protocol.CodeTimeout)) || e.Payload.OccurredAt.IsZero() || e.Payload.TaskID != taskID {
		f.wrongf("the event is %s", event)
	}
	// What is the task's own can't be the example's.
	e.EventID, e.Payload.TaskID, e.Payload.OccurredAt, e.Payload.ReasonMessage = example.EventID, example.Payload.TaskID, example.Payload.OccurredAt, example.Payload.ReasonMessage
	if e != example {
		f.wrongf("the event is %s, want %s", event, menEventExample)
	}
	f.notef("%s", event)
}

func menHit(ctx context.Context, r *run, f *finding) error {
	body, err := r.create("hit", r.queue(queueIdle), time.Now().Add(-time.Second))
	if err != nil {
		return err
	}
	if status, reply, err := r.post(ctx, body); err != nil || status != http.StatusOK {
		return fmt.Errorf("the first request is answered with %d: %.200s (%w)", status, reply, err)
	}
	if err := r.reach(ctx, fmt.Sprint(body["task_id"]), protocol.StateQueued); err != nil {
		return err
	}
	status, reply, err := r.post(ctx, body)
	if err != nil {
		return err
	}
	judgeHit(f, status, reply, fmt.Sprint(body["task_id"]))
	body["payload"] = map[string]string{"channel": "another"}
	status, reply, err = r.post(ctx, body)
	if err != nil {
		return err
	}
	judgeDuplicate(f, status, reply)
	var n int
	if err := r.query(ctx, "SELECT count(*) FROM tasks WHERE idempotency_scope = $1 AND idempotency_key = $2", r.name, fmt.Sprint(body["idempotency_key"])).scan(&n); err != nil {
		return err
	}
	if n != 1 {
		f.wrongf("%d tasks have the key, want one", n)
	}
	return nil
}

// judgeHit compares with the example: what it has must be there with the same
// types; our replies have more.
func judgeHit(f *finding, status int, reply []byte, taskID string) {
	if status != http.StatusOK {
		f.wrongf("the second request is answered with %d: %.200s", status, reply)
		return
	}
	want, _ := shape([]byte(menHitExample))
	got, err := shape(reply)
	if err != nil {
		f.wrongf("the reply: %v", err)
		return
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			f.wrongf("the reply has no %s", w)
		}
	}
	var r struct {
		IdempotentHit bool `json:"idempotent_hit"`
		Task          struct {
			TaskID  string         `json:"task_id"`
			State   protocol.State `json:"state"`
			Attempt int            `json:"attempt"`
		} `json:"task"`
	}
	if err := json.Unmarshal(reply, &r); err != nil || !r.IdempotentHit || r.Task.TaskID != taskID || r.Task.Attempt != 1 ||
		protocol.VocabularyMEN.Project(r.Task.State, "") != "ready" {
		f.wrongf("the reply is %.300s (%v)", reply, err)
	}
	f.notef("task %s: idempotent_hit, %s", taskID, r.Task.State)
}

func judgeDuplicate(f *finding, status int, reply []byte) {
	var e struct{ Code, Field string }
	if err := json.Unmarshal(reply, &e); err != nil || status != http.StatusConflict || e.Code != string(protocol.CodeDuplicate) || e.Field != "payload" {
		f.wrongf("the same key with another payload is answered with %d: %.300s; want %d, %s about payload", status, reply, http.StatusConflict, protocol.CodeDuplicate)
	}
}
