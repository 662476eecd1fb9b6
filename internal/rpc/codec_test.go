package rpc

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

func sampleTask() *penstockv1.Task {
	return &penstockv1.Task{
		TaskId: "a\"b\\c\n\u2028é", Type: "notify", Delivery: math.MaxInt64, TimeoutMs: 30000,
		LastErrorCode: wrapperspb.String("TASK_TIMEOUT"), CreatedAt: &timestamppb.Timestamp{Seconds: 1_700_000_000, Nanos: 5000},
		Payload:     []byte(`{"z":1, "a":12345678901234567890, "f":1.10}`),
		RetryPolicy: &penstockv1.RetryPolicy{BaseMs: proto.Int64(0), ScheduleMs: []int64{1, math.MinInt64}},
	}
}

func TestMarshalTask(t *testing.T) {
	b, err := MarshalJSON(nil, sampleTask())
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, want := range []string{
		`"payload":{"z":1, "a":12345678901234567890, "f":1.10},"result":null`,
		`"delivery":9223372036854775807`, `"timeout_ms":30000`, `"started_at":null`,
		`"last_error_code":"TASK_TIMEOUT","last_error_reason":null`,
		`"retry_policy":{"strategy":"","base_ms":0,"schedule_ms":[1,-9223372036854775808]}`,
		"\"task_id\":\"a\\\"b\\\\c\\n\u2028é\"",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s in\n%s", want, text)
		}
	}
	event, err := MarshalJSON(nil, &penstockv1.Event{BackoffDelayMs: wrapperspb.Int64(1 << 60)})
	if err != nil || !strings.Contains(string(event), `"backoff_delay_ms":1152921504606846976`) {
		t.Errorf("%s, %v", event, err)
	}
}

