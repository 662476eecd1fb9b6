package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

const (
	// watchPath is WatchEvents as server-sent events.
	watchPath = "/api/v1/events/watch"
	// headerGrace is how long the response waits for a first message or error
	// before it begins. An error within it has an HTTP status of its own.
	headerGrace = 250 * time.Millisecond
	// endFlag marks the last frame of a Connect stream.
	endFlag = 0b10
	// frameHeader is the length of a frame's header.
	frameHeader = 5
)

// watchHandler serves WatchEvents as server-sent events. It calls the Connect
// handler in the same process, so that the interceptors and limits are those
// of every other call.
type watchHandler struct {
	rpc       http.Handler
	keepAlive time.Duration
}

// ServeHTTP implements http.Handler.
func (h *watchHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	msg, p := watchRequest(r)
	if p != nil {
		p.write(w)
		return
	}
	call, err := watchCall(r, msg)
	if err != nil {
		newProblem(http.StatusInternalServerError, textInternal, nil).write(w)
		return
	}
	stream := &eventStream{w: w, header: http.Header{}}
	ctx, cancel := context.WithCancel(r.Context())
	var keepAlive sync.WaitGroup
	keepAlive.Go(func() { stream.stayAlive(ctx, h.keepAlive) })
	defer func() {
		cancel()
		keepAlive.Wait()
	}()
	h.rpc.ServeHTTP(stream, call)
	stream.finish()
}

// watchRequest reads the query string. Last-Event-ID, which browsers send when
// they reconnect, goes before the position of the query: that one is where the
// first connection started.
func watchRequest(r *http.Request) (*penstockv1.WatchEventsRequest, *problem) {
	if p := refuse(r, 0); p != nil {
		return nil, p
	}
	msg := &penstockv1.WatchEventsRequest{}
	query, _ := url.ParseQuery(r.URL.RawQuery) // refuse has parsed it
	for name, values := range query {
		var target *string
		switch name {
		case "position":
			target = &msg.Position
		case "task_id":
			target = &msg.TaskId
		case "tenant":
			target = &msg.Tenant
		case "types":
			msg.Types = values
			continue
		default:
			return nil, badRequest(name, "there is no such query parameter")
		}
		if len(values) != 1 {
			return nil, badRequest(name, "the query parameter is given more than once")
		}
		*target = values[0]
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		msg.Position = strings.ToValidUTF8(last, "")
	}
	return msg, nil
}

// watchCall makes the Connect call for a request.
func watchCall(r *http.Request, msg proto.Message) (*http.Request, error) {
	body, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, frameHeader), msg)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(body[1:frameHeader], uint32(len(body)-frameHeader)) //nolint:gosec // within the limit of headers
	call := new(http.Request)
	*call = *r
	call.Method = http.MethodPost
	call.URL = &url.URL{Path: penstockv1connect.TaskServiceWatchEventsProcedure}
	call.Header = r.Header.Clone()
	for name := range call.Header {
		if strings.HasPrefix(name, "Connect-") || strings.HasPrefix(name, "Accept") {
			call.Header.Del(name) // in particular, no compression of frames
		}
	}
	call.Header.Del("Content-Encoding")
	call.Header.Set("Content-Type", "application/connect+"+codecProto)
	call.Header.Set("Connect-Protocol-Version", "1")
	call.Body = io.NopCloser(bytes.NewReader(body))
	call.ContentLength = int64(len(body))
	return call, nil
}

// eventStream is the response writer of the inner call. It takes the frames of
// a Connect stream and sends events.
type eventStream struct {
	w      http.ResponseWriter
	header http.Header // of the inner response, unused

	mu      sync.Mutex // guards what follows and writing to w
	pending []byte     // the beginning of a frame
	started bool
	status  int
	end     *problem // why the stream ended
}

// Header implements http.ResponseWriter.
func (s *eventStream) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *eventStream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// Flush implements http.Flusher; events are flushed as they are written.
func (s *eventStream) Flush() {}

