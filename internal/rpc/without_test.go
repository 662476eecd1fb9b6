package rpc

import (
	"encoding/json"
	"testing"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// What a list does not carry is absent: null would be somebody's payload.
func TestListsLeaveOutWhatTheyDoNotCarry(t *testing.T) {
	t.Parallel()
	listed := &penstockv1.Task{TaskId: "t", RequestedBy: "alice"}
	b, err := MarshalJSON(nil, &penstockv1.ListTasksResponse{Tasks: []*penstockv1.Task{listed}})
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Tasks []map[string]any }
	if err := json.Unmarshal(b, &list); err != nil || len(list.Tasks) != 1 {
		t.Fatalf("%v: %s", err, b)
	}
	got := list.Tasks[0]
	for _, name := range []string{"payload", "result", "progress"} {
		if v, ok := got[name]; ok {
			t.Errorf("a listed task says that its %s is %v", name, v)
		}
	}
	if got["requested_by"] != "alice" || got["finished_at"] != nil {
		t.Errorf("listed: %s", b)
	}
	if _, ok := got["finished_at"]; !ok {
		t.Error("what a list carries is there even where it does not apply")
	}

	b, err = MarshalJSON(nil, &penstockv1.GetTaskResponse{Task: listed})
	if err != nil {
		t.Fatal(err)
	}
	var one struct{ Task map[string]any }
	if err := json.Unmarshal(b, &one); err != nil {
		t.Fatal(err)
	}
	if v, ok := one.Task["payload"]; !ok || v != nil {
		t.Errorf("one task: %s", b)
	}

	letter := &penstockv1.DeadLetter{DlqId: "d"}
	b, err = MarshalItem(nil, &penstockv1.ListDeadLettersResponse{}, "dead_letters", letter)
	if err != nil {
		t.Fatal(err)
	}
	var item map[string]any
	if err := json.Unmarshal(b, &item); err != nil || item["dlq_id"] != "d" {
		t.Fatalf("%v: %s", err, b)
	}
	for _, name := range []string{"payload", "raw", "edited_payload", "errors", "requeues", "edits"} {
		if v, ok := item[name]; ok {
			t.Errorf("a listed dead letter says that its %s is %v", name, v)
		}
	}
	b, err = MarshalJSON(nil, &penstockv1.DeadLetterGroup{Sample: letter})
	if err != nil {
		t.Fatal(err)
	}
	var group struct{ Sample map[string]any }
	if err := json.Unmarshal(b, &group); err != nil || group.Sample["dlq_id"] != "d" || len(group.Sample) != len(item) {
		t.Errorf("%v: %s", err, b)
	}
	var back penstockv1.ListTasksResponse
	if err := unMarshalJSON([]byte(`{"tasks":[{"task_id":"t","payload":[1],"schedule_id":"s"}]}`), &back, budget{}); err != nil || string(back.Tasks[0].Payload) != "[1]" {
		t.Errorf("read: %v, %v", err, &back)
	}
}
