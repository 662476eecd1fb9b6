package handlers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-dev/penstock/internal/once"
	"github.com/penstock-dev/penstock/task"
)

const (
	// maxErrorBody is how many bytes of a response body an error text quotes.
	maxErrorBody = 512
	// readErrorBody is how many bytes of a failed response are read beyond the
	// length of the payload, so that what an error text must not quote is
	// recognized even where it is cut off.
	readErrorBody = 64 << 10
	// errorBodyTime is how long the body of a failed response is waited for:
	// the status alone decides.
	errorBodyTime = 5 * time.Second
	// maxRetryAfter is the longest Retry-After that is followed.
	maxRetryAfter = 24 * time.Hour
)

// httpHandler POSTs payloads to one URL. Each handler has connections of its
// own, so the destination that they were checked for is always the same.
type httpHandler struct {
	url       string
	host      string      // for texts: as in the URL, without user and path
	literal   netip.Addr  // the URL's host if that is an address
	header    http.Header // canonical keys, without those of a task
	rules     allowList
	dialer    *net.Dialer
	client    *http.Client
	maxOutput int
	bodyTime  time.Duration // errorBodyTime
	effects   bool          // the ledger keeps the calls, where there is one
	runAgain  bool          // a call in doubt is made again
	// key writes an idempotency key as a header's value.
	key func(string) string
	log *slog.Logger
}

// newHTTP validates the declaration of an http handler. The handler is of no
// use if d has errors afterwards.
func newHTTP(d *declaration, rules allowList, log *slog.Logger) *httpHandler {
	h := &httpHandler{rules: rules, header: d.headers(), maxOutput: d.maxOutput(), bodyTime: errorBodyTime, log: log}
	if err := h.setURL(d.URL); err != nil {
		d.fail("url", "%w", err)
	}
	h.ledger(d)
	switch d.KeyForm {
	case "", "plain":
		h.key = plainKey
	case "structured":
		h.key = structuredString
	default:
		d.fail("key_form", "%q is not plain or structured", d.KeyForm)
	}
	h.dialer = &net.Dialer{ControlContext: h.control}
	h.client = &http.Client{
		// The context is the only time limit: it ends at the task's own
		// start-to-close timeout.
		Transport: &http.Transport{
			Proxy:                  nil, // a proxy would resolve names itself
			DialContext:            h.dialer.DialContext,
			ForceAttemptHTTP2:      true,
			HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
			DisableCompression:     true, // the bound on the body is one on what is transferred
			MaxIdleConnsPerHost:    64,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 256 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return h
}

// setURL takes over a URL that is complete, names no user, and whose host is
// allowed. The error contains no more of the URL than its host.
func (h *httpHandler) setURL(s string) error {
	if s == "" {
		return errors.New("missing")
	}
	u, err := url.Parse(s)
	if err != nil {
		return errors.New("is not a URL")
	}
	port := map[string]string{"http": "80", "https": "443"}[u.Scheme]
	switch {
	case port == "":
		return errors.New("scheme is not http or https")
	case u.User != nil:
		return errors.New("contains a user; set an Authorization header instead")
	case u.Hostname() == "":
		return errors.New("has no host")
	}
	if u.Port() != "" {
		if port, err = parsePort(u.Port()); err != nil {
			return err
		}
	}
	name := hostName(u.Hostname())
	if addr, err := netip.ParseAddr(name); err == nil {
		h.literal = plain(addr)
	} else if err := checkName(name); err != nil {
		return err
	}
	h.url, h.host = u.String(), u.Host
	return h.rules.permits(name, port)
}

// blocked is the error of a connection that http.allow forbids.
type blocked struct{ text string }

func (e *blocked) Error() string { return e.text }

// control refuses a connection by its address, after name resolution and just
// before connect(2).
func (h *httpHandler) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &blocked{"destination has no IP address"}
	}
	if h.literal.IsValid() && plain(ap.Addr()) == h.literal {
		return nil // listed as this address, see allowList.permits
	}
	if why := h.rules.refusal(ap.Addr()); why != "" {
		return &blocked{fmt.Sprintf("address %s is refused: it is %s, not in a CIDR of http.allow, and http.allow_private is off",
			plain(ap.Addr()), why)}
	}
	return nil
}

// run POSTs the payload. The result is the body of a 2xx response, see
// resultOf. Errors:
//
//   - permanent: any other status but those below, redirects among them, which
//     are not followed; a forbidden destination; a body that can't be kept as a
//     result;
//   - retryable: 408, 409, 425, 429, 5xx and failures of the network; 429 and
//     503 after the time in Retry-After, at most 24 hours;
//   - the cause of ctx once that has ended.
//
// docs/handlers.md has the whole table. The request has an Idempotency-Key, so
// net/http sends it again by itself if a connection that was used before breaks
// before the first byte of a response; not where a ledger keeps the call.
//
// Where the worker has a ledger of side effects, the call is one; see once.
func (h *httpHandler) run(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
	if _, err := once.From(ctx); h.effects && err == nil {
		return h.once(ctx, r)
	}
	return h.post(ctx, r, nil)
}

