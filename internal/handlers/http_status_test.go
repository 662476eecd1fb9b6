package handlers

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/task"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	const date = "Sun, 01 Mar 2026 12:01:00 GMT" // the server's clock, a minute ahead
	for _, tt := range []struct {
		v, date string
		want    time.Duration // -1: none
	}{
		{"120", "", 2 * time.Minute}, {" 1 ", date, time.Second}, {"0", date, 0}, {"86401", "", 24 * time.Hour},
		{"Sun, 01 Mar 2026 12:01:30 GMT", "", 90 * time.Second}, {"Sun, 01 Mar 2026 12:01:30 GMT", date, 30 * time.Second},
		{"Sun, 01 Mar 2026 12:01:30 GMT", "today", 90 * time.Second},
		{"Sunday, 01-Mar-26 12:00:05 GMT", "", 5 * time.Second}, {"Sunday, 01-Mar-26 12:00:05 GMT", date, 0},
		{"Sun Mar  1 12:00:07 2026", "", 7 * time.Second},
		{"Sun, 01 Mar 2026 11:00:00 GMT", "", 0}, {"Wed, 01 Apr 2026 11:00:00 GMT", "", 24 * time.Hour},
		{"", date, -1}, {"-1", "", -1}, {"1.5", "", -1}, {"soon", "", -1},
	} {
		d, ok := retryAfter(http.Header{"Retry-After": {tt.v}, "Date": {tt.date}}, now)
		if ok != (tt.want >= 0) || ok && d != tt.want {
			t.Errorf("Retry-After %q at %q = %v, %v; want %v", tt.v, tt.date, d, ok, tt.want)
		}
	}
	if _, ok := retryAfter(http.Header{}, now); ok {
		t.Error("a delay without the header")
	}
}

// TestHTTPStatusDecides: a body that does not come changes nothing.
func TestHTTPStatusDecides(t *testing.T) {
	for response, want := range map[string]string{
		"HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\ngone":                                                    "404 Not Found: gone",
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n":                       "101 Switching Protocols is no answer to a POST",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n": "410 Gone",
	} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, response)
			_, _ = conn.Read(make([]byte, 1)) // until the client leaves
		})
		h := newHandler(t, s.URL)
		h.bodyTime = 20 * time.Millisecond
		_, err := h.run(t.Context(), raw(`{}`))
		wantText(t, err, want)
		if !task.IsPermanent(err) {
			t.Errorf("%v is not permanent", err)
		}
	}
}