// Without raw fields, protojson reads what marshalJSON writes.
func TestMarshalAgreesWithProtojson(t *testing.T) {
	task := sampleTask()
	task.Payload = nil
	event := &penstockv1.Event{Seq: 3, BackoffDelayMs: wrapperspb.Int64(-5), OccurredAt: &timestamppb.Timestamp{Seconds: 9}}
	for _, m := range []proto.Message{
		task, event, &penstockv1.GetQueueResponse{Queue: "q", Length: 7},
		&penstockv1.ListTasksResponse{Tasks: []*penstockv1.Task{task, {}}},
		&penstockv1.EnqueueRequest{TimeoutMs: proto.Int32(0), DelayMs: -1}, &penstockv1.ErrorInfo{Code: "x", Retryable: true},
	} {
		b, err := MarshalJSON(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		back := m.ProtoReflect().New().Interface()
		if err := protojson.Unmarshal(b, back); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		if !proto.Equal(m, back) {
			t.Errorf("got %v, want %v", back, m)
		}
		standard, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := object(t, string(b)), object(t, string(standard)); len(got) != len(want) {
			t.Errorf("members %v, want %v", got, want)
		}
	}
}

func TestMarshalRefusesBadValues(t *testing.T) {
	for _, m := range []proto.Message{
		&penstockv1.Task{Payload: []byte("{")}, &penstockv1.Task{Payload: []byte("1 2")},
		&penstockv1.Task{Payload: []byte("\"\xff\"")}, &penstockv1.Task{TaskId: "\xff"},
	} {
		if b, err := MarshalJSON(nil, m); err == nil {
			t.Errorf("%v gave %s", m, b)
		}
	}
}

func TestUnmarshalKeepsRawText(t *testing.T) {
	const one, two = `{"z":[1,{"z":1}],"a":12345678901234567890.10e5,"s":"\u00e9 \"x\""}`, ` [ ] `
	text := `{"tasks":[{"type":"a","payload": ` + one + ` ,"delayMs":"5"},{"p\u0061yload":` + two + `,"delay_ms":6},` +
		`{"payload":null},{"payload":-0}],"ids_only":true}`
	var m penstockv1.EnqueueBatchRequest
	if err := unMarshalJSON([]byte(text), &m, budget{}); err != nil {
		t.Fatal(err)
	}
	want := []string{one, strings.TrimSpace(two), "", "-0"}
	for i, task := range m.GetTasks() {
		if string(task.GetPayload()) != want[i] {
			t.Errorf("payload %d is %s", i, task.GetPayload())
		}
	}
	if m.GetTasks()[0].GetDelayMs() != 5 || m.GetTasks()[1].GetDelayMs() != 6 || !m.GetIdsOnly() {
		t.Errorf("%v", &m)
	}
}

func TestUnmarshalErrors(t *testing.T) {
	enqueue, batch := &penstockv1.EnqueueRequest{}, &penstockv1.EnqueueBatchRequest{}
	get := &penstockv1.GetTaskRequest{}
	deep := strings.Repeat("[", maxDepth+1)
	for _, tc := range []struct {
		m           proto.Message
		text, field string
	}{
		{enqueue, `{"nope":1}`, "nope"},
		{batch, `{"tasks":[{},{"nope":1}]}`, "tasks[1].nope"},
		{enqueue, `{"retry_policy":{"base_ms":1,"nope":1}}`, "retry_policy.nope"},
		{enqueue, `{"type":"a","type":"b"}`, "type"},
		{enqueue, `{"payload":1,"payload":2}`, "payload"},
		{enqueue, `{"delay_ms":1,"delayMs":1}`, "delay_ms"},
		{enqueue, `{"timeout_ms":"x"}`, "timeout_ms"},
		{enqueue, `{"timeout_ms":2147483648}`, "timeout_ms"},
		{enqueue, `{"delay_ms":9223372036854775808}`, "delay_ms"},
		{enqueue, `{"scheduled_at":"yesterday"}`, "scheduled_at"},
		{enqueue, `{"type":{}}`, "type"},
		{enqueue, `{"retry_policy":{"schedule_ms":[1,"x"]}}`, "retry_policy.schedule_ms"},
		{enqueue, `{"retry_policy":[]}`, "retry_policy"},
		{batch, `{"tasks":[{},{"timeout_ms":[]}]}`, "tasks[1].timeout_ms"},
		{batch, `{"tasks":{}}`, "tasks"},
		{batch, `{"tasks":[1]}`, "tasks[0]"},
		{enqueue, `{"payload":{]}`, "payload"},
		{enqueue, `{"payload":01}`, ""},
		{enqueue, `{"payload":` + deep + `}`, "payload"},
		{enqueue, `{"payload":"` + "\x01" + `"}`, "payload"},
		{enqueue, `{"payload":"\x"}`, "payload"},
		{enqueue, `{} x`, ""}, {enqueue, `{}{}`, ""}, {enqueue, ``, ""}, {enqueue, ` `, ""}, {enqueue, `[]`, ""},
		{enqueue, `null`, ""}, {enqueue, `{"payload":1`, ""}, {enqueue, `{"type":"a",}`, ""},
		{enqueue, "{\"type\":\"\xff\"}", ""}, {enqueue, "{\"payload\":\"\xff\"}", ""},
		{get, `{"nope":1}`, "nope"}, {get, `{} x`, ""}, {get, `{"tenant":"a","tenant":"b"}`, ""}, {get, "{\"tenant\":\"\xff\"}", ""},
	} {
		err := unMarshalJSON([]byte(tc.text), tc.m, budget{})
		if err == nil {
			t.Errorf("%.80s: accepted", tc.text)
			continue
		}
		if err.field != tc.field && !strings.HasPrefix(err.field, tc.field+"[") {
			t.Errorf("%.80s: field %q, want %q: %v", tc.text, err.field, tc.field, err)
		}
		if err.message == "" || !utf8.ValidString(err.message) || len(err.message) > 300 {
			t.Errorf("%.80s: message %q", tc.text, err.message)
		}
	}
}

func TestMark(t *testing.T) {
	m := &penstockv1.EnqueueRequest{}
	if err := (jsonCodec{name: codecJSON}).Unmarshal([]byte(`{"nope":1}`), m); err != nil {
		t.Fatal(err)
	}
	err := markedInvalid(m)
	if info := InfoOf(ToConnect(err)); info.GetField() != "nope" || info.GetCode() != "TASK_INPUT_INVALID" {
		t.Errorf("%v", info)
	}
	forged := &penstockv1.EnqueueRequest{}
	mark := bytes.Clone(m.ProtoReflect().GetUnknown())
	mark[10] ^= 1
	forged.ProtoReflect().SetUnknown(mark)
	if err := markedInvalid(forged); err != nil {
		t.Errorf("forged mark: %v", err)
	}
}

func TestRESTCodecFields(t *testing.T) {
	fields := (&penstockv1.Task{}).ProtoReflect().Descriptor().Fields()
	m := &penstockv1.Task{TaskId: "keep"}
	for name, text := range map[string]string{
		"payload": `{"b":1,"a":2}`, "delivery": `5`, "created_at": `"1970-01-01T00:00:01Z"`, "started_at": `null`, "type": `"x"`,
	} {
		fd := fields.ByName(protoreflect.Name(name))
		if err := (restCodec{}).UnmarshalField([]byte(text), m, fd); err != nil {
			t.Fatal(err)
		}
		if b, err := (restCodec{}).MarshalAppendField(nil, m, fd); err != nil || string(b) != text {
			t.Errorf("%s: %s, %v", name, b, err)
		}
	}
	if m.GetTaskId() != "keep" {
		t.Error("another field was lost")
	}
}

// dynamicType has raw fields in every place that the API does not use.
func dynamicType(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	raw := &descriptorpb.FieldOptions{}
	proto.SetExtension(raw, penstockv1.E_RawJson, true)
	file := &descriptorpb.FileDescriptorProto{}
	text := `{"name":"t.proto","package":"t","syntax":"proto3","messageType":[{"name":"M","field":[
	 {"name":"raws","number":1,"type":"TYPE_BYTES","label":"LABEL_REPEATED","jsonName":"raws"},
	 {"name":"self","number":2,"type":"TYPE_MESSAGE","typeName":".t.M","label":"LABEL_OPTIONAL","jsonName":"self"},
	 {"name":"by_key","number":3,"type":"TYPE_MESSAGE","typeName":".t.M.ByKeyEntry","label":"LABEL_REPEATED","jsonName":"byKey"},
	 {"name":"plain","number":4,"type":"TYPE_BYTES","label":"LABEL_OPTIONAL","jsonName":"plain"},
	 {"name":"f","number":5,"type":"TYPE_DOUBLE","label":"LABEL_OPTIONAL","jsonName":"f"},
	 {"name":"e","number":6,"type":"TYPE_ENUM","typeName":".t.E","label":"LABEL_OPTIONAL","jsonName":"e"},
	 {"name":"u","number":7,"type":"TYPE_UINT64","label":"LABEL_REPEATED","jsonName":"u"}],
	 "nestedType":[{"name":"ByKeyEntry","options":{"mapEntry":true},"field":[
	 {"name":"key","number":1,"type":"TYPE_STRING","label":"LABEL_OPTIONAL","jsonName":"key"},
	 {"name":"value","number":2,"type":"TYPE_MESSAGE","typeName":".t.M","label":"LABEL_OPTIONAL","jsonName":"value"}]}]}],
	 "enumType":[{"name":"E","value":[{"name":"ZERO","number":0},{"name":"ONE","number":1}]}]}`
	if err := protojson.Unmarshal([]byte(text), file); err != nil {
		t.Fatal(err)
	}
	file.MessageType[0].Field[0].Options = raw
	fd, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return fd.Messages().Get(0)
}

func TestOtherShapes(t *testing.T) {
	md := dynamicType(t)
	const text = `{"raws":[{"b":1,"a":2},[1, 2],null],"self":null,` +
		`"by_key":{"x":{"raws":["v"],"self":{"raws":[],"self":null,"by_key":{},"plain":"","f":0,"e":"ZERO","u":[]},` +
		`"by_key":{},"plain":"","f":0,"e":"ZERO","u":[]},"y\"":{"raws":[],"self":null,"by_key":{},"plain":"","f":0,"e":7,"u":[]}},` +
		`"plain":"AAE=","f":"NaN","e":"ONE","u":[18446744073709551615]}`
	m := dynamicpb.NewMessage(md)
	if err := unMarshalJSON([]byte(text), m, budget{}); err != nil {
		t.Fatal(err)
	}
	b, err := MarshalJSON(nil, m)
	if err != nil || string(b) != text {
		t.Errorf("%v\n got %s\nwant %s", err, b, text)
	}
	if err := unMarshalJSON([]byte(`{"by_key":{"x":{"nope":1}}}`), m, budget{}); err == nil || err.field != `by_key["x"].nope` {
		t.Errorf("%v", err)
	}
}

// TestBytesFieldsAreRaw guards what the OpenAPI tool relies on.
func TestBytesFieldsAreRaw(t *testing.T) {
	messages := penstockv1.File_penstock_v1_tasks_proto.Messages()
	for i := range messages.Len() {
		fields := messages.Get(i).Fields()
		for j := range fields.Len() {
			if fd := fields.Get(j); fd.Kind() == protoreflect.BytesKind && !isRaw(fd) {
				t.Errorf("%s is bytes without raw_json", fd.FullName())
			}
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	task := sampleTask()
	for _, m := range []proto.Message{
		&penstockv1.ListTasksResponse{Tasks: []*penstockv1.Task{task, {Result: []byte(" 1 ")}}, NextPageToken: "x"},
		&penstockv1.ListTasksResponse{},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, back penstockv1.ListTasksResponse
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		normalize(m.ProtoReflect())
		text, err := MarshalJSON(nil, &m)
		if err != nil {
			return // a time out of range, text that is not JSON
		}
		if !json.Valid(text) {
			t.Fatalf("not JSON: %s", text)
		}
		if err := unMarshalJSON(text, &back, budget{}); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if !proto.Equal(&m, &back) {
			t.Fatalf("got %v, want %v", &back, &m)
		}
	})
}

// normalize removes what JSON does not keep: unknown fields, the space around
// raw text, and the difference between no raw text and null.
func normalize(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case isRaw(fd):
			raw := bytes.Trim(v.Bytes(), " \t\r\n")
			if string(raw) == "null" {
				raw = nil
			}
			m.Set(fd, protoreflect.ValueOfBytes(raw))
		case fd.Message() != nil && fd.IsList():
			for i := range v.List().Len() {
				normalize(v.List().Get(i).Message())
			}
		case fd.Message() != nil:
			normalize(v.Message())
		}
		return true
	})
}

