package api_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/penstock-dev/penstock/internal/api"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// listRequest is a request of an RPC that answers in pages.
type listRequest interface {
	proto.Message
	GetPageToken() string
}

// pagedCalls are all RPCs whose request has a page_token: path and request.
func pagedCalls(t *testing.T) map[string]func() listRequest {
	t.Helper()
	out := map[string]func() listRequest{}
	protoregistry.GlobalFiles.RangeFilesByPackage("penstock.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			for s, j := f.Services().Get(i), 0; j < s.Methods().Len(); j++ {
				m := s.Methods().Get(j)
				if m.Input().Fields().ByName("page_token") == nil {
					continue
				}
				typ, err := protoregistry.GlobalTypes.FindMessageByName(m.Input().FullName())
				if err != nil {
					t.Fatal(err)
				}
				out["/"+string(s.FullName())+"/"+string(m.Name())] = func() listRequest { return typ.New().Interface().(listRequest) }
			}
		}
		return true
	})
	if len(out) < 10 {
		t.Fatalf("only %d RPCs have pages", len(out))
	}
	return out
}

func set(m listRequest, field, value string) listRequest {
	r := m.ProtoReflect()
	r.Set(r.Descriptor().Fields().ByName(protoreflect.Name(field)), protoreflect.ValueOfString(value))
	return m
}

// TestPageTokens: every list refuses a token that it did not make, that another
// list made, and that it made for another filter; the size of a page may change.
func TestPageTokens(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	send := func(path string, m listRequest) reply {
		b, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return e.post(t, path, string(b))
	}
	refused := func(path, what string, r reply, words string) {
		t.Helper()
		var got struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status != http.StatusBadRequest || got.Code != connect.CodeInvalidArgument.String() ||
			!strings.Contains(got.Message, "page_token") || !strings.Contains(got.Message, words) || len(got.Message) > 500 {
			t.Errorf("%s: %s: %d %.300s", path, what, r.status, r.body)
		}
	}
	id, now := protocol.NameID("a", "b").String(), time.Now()
	for path, empty := range pagedCalls(t) {
		good := api.TokenFor(empty(), now, id, 1)
		for _, s := range append(forged(), good[:len(good)/2], good+"A", strings.Repeat("A", 1<<20), "é", strings.Repeat(good, 3000)) {
			refused(path, "forged", send(path, set(empty(), "page_token", s)), "none to start with the first page")
		}
		// With the right digest, but with what no page ended with.
		b, err := base64.RawURLEncoding.DecodeString(good)
		if err != nil {
			t.Fatal(err)
		}
		var c struct {
			F string `json:"f"`
		}
		if err := json.Unmarshal(b, &c); err != nil {
			t.Fatal(err)
		}
		for _, rest := range []string{`"n":-1`, `"n":1e9999`, `"at":"0000-01-01T00:00:00Z"`, `"at":"9999-12-31T23:59:59-23:00"`, `"at":"x"`, `"id":"x"`, `"k":["a\u0000"]`, `"k":["` + strings.Repeat("a", 600) + `"]`} {
			refused(path, rest, send(path, set(empty(), "page_token", token(`{"f":"`+c.F+`",`+rest+`}`))), "none to start with the first page")
		}
		for other, ofOther := range pagedCalls(t) {
			if other != path {
				refused(path, "token of "+other, send(path, set(empty(), "page_token", api.TokenFor(ofOther(), now, id, 1))), "other filters")
			}
		}
		fields := empty().ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			if f.Name() == "page_token" || f.Kind() != protoreflect.StringKind || f.IsList() {
				continue
			}
			refused(path, "another "+string(f.Name()), send(path, set(empty(), "page_token", api.TokenFor(set(empty(), string(f.Name()), "x"), now, id, 1))), "other filters")
		}
	}
}

// TestPageTokenKeepsItsFilter: the input, over REST.
func TestPageTokenKeepsItsFilter(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for range 3 {
		e.enqueue(t, &penstockv1.EnqueueRequest{Tenant: "a", ScheduleType: "delay", DelayMs: later})
	}
	first := e.get(t, "/api/v1/tasks?tenant=a&page_size=1&states=pending&states=queued")
	tok, _ := object(t, first.body)["next_page_token"].(string)
	if tok == "" {
		t.Fatalf("no token: %s", first.body)
	}
	for _, q := range []string{"tenant=b&states=pending&states=queued", "states=pending&states=queued", "tenant=a", "tenant=a&states=pending", "tenant=a&states=pending&states=queued&type=x"} {
		p := e.get(t, "/api/v1/tasks?page_token="+tok+"&"+q).refused(t, http.StatusBadRequest, protocol.CodeInputInvalid, "page_token")
		if !strings.Contains(p.Detail, "other filters") {
			t.Errorf("%s: %s", q, p.Detail)
		}
	}
	// Another size, and the same set of states in another order.
	next := e.get(t, "/api/v1/tasks?page_size=2&states=queued&states=pending&states=queued&tenant=a&page_token="+tok)
	if tasks, _ := object(t, next.body)["tasks"].([]any); next.status != http.StatusOK || len(tasks) != 2 {
		t.Errorf("the next page: %d %s", next.status, next.body)
	}
}
