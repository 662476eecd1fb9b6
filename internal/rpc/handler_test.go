package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// clients returns a client for each protocol and encoding.
func (s *testServer) clients() map[string]penstockv1connect.TaskServiceClient {
	client := func(c *http.Client, opts ...connect.ClientOption) penstockv1connect.TaskServiceClient {
		return penstockv1connect.NewTaskServiceClient(c, s.url, opts...)
	}
	return map[string]penstockv1connect.TaskServiceClient{
		"grpc":         client(s.h2c, connect.WithGRPC()),
		"grpc gzip":    client(s.h2c, connect.WithGRPC(), connect.WithSendGzip()),
		"grpc json":    client(s.h2c, connect.WithGRPC(), connect.WithCodec(jsonCodec{name: codecJSON})),
		"grpc-web":     client(s.http, connect.WithGRPCWeb()),
		"connect":      client(s.http),
		"connect h2c":  client(s.h2c),
		"connect get":  client(s.http, connect.WithHTTPGet()),
		"connect json": client(s.http, connect.WithCodec(jsonCodec{name: codecJSON})),
		"charset":      client(s.http, connect.WithCodec(jsonCodec{name: codecJSONCharset})),
	}
}

func TestProtocols(t *testing.T) {
	svc := &fakeService{
		enqueue: echo,
		get: func(_ context.Context, r *penstockv1.GetTaskRequest) (*penstockv1.GetTaskResponse, error) {
			return nil, protocol.Errorf(protocol.CodeNotFound, "task_id", "there is no task %s", r.GetTaskId())
		},
		watch: func(_ context.Context, r *penstockv1.WatchEventsRequest, send func(*penstockv1.WatchEventsResponse) error) error {
			if err := send(&penstockv1.WatchEventsResponse{Position: r.GetPosition(), Events: []*penstockv1.Event{{Data: []byte(menPayload)}}}); err != nil {
				return err
			}
			return Overloaded(nil)
		},
	}
	s := serve(t, svc, Options{})
	for name, client := range s.clients() {
		t.Run(name, func(t *testing.T) {
			req := connect.NewRequest(&penstockv1.EnqueueRequest{TaskId: "a", Payload: []byte(menPayload), TimeoutMs: proto.Int32(5)})
			req.Header().Set(IdempotencyKeyHeader, `"k"`)
			resp, err := client.Enqueue(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			task := resp.Msg.GetTask()
			if string(task.GetPayload()) != menPayload || task.GetIdempotencyKey() != "k" || task.GetTimeoutMs() != 5 || task.GetDelivery() != 1<<40 {
				t.Errorf("%v", task)
			}
			_, err = client.GetTask(t.Context(), connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: "é"}))
			info := InfoOf(err)
			if connect.CodeOf(err) != connect.CodeNotFound || info.GetCode() != "TASK_NOT_FOUND" || info.GetField() != "task_id" || info.GetMessage() != "there is no task é" {
				t.Errorf("%v %v", err, info)
			}
			stream, err := client.WatchEvents(t.Context(), connect.NewRequest(&penstockv1.WatchEventsRequest{Position: "p"}))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = stream.Close() }()
			if !stream.Receive() || stream.Msg().GetPosition() != "p" || string(stream.Msg().GetEvents()[0].GetData()) != menPayload {
				t.Errorf("%v %v", stream.Msg(), stream.Err())
			}
			if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodeResourceExhausted || !InfoOf(stream.Err()).GetRetryable() {
				t.Errorf("%v", stream.Err())
			}
		})
	}
}

// badCodec sends what a client should not.
type badCodec struct {
	name, text string
}

func (c badCodec) Name() string                { return c.name }
func (c badCodec) Marshal(any) ([]byte, error) { return []byte(c.text), nil }
func (c badCodec) Unmarshal(b []byte, v any) error {
	if c.name == codecProto {
		return protoCodec{}.Unmarshal(b, v)
	}
	return jsonCodec{}.Unmarshal(b, v)
}

