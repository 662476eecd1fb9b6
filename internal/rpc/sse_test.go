package rpc

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// watch opens an event stream.
func (s *testServer) watch(ctx context.Context, query string, headers ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+watchPath+query, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// block reads up to the next blank line.
func block(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	var b strings.Builder
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%v after %q", err, b.String())
		}
		if line == "\n" {
			return b.String()
		}
		b.WriteString(line)
	}
}

func TestEventStream(t *testing.T) {
	next := make(chan *penstockv1.WatchEventsResponse)
	requests := make(chan *penstockv1.WatchEventsRequest, 1)
	ended := make(chan struct{})
	svc := &fakeService{watch: func(ctx context.Context, r *penstockv1.WatchEventsRequest, send func(*penstockv1.WatchEventsResponse) error) error {
		defer close(ended)
		requests <- r
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case m, ok := <-next:
				if !ok {
					return Unavailable(errors.New("stopping"))
				}
				if err := send(m); err != nil {
					return err
				}
			}
		}
	}}
	s := serve(t, svc, Options{})
	resp := s.watch(t.Context(), "?position=p0&task_id=t%2F1&tenant=a&types=task.failed&types=task.created", "Accept-Encoding: gzip", "Last-Event-ID: old")
	r := <-requests
	if r.GetPosition() != "old" || r.GetTaskId() != "t/1" || r.GetTenant() != "a" || len(r.GetTypes()) != 2 {
		t.Errorf("%v", r)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	body := bufio.NewReader(resp.Body)
	if got := block(t, body); got != ": keep-alive\n" {
		t.Errorf("%q", got)
	}
	next <- &penstockv1.WatchEventsResponse{Position: "p1"}
	if got := block(t, body); got != ": position\nid: p1\n" {
		t.Errorf("%q", got)
	}
	next <- &penstockv1.WatchEventsResponse{Position: "p2", Events: []*penstockv1.Event{
		{Type: "task.created", Seq: 1},
		{Type: "task.failed", Data: []byte("{\r\n\"b\": 1}"), Delivery: 7},
	}}
	if got := block(t, body); !strings.HasPrefix(got, "event: task.created\ndata: {\"event_id\"") {
		t.Errorf("%q", got)
	}
	got := block(t, body)
	if !strings.HasPrefix(got, "id: p2\nevent: task.failed\ndata: {") || !strings.Contains(got, "\"data\":{\ndata: \"b\": 1}") || !strings.Contains(got, `"delivery":7`) {
		t.Errorf("%q", got)
	}
	close(next)
	if got := block(t, body); !strings.HasPrefix(got, "event: stream.error\ndata: {") || !strings.Contains(got, `"status":503`) || strings.Contains(got, "stopping") {
		t.Errorf("%q", got)
	}
	<-ended
}

func TestEventStreamKeepAliveAndHangUp(t *testing.T) {
	ended := make(chan error, 1)
	requests := make(chan *penstockv1.WatchEventsRequest, 1)
	svc := &fakeService{watch: func(ctx context.Context, r *penstockv1.WatchEventsRequest, _ func(*penstockv1.WatchEventsResponse) error) error {
		requests <- r
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}}
	s := serve(t, svc, Options{WatchKeepAlive: time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	resp := s.watch(ctx, "", "Last-Event-ID: p7")
	if r := <-requests; r.GetPosition() != "p7" {
		t.Errorf("%v", r)
	}
	body := bufio.NewReader(resp.Body)
	for range 3 {
		if got := block(t, body); got != ": keep-alive\n" {
			t.Errorf("%q", got)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestEventStreamRefusals(t *testing.T) {
	var fail error
	svc := &fakeService{watch: func(context.Context, *penstockv1.WatchEventsRequest, func(*penstockv1.WatchEventsResponse) error) error {
		return fail
	}}
	s := serve(t, svc, Options{})
	for _, tc := range []struct {
		query         string
		err           error
		status        int
		code, field   string
		logs, without string
	}{
		{"?nope=1", nil, 400, "TASK_INPUT_INVALID", "nope", "", ""},
		{"?tenant=a&tenant=b", nil, 400, "TASK_INPUT_INVALID", "tenant", "", ""},
		{"", protocol.Errorf(protocol.CodeInputInvalid, "position", "unknown"), 400, "TASK_INPUT_INVALID", "position", "", ""},
		{"", errors.New("secret"), 500, "", "", "WatchEvents", "secret"},
	} {
		fail = tc.err
		r := s.do("GET", watchPath+tc.query, "")
		p := r.problem(t)
		if p.Status != tc.status || p.Code != tc.code || p.Field != tc.field || tc.without != "" && strings.Contains(r.body, tc.without) {
			t.Errorf("%s: %s", tc.query, r.body)
		}
		if !strings.Contains(s.logs.String(), tc.logs) {
			t.Errorf("logs: %s", s.logs)
		}
	}
	fail = nil
	if r := s.do("GET", watchPath, ""); r.status != 200 || r.body != ": end\n\n" {
		t.Errorf("%d %q", r.status, r.body)
	}
}