func FuzzUnmarshal(f *testing.F) {
	f.Add(`{"tasks":[{"payload":{"a":[1,2,"\u00e9"]},"timeout_ms":1}],"ids_only":true}`)
	f.Add(`{"tasks":[{"payload":nul}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var m, back penstockv1.EnqueueBatchRequest
		if unMarshalJSON([]byte(text), &m, budget{}) != nil {
			return
		}
		if !json.Valid([]byte(text)) {
			t.Fatalf("accepted %q", text)
		}
		again, err := MarshalJSON(nil, &m)
		if err != nil {
			t.Fatal(err)
		}
		if err := unMarshalJSON(again, &back, budget{}); err != nil || !proto.Equal(&m, &back) {
			t.Fatalf("%v: %s", err, again)
		}
	})
}

func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e+3,true,null,"\ud800"]}`, `[]`, `{,}`, `01`, `"\u12"`, ` 1 `, `{"a":1 "b"}`, `[1,]`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := validRaw(b) == nil, json.Valid(b) && utf8.Valid(b); got != want {
			t.Fatalf("%q: got %v, want %v", b, got, want)
		}
	})
}

func BenchmarkMarshalTask(b *testing.B) {
	task := sampleTask()
	var buf []byte
	for b.Loop() {
		buf, _ = MarshalJSON(buf[:0], task)
	}
}

func BenchmarkUnmarshalEnqueue(b *testing.B) {
	text := []byte(menBody)
	var m penstockv1.EnqueueRequest
	for b.Loop() {
		if err := unMarshalJSON(text, &m, budget{}); err != nil {
			b.Fatal(err)
		}
	}
}