func TestUndecodableRequests(t *testing.T) {
	svc := &fakeService{
		enqueue: func(context.Context, *penstockv1.EnqueueRequest) (*penstockv1.EnqueueResponse, error) {
			t.Error("the service was called")
			return &penstockv1.EnqueueResponse{}, nil
		},
		watch: func(context.Context, *penstockv1.WatchEventsRequest, func(*penstockv1.WatchEventsResponse) error) error {
			t.Error("the service was called")
			return nil
		},
	}
	s := serve(t, svc, Options{})
	for name, opts := range map[string][]connect.ClientOption{
		"connect json":  {connect.WithCodec(badCodec{"json", `{"nope":1}`})},
		"grpc json":     {connect.WithGRPC(), connect.WithCodec(badCodec{"json", `{"nope":1}`})},
		"grpc proto":    {connect.WithGRPC(), connect.WithCodec(badCodec{"proto", "\xff"})},
		"connect proto": {connect.WithCodec(badCodec{"proto", "\xff"})},
	} {
		client := penstockv1connect.NewTaskServiceClient(s.h2c, s.url, opts...)
		_, err := client.Enqueue(t.Context(), connect.NewRequest(&penstockv1.EnqueueRequest{}))
		if info := InfoOf(err); connect.CodeOf(err) != connect.CodeInvalidArgument || info.GetCode() != "TASK_INPUT_INVALID" ||
			strings.HasSuffix(name, "json") && info.GetField() != "nope" {
			t.Errorf("%s: %v %v", name, err, info)
		}
		stream, err := client.WatchEvents(t.Context(), connect.NewRequest(&penstockv1.WatchEventsRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		for stream.Receive() {
			t.Error("received")
		}
		if connect.CodeOf(stream.Err()) != connect.CodeInvalidArgument || InfoOf(stream.Err()).GetCode() != "TASK_INPUT_INVALID" {
			t.Errorf("%s: %v", name, stream.Err())
		}
		_ = stream.Close()
	}
}

func TestLimits(t *testing.T) {
	s := serve(t, &fakeService{enqueue: echo}, Options{MaxMessageBytes: 1000})
	for name, client := range s.clients() {
		if name == "grpc gzip" {
			continue
		}
		payload := []byte(`"` + strings.Repeat("x", 1000) + `"`)
		_, err := client.Enqueue(t.Context(), connect.NewRequest(&penstockv1.EnqueueRequest{Payload: payload}))
		if connect.CodeOf(err) != connect.CodeResourceExhausted || InfoOf(err) != nil || !strings.Contains(err.Error(), "1000") {
			t.Errorf("%s: %v", name, err)
		}
	}
	handlers := func(prefixes ...string) Options {
		o := Options{Handlers: map[string]http.Handler{}}
		for _, prefix := range prefixes {
			o.Handlers[prefix] = http.NotFoundHandler()
		}
		return o
	}
	all := fakeServices(&fakeService{})
	for _, o := range []Options{
		{MaxBatchBytes: -1}, {MaxMessageBytes: maxLimit + 1}, {WatchKeepAlive: -1},
		handlers("/"), handlers("x/"), handlers("/x"), handlers("/x/", "/x/y/"),
	} {
		if _, err := NewHandler(all, o); err == nil {
			t.Errorf("%v was accepted", o)
		}
	}
	for i := range reflect.TypeFor[Services]().NumField() {
		s, name := all, reflect.TypeFor[Services]().Field(i).Name
		reflect.ValueOf(&s).Elem().Field(i).SetZero()
		if _, err := NewHandler(s, Options{}); err == nil || !strings.Contains(err.Error(), "Services."+name+" is nil") {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

func TestPanics(t *testing.T) {
	svc := &fakeService{
		enqueue: func(context.Context, *penstockv1.EnqueueRequest) (*penstockv1.EnqueueResponse, error) {
			panic("unary boom")
		},
		watch: func(context.Context, *penstockv1.WatchEventsRequest, func(*penstockv1.WatchEventsResponse) error) error {
			panic("stream boom")
		},
	}
	s := serve(t, svc, Options{})
	client := s.clients()["grpc"]
	if _, err := client.Enqueue(t.Context(), connect.NewRequest(&penstockv1.EnqueueRequest{})); connect.CodeOf(err) != connect.CodeInternal || strings.Contains(err.Error(), "boom") {
		t.Error(err)
	}
	stream, err := client.WatchEvents(t.Context(), connect.NewRequest(&penstockv1.WatchEventsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if stream.Receive() || connect.CodeOf(stream.Err()) != connect.CodeInternal {
		t.Error(stream.Err())
	}
	logs := s.logs.String()
	for _, want := range []string{"unary boom", "stream boom", "TaskService/Enqueue", "TaskService/WatchEvents", "handler_test.go"} {
		if !strings.Contains(logs, want) {
			t.Errorf("%q is not in the logs: %s", want, logs)
		}
	}
}

func TestHealth(t *testing.T) {
	ready := errors.Join(errors.New("postgres: down"), errors.New("redis: down"))
	var set bool
	s := serve(t, &fakeService{}, Options{Ready: func(context.Context) error {
		if set {
			return nil
		}
		return ready
	}, Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("metric 1\n")) })})
	client := grpchealth.NewClient(s.h2c, s.url, connect.WithGRPC())
	check := func(want grpchealth.Status) {
		t.Helper()
		for _, service := range []string{"", penstockv1connect.TaskServiceName, penstockv1connect.DeadLetterServiceName} {
			got, err := client.Check(t.Context(), &grpchealth.CheckRequest{Service: service})
			if err != nil || got.Status != want {
				t.Errorf("%q: %v %v", service, got, err)
			}
		}
	}
	check(grpchealth.StatusNotServing)
	if r := s.do("GET", "/readyz", ""); r.status != 503 || strings.TrimSpace(r.body) != `{"status":"not ready","reasons":["postgres: down","redis: down"]}` {
		t.Errorf("%d %s", r.status, r.body)
	}
	if r := s.do("GET", "/livez", ""); r.status != 200 {
		t.Errorf("%d", r.status)
	}
	set = true
	check(grpchealth.StatusServing)
	if r := s.do("GET", "/readyz", ""); r.status != 200 || strings.TrimSpace(r.body) != `{"status":"ready"}` {
		t.Errorf("%d %s", r.status, r.body)
	}
	if _, err := client.Check(t.Context(), &grpchealth.CheckRequest{Service: "x"}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Error(err)
	}
	if r := s.do("GET", "/metrics", ""); r.body != "metric 1\n" {
		t.Errorf("%s", r.body)
	}
}

func TestReflection(t *testing.T) {
	s := serve(t, &fakeService{}, Options{})
	stream := grpcreflect.NewClient(s.h2c, s.url, connect.WithGRPC()).NewStream(t.Context())
	defer func() { _, _ = stream.Close() }()
	names, err := stream.ListServices()
	if err != nil || len(names) != 9 {
		t.Fatalf("%v %v", names, err)
	}
	for _, name := range []string{
		penstockv1connect.TaskServiceName, penstockv1connect.DeadLetterServiceName, penstockv1connect.WorkerServiceName,
		penstockv1connect.ApprovalServiceName, penstockv1connect.ScheduleServiceName, penstockv1connect.EffectServiceName,
	} {
		if !slices.Contains(names, protoreflect.FullName(name)) {
			t.Errorf("%s is not in %v", name, names)
		}
		files, err := stream.FileContainingSymbol(protoreflect.FullName(name))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: %v %v", name, files, err)
		}
	}
}

func TestOpenAPI(t *testing.T) {
	s := serve(t, &fakeService{}, Options{})
	r := s.do("GET", "/openapi.json", "")
	if r.status != 200 || r.body != penstockv1.OpenAPI() {
		t.Fatalf("%d", r.status)
	}
	if again := s.do("GET", "/openapi.json", "", "If-None-Match: "+r.header.Get("ETag")); again.status != http.StatusNotModified {
		t.Errorf("%d", again.status)
	}
	var doc struct {
		Paths      map[string]map[string]any `json:"paths"`
		Components struct {
			Schemas         map[string]schema `json:"schemas"`
			SecuritySchemes map[string]any    `json:"securitySchemes"`
		} `json:"components"`
		Security []map[string]any `json:"security"`
	}
	if err := json.Unmarshal([]byte(r.body), &doc); err != nil {
		t.Fatal(err)
	}
	services, err := fakeServices(&fakeService{}).connect()
	if err != nil {
		t.Fatal(err)
	}
	routes, err := routesOf(services)
	rpcs, all := 0, 0
	for _, s := range services {
		rpcs += s.methods.Len()
	}
	for _, templates := range routes {
		all += len(templates)
	}
	if err != nil || all != rpcs-1 { // WatchEvents is server-sent events instead
		t.Fatalf("%d routes of %d RPCs: %v, %v", all, rpcs, routes, err)
	}
	routes.insert(http.MethodGet, watchPath, nil)
	for method, templates := range routes {
		for _, template := range templates {
			if path := strings.Join(template.parts, "/"); doc.Paths[path][strings.ToLower(method)] == nil {
				t.Errorf("no %s %s", method, path)
			}
		}
	}
	for _, file := range []protoreflect.FileDescriptor{penstockv1.File_penstock_v1_tasks_proto, penstockv1.File_penstock_v1_deadletters_proto, penstockv1.File_penstock_v1_workers_proto} {
		checkSchemas(t, file.Messages(), doc.Components.Schemas)
	}
	if doc.Components.SecuritySchemes["bearer"] == nil || len(doc.Security) != 2 {
		t.Errorf("no bearer scheme, or it is not optional: %v %v", doc.Components.SecuritySchemes, doc.Security)
	}
}

// schema is the part of a schema that is compared.
type schema struct {
	Properties map[string]map[string]any `json:"properties"`
}

// checkSchemas compares messages with their schemas.
func checkSchemas(t *testing.T, messages protoreflect.MessageDescriptors, schemas map[string]schema) {
	t.Helper()
	for i := range messages.Len() {
		md := messages.Get(i)
		schema, ok := schemas[string(md.FullName())]
		if !ok {
			continue // a request that is all parameters, or the stream's messages
		}
		for j := range md.Fields().Len() {
			fd := md.Fields().Get(j)
			property, ok := schema.Properties[fd.TextName()]
			if !ok && isRequest(md) && strings.HasSuffix(fd.TextName(), "_id") {
				continue // it is in the path
			}
			delete(schema.Properties, fd.TextName())
			checkProperty(t, fd, property)
		}
		for name := range schema.Properties {
			t.Errorf("%s has no %s", md.FullName(), name)
		}
	}
}

func isRequest(md protoreflect.MessageDescriptor) bool {
	return strings.HasSuffix(string(md.Name()), "Request")
}

// checkProperty compares a property with its field.
func checkProperty(t *testing.T, fd protoreflect.FieldDescriptor, property map[string]any) {
	t.Helper()
	kinds, _ := property["type"].([]any)
	switch _, anyOf := property["anyOf"]; {
	case property == nil:
		t.Errorf("%s is missing", fd.FullName())
	case isRaw(fd) && property["type"] != nil:
		t.Errorf("%s is not any value: %v", fd.FullName(), property)
	case is64(fd.Kind()) && !fd.IsList() && property["type"] != "integer":
		t.Errorf("%s is not an integer: %v", fd.FullName(), property)
	case fd.Message() != nil && !fd.IsList() && len(kinds) != 2 && !anyOf:
		t.Errorf("%s is not nullable: %v", fd.FullName(), property)
	case fd.Message() != nil && isWide(fd.Message()) && kinds[0] != "integer":
		t.Errorf("%s is not an integer: %v", fd.FullName(), property)
	}
}
