package handlers

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/task"
)

// loopback lets handlers call test servers.
var loopback = config.HTTPClient{Allow: []string{"127.0.0.1"}, AllowPrivate: true}

// serve starts a server that is closed with the test.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// newHandler makes an http handler for a URL of this machine.
func newHandler(t *testing.T, url string) *httpHandler {
	t.Helper()
	rules, err := parseAllow(loopback)
	if err != nil {
		t.Fatal(err)
	}
	d := &declaration{typ: "a", Handler: config.Handler{Kind: "http", URL: url}}
	h := newHTTP(d, rules, slog.New(slog.DiscardHandler))
	if d.errs != nil {
		t.Fatal(d.errs)
	}
	return h
}

func TestHTTPRequest(t *testing.T) {
	type seen struct {
		method, uri, host, body string
		header                  http.Header
	}
	got := make(chan seen, 1)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		got <- seen{r.Method, r.RequestURI, r.Host, string(b), r.Header}
		_, _ = io.WriteString(w, `{"ok": true}`)
	})
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // not to be used
	th := mustNew(t, config.Handler{Kind: "http", URL: s.URL + "/hook?a=b",
		Headers: map[string]string{"authorization": "Bearer t0ken"}}, loopback)
	r := raw(`{"amount":1}`)
	r.TaskID, r.IdempotencyKey = "a b%é", `k "1" \`
	res, err := th(t.Context(), r)
	if err != nil || string(res) != `{"ok": true}` {
		t.Fatalf("result = %s, %v", res, err)
	}
	g := <-got
	if g.method != "POST" || g.uri != "/hook?a=b" || "http://"+g.host != s.URL || g.body != `{"amount":1}` {
		t.Errorf("request = %s %s to %s: %s", g.method, g.uri, g.host, g.body)
	}
	for key, want := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "penstock-worker", "Authorization": "Bearer t0ken",
		"Idempotency-Key": `k "1" \`, "Penstock-Task-Id": "a%20b%25%C3%A9",
		"Penstock-Attempt": "3", "Penstock-Delivery": "5",
		"Penstock-Trace-Id": "4bf92f3577b34da6a3ce929d0e0e4736",
	} {
		if v := g.header.Get(key); v != want {
			t.Errorf("%s = %q, want %q", key, v, want)
		}
	}
	if tp := g.header.Get("Traceparent"); !regexp.MustCompile(`^00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-01$`).MatchString(tp) {
		t.Errorf("Traceparent = %q", tp)
	}
}

func TestHTTPOutcomes(t *testing.T) {
	const permanent, retryable = true, false
	for name, tt := range map[string]struct {
		status     int
		retryAfter string
		body       string
		permanent  bool
		delay      time.Duration // -1: none asked for
		text       string
	}{
		"redirect":    {302, "", "", permanent, -1, "302 Found: redirects are not followed"},
		"307":         {307, "", "", permanent, -1, "redirects are not followed"},
		"304":         {304, "", "", permanent, -1, "304 Not Modified"},
		"400":         {400, "", "bad thing", permanent, -1, "400 Bad Request: bad thing"},
		"404":         {404, "7", "", permanent, -1, "404 Not Found"},
		"408":         {408, "", "", retryable, -1, "408"},
		"409":         {409, "7", "", retryable, -1, "409"},
		"425":         {425, "", "", retryable, -1, "425"},
		"429":         {429, "", "", retryable, -1, "429"},
		"429 seconds": {429, "7", "slow down", retryable, 7 * time.Second, "429 Too Many Requests: slow down"},
		"503 seconds": {503, "0", "", retryable, 0, "503"},
		"503 bad":     {503, "soon", "", retryable, -1, "503"},
		"503 huge":    {503, "99999999999999999999", "", retryable, 24 * time.Hour, "503"},
		"503 past":    {503, "Fri, 31 Dec 1999 23:59:59 GMT", "", retryable, 0, "503"},
		"500":         {500, "7", "boom", retryable, -1, "500 Internal Server Error: boom"},
		"599":         {599, "", "a\x1b\xff", retryable, -1, "599: a\uFFFD\uFFFD"},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				calls.Add(1)
				w.Header().Set("Location", "/elsewhere")
				if tt.retryAfter != "" {
					w.Header().Set("Retry-After", tt.retryAfter)
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			th := mustNew(t, config.Handler{Kind: "http", URL: s.URL}, loopback)
			_, err := th(t.Context(), raw(`{}`))
			wantText(t, err, tt.text)
			if task.IsPermanent(err) != tt.permanent {
				t.Errorf("permanent = %v: %v", !tt.permanent, err)
			}
			d, ok := task.RetryDelay(err)
			if ok != (tt.delay >= 0) || ok && d != tt.delay {
				t.Errorf("delay = %v, %v; want %v", d, ok, tt.delay)
			}
			if calls.Load() != 1 {
				t.Errorf("%d requests", calls.Load())
			}
		})
	}
}

func TestHTTPBodies(t *testing.T) {
	for name, tt := range map[string]struct {
		status     int
		body, want string
		fails      string
	}{
		"json":      {200, `[1, 2]`, `[1, 2]`, ""},
		"text":      {201, "done", `"done"`, ""},
		"empty":     {204, "", "null", ""},
		"at bound":  {200, `"` + strings.Repeat("a", 98) + `"`, `"` + strings.Repeat("a", 98) + `"`, ""},
		"too long":  {200, strings.Repeat("a", 101), "", "longer than max_output_bytes (100)"},
		"NUL":       {200, `{"a":"\u0000"}`, "", `\u0000`},
		"not UTF-8": {200, "\xff\xfe", "", "is not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			th := mustNew(t, config.Handler{Kind: "http", URL: s.URL, MaxOutputBytes: 100}, loopback)
			res, err := th(t.Context(), raw(`{}`))
			if tt.fails != "" {
				wantText(t, err, tt.fails)
				if !task.IsPermanent(err) {
					t.Errorf("%v is not permanent", err)
				}
				return
			}
			if err != nil || string(res) != tt.want {
				t.Errorf("result = %s, %v; want %s", res, err, tt.want)
			}
		})
	}
}

func TestHTTPErrorQuotesNoSecrets(t *testing.T) {
	payload := `{"card":"4111111111111111","pad":"` + strings.Repeat("p", 100_000) + `"}`
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.WriteHeader(400)
		_, _ = io.WriteString(w, "got "+r.Header.Get("Authorization")+" and "+string(b)+" "+strings.Repeat("é", 600))
	})
	th := mustNew(t, config.Handler{Kind: "http", URL: s.URL + "/?key=urlsecret",
		Headers: map[string]string{"Authorization": "Bearer t0ken-value"}}, loopback)
	_, err := th(t.Context(), raw(payload))
	wantText(t, err, "400 Bad Request: got [redacted] and [redacted] é")
	for _, secret := range []string{"t0ken", "4111", "ppp", "urlsecret"} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("error contains %s", secret)
		}
	}
	if _, quote, _ := strings.Cut(err.Error(), "Request: "); len(quote) > 512 || len(quote) < 510 {
		t.Errorf("%d bytes of the body are quoted", len(quote))
	}
}

func TestHTTPNetworkErrorIsRetryable(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	th := mustNew(t, config.Handler{Kind: "http", URL: s.URL + "/?key=urlsecret"}, loopback)
	_, err := th(t.Context(), raw(`{}`))
	wantText(t, err, "connection refused")
	if task.IsPermanent(err) || strings.Contains(err.Error(), "urlsecret") {
		t.Errorf("error = %v", err)
	}
}

func TestHTTPBodyBreaksOff(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "50")
		_, _ = io.WriteString(w, "{")
	})
	th := mustNew(t, config.Handler{Kind: "http", URL: s.URL}, loopback)
	_, err := th(t.Context(), raw(`{}`))
	wantText(t, err, "200 OK, but the body broke off: unexpected EOF")
	if task.IsPermanent(err) {
		t.Errorf("%v is permanent", err)
	}
}

func TestHTTPContextEnds(t *testing.T) {
	for _, early := range []bool{true, false} {
		arrived := make(chan struct{}, 1)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // so that the server notices the client leaving
			if !early {
				w.WriteHeader(200)
				_ = http.NewResponseController(w).Flush()
			}
			arrived <- struct{}{}
			<-r.Context().Done()
		})
		th := mustNew(t, config.Handler{Kind: "http", URL: s.URL}, loopback)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-arrived
			cancel(task.ErrShutdown)
		}()
		if _, err := th(ctx, raw(`{}`)); !errors.Is(err, task.ErrShutdown) {
			t.Errorf("error = %v, want the cause", err)
		}
	}
}

func TestHTTPReusesConnections(t *testing.T) {
	remotes := make(chan string, 2)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		remotes <- r.RemoteAddr
		_, _ = io.WriteString(w, "1")
	})
	th := mustNew(t, config.Handler{Kind: "http", URL: s.URL}, loopback)
	for range 2 {
		if _, err := th(t.Context(), raw(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := <-remotes, <-remotes; a != b {
		t.Errorf("two connections: %s, %s", a, b)
	}
}

func TestHTTPLiteralAddressIsAllowedByName(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {})
	for _, entry := range []string{"127.0.0.1", "127.0.0.0/8"} {
		th := mustNew(t, config.Handler{Kind: "http", URL: s.URL}, config.HTTPClient{Allow: []string{entry}})
		if res, err := th(t.Context(), raw(`{}`)); err != nil || string(res) != "null" {
			t.Errorf("allow %s: %s, %v", entry, res, err)
		}
	}
}

// TestHTTPRebinding resolves one allowed name to an address in an allowed CIDR
// and then to another one.
func TestHTTPRebinding(t *testing.T) {
	var calls atomic.Int32
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { calls.Add(1) })
	s.Config.SetKeepAlivesEnabled(false) // so that each call resolves anew
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	answer := [4]byte{127, 0, 0, 1}
	for _, tt := range []struct {
		allow   []string
		private bool
		ok      bool
	}{
		{[]string{"rebind.test"}, false, false},
		{[]string{"rebind.test", "127.0.0.2/32"}, false, false},
		{[]string{"rebind.test", "127.0.0.1/32"}, false, true},
		{[]string{"rebind.test"}, true, true},
	} {
		calls.Store(0)
		c := config.HTTPClient{Allow: tt.allow, AllowPrivate: tt.private}
		rules, err := parseAllow(c)
		if err != nil {
			t.Fatal(err)
		}
		d := &declaration{typ: "a", Handler: config.Handler{Kind: "http", URL: "http://rebind.test:" + port}}
		h := newHTTP(d, rules, slog.New(slog.DiscardHandler))
		if d.errs != nil {
			t.Fatal(d.errs)
		}
		h.dialer.Resolver = fakeDNS(answer)
		_, err = h.run(t.Context(), raw(`{}`))
		if tt.ok {
			if err != nil || calls.Load() != 1 {
				t.Errorf("allow %v, private %v: %v, %d calls", tt.allow, tt.private, err, calls.Load())
			}
			continue
		}
		wantText(t, err, "address 127.0.0.1 is refused: it is loopback", "http.allow_private")
		if !task.IsPermanent(err) || calls.Load() != 0 {
			t.Errorf("allow %v: %v, %d calls", tt.allow, err, calls.Load())
		}
	}
}

// fakeDNS is a resolver whose server answers every A question with addr.
func fakeDNS(addr [4]byte) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			rd := bufio.NewReader(server)
			for {
				var size [2]byte
				if _, err := io.ReadFull(rd, size[:]); err != nil {
					return
				}
				q := make([]byte, binary.BigEndian.Uint16(size[:]))
				if _, err := io.ReadFull(rd, q); err != nil {
					return
				}
				end := 12
				for q[end] != 0 {
					end += int(q[end]) + 1
				}
				end += 5                                                                          // root, type, class
				a := append([]byte{q[0], q[1], 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0}, q[12:end]...) // one question
				if q[end-3] == 1 {                                                                // A
					a[7] = 1
					a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, addr[0], addr[1], addr[2], addr[3])
				}
				if _, err := server.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...)); err != nil {
					return
				}
			}
		}()
		return client, nil
	}}
}

// TestIdempotencyKeyForm: a receiver finds the key that the caller gave.
func TestIdempotencyKeyForm(t *testing.T) {
	t.Parallel()
	for form, want := range map[string]string{"": "order-77-1", "plain": "order-77-1", "structured": `"order-77-1"`} {
		got := make(chan string, 1)
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Idempotency-Key") }))
		t.Cleanup(s.Close)
		r := raw("1")
		r.IdempotencyKey = "order-77-1"
		if _, err := mustNew(t, config.Handler{Kind: "http", URL: s.URL, KeyForm: form}, loopback)(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if key := <-got; key != want {
			t.Errorf("key_form %q: %s, want %s", form, key, want)
		}
	}
}

func TestHeaderForms(t *testing.T) {
	for s, want := range map[string]string{
		"": `""`, "abc 1": `"abc 1"`, `a"b\c`: `"a\"b\\c"`, "100%": `"100%"`,
		"café": `%"caf%c3%a9"`, "a\r\nX: \"1%\"": `%"a%0d%0aX: %221%25%22"`, "\xff": `%"%ff"`,
	} {
		if got := structuredString(s); got != want {
			t.Errorf("structuredString(%q) = %s, want %s", s, got, want)
		}
	}
	for s, want := range map[string]string{
		"order-77-1": "order-77-1", "a b": "a b", " a b ": "%20a b%20", `a"b\c`: `a"b\c`, "100%": "100%25", "café": "caf%C3%A9", "caf%C3%A9": "caf%25C3%25A9", "a\r\nX: 1": "a%0D%0AX: 1", "\xff": "%FF",
	} {
		if got := plainKey(s); got != want {
			t.Errorf("plainKey(%q) = %s, want %s", s, got, want)
		}
	}
	if got := escapeValue("a\r\nb"); got != "a%0D%0Ab" {
		t.Errorf("escapeValue = %s", got)
	}
	const tp = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	for _, id := range []string{tp, "01" + tp[2:] + "-later"} {
		if got := traceparent(id); got != id {
			t.Errorf("traceparent(%s) = %s", id, got)
		}
	}
	for _, id := range []string{
		"", "x", strings.Repeat("0", 32), strings.Repeat("g", 32), strings.Repeat("a", 31), "ff" + tp[2:], tp + "-x",
		strings.ToUpper(tp), tp[:35] + "-" + strings.Repeat("0", 16) + "-00", "01" + tp[2:] + "-\r\n", tp[:54],
	} {
		if got := traceparent(id); got != "" {
			t.Errorf("traceparent(%s) = %s", strconv.Quote(id), got)
		}
	}
	if got := traceparent(strings.Repeat("A", 32)); !validTraceparent(got) || !strings.Contains(got, strings.Repeat("a", 32)) {
		t.Errorf("traceparent = %s", got)
	}
}