// post makes the call. If c is not nil it is told how far the call came, and the
// call is never repeated unless it certainly did not arrive.
func (h *httpHandler) post(ctx context.Context, r *task.Raw, c *call) (json.RawMessage, error) {
	exchange, cancel := context.WithCancel(ctx)
	defer cancel()
	if c != nil {
		exchange = c.watch(exchange)
	}
	payload := payloadOf(r)
	req, err := http.NewRequestWithContext(exchange, http.MethodPost, h.url, bytes.NewReader(payload))
	if err != nil {
		return nil, task.Permanent(fmt.Errorf("POST to %s: request can't be made", h.host))
	}
	req.Header = h.header.Clone()
	setTaskHeaders(req.Header, &r.Info, h.key)
	if c != nil {
		c.hideKey(req.Header)
	}
	start := time.Now()
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, h.failed(ctx, "", err)
	}
	defer resp.Body.Close()
	if c != nil {
		c.status, c.retryAfter = resp.StatusCode, resp.Header.Get("Retry-After") != ""
	}
	h.log.LogAttrs(ctx, slog.LevelDebug, "http response", logAttrs(r), slog.String("host", h.host),
		slog.Int("status", resp.StatusCode), slog.Duration("after", time.Since(start)))
	if resp.StatusCode/100 != 2 {
		return nil, h.refused(ctx, cancel, resp, payload)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(h.maxOutput)+1))
	if err != nil {
		return nil, h.failed(ctx, statusText(resp.StatusCode)+", but the body broke off: ", err)
	}
	if len(body) > h.maxOutput {
		return nil, task.Permanent(fmt.Errorf("POST to %s: %s, but the response body is longer than max_output_bytes (%d) and can't be kept as the result",
			h.host, statusText(resp.StatusCode), h.maxOutput))
	}
	res, err := resultOf("response body", body)
	if err != nil {
		return nil, fmt.Errorf("POST to %s: %s, but the %w", h.host, statusText(resp.StatusCode), err)
	}
	return res, nil
}

// failed is the error of an exchange that broke off.
func (h *httpHandler) failed(ctx context.Context, what string, err error) error {
	if b, ok := errors.AsType[*blocked](err); ok {
		return task.Permanent(fmt.Errorf("POST to %s: %w", h.host, b))
	}
	if ctx.Err() != nil {
		return fmt.Errorf("POST to %s: %w", h.host, context.Cause(ctx))
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the URL
	}
	// Not wrapped: the text may quote a malformed response.
	return fmt.Errorf("POST to %s: %s%s", h.host, what, head(clean(err.Error()), maxErrorBody))
}

// refused is the error of a response that is not 2xx. It may cancel the
// exchange, whose context is a child of ctx.
func (h *httpHandler) refused(ctx context.Context, cancel context.CancelFunc, resp *http.Response, payload []byte) error {
	code := resp.StatusCode
	text := "POST to " + h.host + ": " + statusText(code)
	switch {
	case code/100 == 3:
		return task.Permanent(errors.New(text + ": redirects are not followed"))
	case code < 200: // the body of 101 is another protocol's, without an end
		return task.Permanent(errors.New(text + " is no answer to a POST"))
	}
	// What of the body could be read is enough for a text.
	late := time.AfterFunc(h.bodyTime, cancel)
	body, _ := io.ReadAll(io.LimitReader(resp.Body, readErrorBody+int64(len(payload))))
	late.Stop()
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", text, context.Cause(ctx))
	}
	if quote := head(clean(redact(string(body), h.secrets(payload))), maxErrorBody); quote != "" {
		text += ": " + quote
	}
	err := errors.New(text)
	if !retryableStatus(code) {
		return task.Permanent(err)
	}
	if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
		if d, ok := retryAfter(resp.Header, time.Now()); ok {
			return task.RetryAfter(d, err)
		}
	}
	return err
}

// retryableStatus reports whether the same request may have another answer
// later.
func retryableStatus(code int) bool {
	switch code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return code >= 500
}

// statusText returns a status with the standard's words for it, not those that
// the server sent: "404 Not Found".
func statusText(code int) string {
	return strings.TrimSpace(strconv.Itoa(code) + " " + http.StatusText(code))
}

// retryAfter parses Retry-After, seconds or an HTTP date, into a delay from 0 to
// maxRetryAfter. A date is compared with the response's own Date, if it has
// one, so that the clocks of the two machines need not agree.
func retryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v != "" && strings.Trim(v, "0123456789") == "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter, true // out of range
		}
		return time.Duration(n) * time.Second, true
	}
	t, err := http.ParseTime(v)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(t.Sub(now), 0), maxRetryAfter), true
}
