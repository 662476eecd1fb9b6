package rpc

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// unread is a body that must not be touched.
type unread struct{ reads int }

func (u *unread) Read([]byte) (int, error) { u.reads++; return 0, io.EOF }
func (u *unread) Close() error             { return nil }

// Who may not call is refused by headers alone: every RPC, protocol and codec.
func TestNothingIsReadFromWhoMayNotCall(t *testing.T) {
	t.Parallel()
	h, err := NewHandler(fakeServices(&fakeService{}), Options{
		Gate: func(context.Context, connect.Spec, connect.Peer, http.Header) (context.Context, error) {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("who are you"))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	services, err := fakeServices(&fakeService{}).connect()
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	refused := func(method, path, contentType string) {
		t.Helper()
		calls++
		body := &unread{}
		r := httptest.NewRequest(method, path, body)
		r.ProtoMajor, r.ProtoMinor = 2, 0
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Content-Encoding", "gzip")
		r.Header.Set("Grpc-Encoding", "gzip")
		r.Header.Set("Te", "trailers")
		if method == http.MethodGet {
			r.Body, r.ContentLength = http.NoBody, 0
			r.Header.Del("Content-Type")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		all := fmt.Sprint(w.Body.String(), w.Header(), w.Result().Trailer)
		if body.reads > 0 || !strings.Contains(all, "who are you") {
			t.Errorf("%s %s (%s): %d reads, %d %s", method, path, contentType, body.reads, w.Code, all)
		}
	}
	for _, s := range services {
		for _, procedure := range s.procedures() {
			types := []string{"application/grpc", "application/grpc+json", "application/grpc-web", "application/grpc-web+json"}
			if strings.HasSuffix(procedure, "/WatchEvents") {
				types = append(types, "application/connect+proto", "application/connect+json")
			} else {
				types = append(types, "application/proto", "application/json")
			}
			for _, contentType := range types {
				refused(http.MethodPost, procedure, contentType)
			}
		}
	}
	routes, err := routesOf(services)
	if err != nil {
		t.Fatal(err)
	}
	for method, all := range routes {
		for _, r := range all {
			refused(method, strings.NewReplacer("{", "", "}", "").Replace(strings.Join(r.parts, "/")), "application/json")
		}
	}
	refused(http.MethodGet, watchPath, "")
	if calls < 200 {
		t.Errorf("only %d calls", calls)
	}
}

// allocated is what f allocates, in bytes. Tests that use it are not parallel.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// What a request builds is bounded by its limit, whichever of its fields is
// repeated.
func TestDecodingIsBoundedByTheLimit(t *testing.T) {
	const limit = 512 << 10 // budgets are those of 1 MiB at least
	l := limits{batch: limit, message: limit}
	services, err := fakeServices(&fakeService{}).connect()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, s := range services {
		for i := range s.methods.Len() {
			md := s.methods.Get(i).Input()
			for _, hostile := range hostileTexts(md, limit) {
				tried++
				m := newMessage(t, md)
				n := allocated(func() {
					if strings.HasPrefix(hostile.name, "json") {
						_ = jsonCodec{name: codecJSON, limits: l}.Unmarshal(hostile.text, m)
					} else {
						_ = protoCodec{l}.Unmarshal(hostile.text, m)
					}
				})
				// The text itself may be copied, and a list grows by doubling.
				if most := (2*buildFactor+4)*limit + buildFactor<<20; n > most {
					t.Errorf("%s %s: %d bytes of text took %d bytes, want at most %d", md.Name(), hostile.name, len(hostile.text), n, most)
				}
			}
		}
	}
	if tried < 100 {
		t.Errorf("only %d texts", tried)
	}
}

// A payload stays text: as many values as it has bytes are no more to build.
func TestPayloadsOfManyValuesAreTaken(t *testing.T) {
	t.Parallel()
	l := limits{batch: DefaultMaxBatchBytes, message: DefaultMaxMessageBytes}
	for _, part := range []string{`{},`, `{"a":1},`, `1,`, `[[]],`} {
		payload := "[" + strings.TrimSuffix(strings.Repeat(part, (3<<20)/len(part)), ",") + "]"
		m := &penstockv1.EnqueueRequest{}
		err := jsonCodec{name: codecJSON, limits: l}.Unmarshal([]byte(`{"type":"t","payload":`+payload+`}`), m)
		if err := errors.Join(err, markedInvalid(m)); err != nil || string(m.GetPayload()) != payload {
			t.Errorf("%d bytes of %s: %v", len(payload), part, err)
		}
	}
}

type hostileText struct {
	name string
	text []byte
}

// hostileTexts fill limit with the smallest elements, for each field that may be
// repeated, and with what protojson passes over.
func hostileTexts(md protoreflect.MessageDescriptor, limit int) (all []hostileText) {
	fill := func(part string, open, end string) []byte {
		return []byte(open + strings.TrimSuffix(strings.Repeat(part, (limit-64)/len(part)), ",") + end)
	}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		name := string(fd.Name())
		if fd.Kind() == protoreflect.MessageKind || fd.IsList() {
			tag := protowire.AppendTag(nil, fd.Number(), protowire.BytesType)
			all = append(all, hostileText{"proto " + name, bytes.Repeat(append(tag, 0), limit/(len(tag)+1))})
		}
		quoted := `{"` + name + `":`
		parts := []string{`0,`}
		if fd.Kind() == protoreflect.MessageKind || fd.IsList() {
			parts = []string{`{},`, `"",`, `0,`, `null,`, `[[]],`}
		}
		for _, part := range parts {
			all = append(all, hostileText{"json " + name + " " + part, fill(part, quoted+"[", "]}")})
		}
		all = append(all, hostileText{"json " + name + " nested", fill(`[`, quoted, "")}, hostileText{"json " + name + " objects", fill(`{"a":`, quoted, "")})
	}
	return all
}

func newMessage(t *testing.T, md protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(md.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return mt.New().Interface()
}

func zipped(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A REST call's limit is that of what is unpacked, on every path.
func TestRESTLimitIsOfWhatIsUnpacked(t *testing.T) {
	const limit = 1 << 20
	s := serve(t, &fakeService{}, Options{MaxMessageBytes: limit, MaxBatchBytes: limit})
	bomb := zipped(t, append([]byte(`{"reason":"`), bytes.Repeat([]byte("a"), 200*limit)...))
	services, err := fakeServices(&fakeService{}).connect()
	if err != nil {
		t.Fatal(err)
	}
	routes, err := routesOf(services)
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut} {
		for _, r := range routes[method] {
			path := strings.NewReplacer("{", "", "}", "").Replace(strings.Join(r.parts, "/"))
			var got reply
			n := allocated(func() { got = s.do(method, path, bomb, "Content-Encoding: gzip") })
			if got.status != http.StatusRequestEntityTooLarge || n > 20*limit {
				t.Errorf("%s %s: %d after %d bytes: %s", method, path, got.status, n, got.body)
			}
		}
	}
	small := zipped(t, []byte(menBody))
	ok := serve(t, &fakeService{enqueue: echo}, Options{})
	if r := ok.do("POST", "/api/v1/tasks", small, "Content-Encoding: gzip"); r.status != http.StatusOK {
		t.Errorf("a packed request: %d %s", r.status, r.body)
	}
	if r := ok.do("POST", "/api/v1/tasks", menBody, "Content-Encoding: br"); r.status != http.StatusUnsupportedMediaType {
		t.Errorf("another encoding: %d %s", r.status, r.body)
	}
	if r := ok.do("POST", "/api/v1/tasks", menBody, "Content-Encoding: gzip"); r.status != http.StatusBadRequest {
		t.Errorf("no gzip: %d %s", r.status, r.body)
	}
}

// Pages of other sites get nowhere where no token is needed.
func TestBrowsersOfStrangers(t *testing.T) {
	t.Parallel()
	ambient := true
	s := serve(t, &fakeService{enqueue: echo, list: func(context.Context, *penstockv1.ListTasksRequest) (*penstockv1.ListTasksResponse, error) {
		return &penstockv1.ListTasksResponse{}, nil
	}}, Options{Ambient: func() bool { return ambient }, AllowedHosts: []string{"Penstock.example.com", "*.svc.test"}})
	for _, tc := range []struct {
		method, path string
		status       int
		headers      []string
	}{
		{"POST", "/api/v1/tasks", 403, []string{"Origin: http://evil.example"}},
		{"POST", "/api/v1/tasks", 403, []string{"Sec-Fetch-Site: cross-site"}},
		{"POST", "/penstock.v1.TaskService/Enqueue", 403, []string{"Origin: http://evil.example"}},
		{"POST", "/penstock.v1.TaskService/Enqueue", 403, []string{"Sec-Fetch-Site: same-site"}},
		{"POST", "/api/v1/tasks", 421, []string{"Host: evil.example", "Origin: http://evil.example"}},
		{"POST", "/api/v1/tasks", 421, []string{"Host: evil.example"}},
		{"GET", "/api/v1/tasks", 421, []string{"Host: evil.example:8080"}},
		{"GET", "/api/v1/tasks", 421, []string{"Host: 127.0.0.1.evil.example"}},
		{"GET", "/api/v1/events/watch", 421, []string{"Host: evil.example"}},
		{"POST", "/penstock.v1.TaskService/Enqueue", 421, []string{"Host: evil.example"}},
		{"POST", "/api/v1/tasks", 415, []string{"Content-Type: "}},
		{"POST", "/api/v1/tasks", 415, []string{"Content-Type: text/plain"}},
		{"POST", "/api/v1/tasks", 415, []string{"Content-Type: application/x-www-form-urlencoded"}},
		{"POST", "/api/v1/tasks", 200, []string{"Sec-Fetch-Site: same-origin"}},
		{"POST", "/api/v1/tasks", 200, []string{"Host: penstock.example.com:8080"}},
		{"POST", "/api/v1/tasks", 200, []string{"Host: a.b.svc.test"}},
		{"POST", "/api/v1/tasks", 200, []string{"Host: orchestrator:8080"}},
		{"POST", "/api/v1/tasks", 200, []string{"Host: [::1]:8080"}},
		{"POST", "/api/v1/tasks", 200, []string{"Host: LOCALHOST"}},
		{"POST", "/api/v1/tasks", 200, []string{"Host: evil.example", "Authorization: Bearer x"}},
		{"GET", "/livez", 200, []string{"Host: anything.example"}},
	} {
		body := ""
		if tc.method == "POST" {
			body = menBody
		}
		if r := s.do(tc.method, tc.path, body, tc.headers...); r.status != tc.status {
			t.Errorf("%s %s %v: %d %s", tc.method, tc.path, tc.headers, r.status, r.body)
		}
	}
	ambient = false // every call needs a token: there is nothing to abuse
	if r := s.do("GET", "/api/v1/tasks", "", "Host: any.example"); r.status != http.StatusOK {
		t.Errorf("where each call needs a token: %d %s", r.status, r.body)
	}
}

// impatient serves h with a short grace, on a loopback port.
func impatient(t *testing.T, h http.Handler) string {
	t.Helper()
	s := NewServer(h, nil)
	s.Handler = insistOnProgress(h, 300*time.Millisecond)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { _ = s.Close() })
	return listener.Addr().String()
}

// A body that does not arrive, and a response that nobody reads, end; a slow line
// does not.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	read := make(chan error, 1)
	addr := impatient(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/body":
			n, err := io.Copy(io.Discard, r.Body)
			read <- err
			_, _ = fmt.Fprintln(w, n)
		case "/stream":
			part := bytes.Repeat([]byte("a"), 4<<10)
			for {
				if _, err := w.Write(part); err != nil {
					read <- err
					return
				}
				if err := http.NewResponseController(w).Flush(); err != nil {
					read <- err
					return
				}
			}
		}
	}))
	dial := func(t *testing.T) net.Conn {
		t.Helper()
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ended := func(t *testing.T) {
		t.Helper()
		select {
		case err := <-read:
			if err == nil {
				t.Error("no error")
			}
		case <-time.After(30 * time.Second):
			t.Fatal("it lived for 30 s")
		}
	}
	t.Run("body", func(t *testing.T) {
		c := dial(t)
		_, _ = fmt.Fprint(c, "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nabc")
		ended(t)
	})
	t.Run("body that nobody reads", func(t *testing.T) {
		c := dial(t)
		_, _ = fmt.Fprint(c, "POST /ignored HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nabc")
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.ReadAll(c); err != nil && !errors.Is(err, io.EOF) {
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				t.Fatal("it lived for 30 s")
			}
		}
	})
	t.Run("response", func(t *testing.T) {
		c := dial(t)
		_, _ = fmt.Fprint(c, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n")
		ended(t)
	})
	t.Run("response of HTTP/2", func(t *testing.T) {
		res, err := h2c(t).Get("http://" + addr + "/stream")
		if err != nil {
			t.Fatal(err)
		}
		ended(t) // its window is full
		_ = res.Body.Close()
	})
	t.Run("body of HTTP/2", func(t *testing.T) {
		client := h2c(t)
		r, w := io.Pipe()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/body", r)
		go func() {
			if res, err := client.Do(req); err == nil {
				_ = res.Body.Close()
			}
		}()
		_, _ = w.Write([]byte("abc"))
		ended(t)
		_ = w.Close()
	})
	t.Run("a slow line", func(t *testing.T) { // 64 KB/s for four times the grace
		c := dial(t)
		const parts, part = 12, 6 << 10
		_, _ = fmt.Fprintf(c, "POST /body HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", parts*part)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range parts {
			<-tick.C
			if _, err := c.Write(bytes.Repeat([]byte("a"), part)); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-read; err != nil {
			t.Fatal(err)
		}
		line, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || line.StatusCode != http.StatusOK {
			t.Fatal(line, err)
		}
	})
}

// h2c is a client of HTTP/2 without encryption.
func h2c(t *testing.T) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