// Write implements http.ResponseWriter.
func (s *eventStream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, p...)
	for len(s.pending) >= frameHeader {
		size := uint64(binary.BigEndian.Uint32(s.pending[1:frameHeader]))
		if uint64(len(s.pending)) < frameHeader+size {
			break
		}
		if err := s.frame(s.pending[0], s.pending[frameHeader:frameHeader+size]); err != nil {
			return 0, err
		}
		s.pending = append(s.pending[:0], s.pending[frameHeader+size:]...)
	}
	return len(p), nil
}

// frame handles one frame.
func (s *eventStream) frame(flags byte, data []byte) error {
	if flags&endFlag != 0 {
		s.end = endOf(data)
		return nil
	}
	var msg penstockv1.WatchEventsResponse
	if err := proto.Unmarshal(data, &msg); err != nil {
		return err
	}
	text, err := eventText(&msg)
	if err != nil {
		return err
	}
	return s.send(text)
}

// send writes text after the headers and flushes both.
func (s *eventStream) send(text []byte) error {
	if !s.started {
		s.started = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // proxies must not collect events
		s.w.WriteHeader(http.StatusOK)
	}
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return http.NewResponseController(s.w).Flush()
}

// stayAlive begins the response if nothing else does, and then sends a comment
// from time to time, until ctx ends.
func (s *eventStream) stayAlive(ctx context.Context, every time.Duration) {
	timer := time.NewTimer(headerGrace)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.mu.Lock()
		var err error
		if s.end == nil {
			err = s.send([]byte(": keep-alive\n\n"))
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
		timer.Reset(every)
	}
}

// finish reports how the inner call ended: as the response if nothing was sent
// so far, otherwise as a last event named stream.error.
func (s *eventStream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil && s.status >= http.StatusBadRequest {
		s.end = newProblem(http.StatusInternalServerError, textInternal, nil)
	}
	switch {
	case s.end != nil && !s.started:
		s.started = true
		s.end.write(s.w)
	case s.end != nil:
		_ = s.send(appendData([]byte("event: stream.error\n"), s.end.text()))
	case !s.started:
		_ = s.send([]byte(": end\n\n"))
	}
	if s.end == nil {
		s.end = &problem{} // keeps stayAlive from writing after the end
	}
}

// endOf reads the last frame. It returns nil if the call succeeded.
func endOf(data []byte) *problem {
	var end struct {
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(data, &end); err != nil {
		return newProblem(http.StatusInternalServerError, textInternal, nil)
	}
	if len(end.Error) == 0 {
		return nil
	}
	return wireProblem(end.Error)
}

// eventText returns the text of one message: an event each, the last of which
// carries the position as its id. The position is right only after all events
// of the message; one without an id leaves a browser's last event id as it is.
func eventText(msg *penstockv1.WatchEventsResponse) ([]byte, error) {
	position := oneLine(msg.GetPosition())
	events := msg.GetEvents()
	if len(events) == 0 {
		if position == "" {
			return []byte(": keep-alive\n\n"), nil
		}
		return []byte(": position\nid: " + position + "\n\n"), nil
	}
	var b []byte
	for i, event := range events {
		data, err := MarshalJSON(nil, event)
		if err != nil {
			return nil, err
		}
		if i == len(events)-1 && position != "" {
			b = append(b, "id: "+position+"\n"...)
		}
		if name := oneLine(event.GetType()); name != "" {
			b = append(b, "event: "+name+"\n"...)
		}
		b = appendData(b, data)
	}
	return b, nil
}

// appendData appends data lines and the blank line that ends an event. Line
// breaks can only be white space between JSON tokens, so it does not matter
// that receivers join lines with \n.
func appendData(b, data []byte) []byte {
	data = bytes.TrimRight(data, "\n")
	for line := range bytes.FieldsFuncSeq(data, func(r rune) bool { return r == '\n' || r == '\r' }) {
		b = append(b, "data: "...)
		b = append(b, line...)
		b = append(b, '\n')
	}
	return append(b, '\n')
}

// oneLine returns s if it can be the value of a field of the format, else "".
func oneLine(s string) string {
	if strings.ContainsAny(s, "\r\n\x00") {
		return ""
	}
	return s
}
