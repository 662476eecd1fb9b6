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

	"github.com/penstock-dev/penstock/task"
)

const (
	// maxErrorBody is how many bytes of a response body an error text quotes.
	maxErrorBody = 512
	// readErrorBody is how many bytes of a failed response are read beyond the
	// length of the payload, so that what an error text must not quote is
	// recognized even where it is cut off.
	readErrorBody = 64 << 10
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
	log       *slog.Logger
}

// newHTTP validates the declaration of an http handler. The handler is of no
// use if d has errors afterwards.
func newHTTP(d *declaration, rules allowList, log *slog.Logger) *httpHandler {
	h := &httpHandler{rules: rules, header: d.headers(), maxOutput: d.maxOutput(), log: log}
	if err := h.setURL(d.URL); err != nil {
		d.fail("url", "%w", err)
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

// run POSTs the payload. The result is the response body, see resultOf. Errors:
//
//   - permanent: status 3xx (redirects are not followed), 4xx but for those
//     below, a forbidden destination, a body that can't be kept as a result;
//   - retryable: 408, 409, 425, 429, 5xx and failures of the network; 429 and
//     503 after the time in Retry-After, at most 24 hours;
//   - the cause of ctx once that has ended.
//
// The request has an Idempotency-Key, so net/http sends it again by itself if
// a connection that was used before breaks before the first byte of a response.
func (h *httpHandler) run(ctx context.Context, r *task.Raw) (json.RawMessage, error) {
	payload := payloadOf(r)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(payload))
	if err != nil {
		return nil, task.Permanent(fmt.Errorf("POST to %s: request can't be made", h.host))
	}
	req.Header = h.header.Clone()
	setTaskHeaders(req.Header, &r.Info)
	start := time.Now()
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, h.failed(ctx, "", err)
	}
	defer resp.Body.Close()
	h.log.LogAttrs(ctx, slog.LevelDebug, "http response", logAttrs(r), slog.String("host", h.host),
		slog.Int("status", resp.StatusCode), slog.Duration("after", time.Since(start)))
	if resp.StatusCode/100 != 2 {
		return nil, h.refused(ctx, resp, payload)
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

// refused is the error of a response that is not 2xx.
func (h *httpHandler) refused(ctx context.Context, resp *http.Response, payload []byte) error {
	code := resp.StatusCode
	text := "POST to " + h.host + ": " + statusText(code)
	if code/100 == 3 {
		return task.Permanent(errors.New(text + ": redirects are not followed"))
	}
	// What of the body could be read is enough for a text.
	body, _ := io.ReadAll(io.LimitReader(resp.Body, readErrorBody+int64(len(payload))))
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", text, context.Cause(ctx))
	}
	if quote := head(clean(redact(string(body), h.secrets(payload))), maxErrorBody); quote != "" {
		text += ": " + quote
	}
	err := errors.New(text)
	switch {
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		if d, ok := retryAfter(resp.Header.Get("Retry-After"), time.Now()); ok {
			return task.RetryAfter(d, err)
		}
		return err
	case code == http.StatusRequestTimeout, code == http.StatusConflict, code == http.StatusTooEarly:
		return err
	case code >= 500:
		return err
	}
	return task.Permanent(err)
}

// statusText returns a status with the standard's words for it, not those that
// the server sent: "404 Not Found".
func statusText(code int) string {
	return strings.TrimSpace(strconv.Itoa(code) + " " + http.StatusText(code))
}

// retryAfter parses a Retry-After header, seconds or an HTTP date, into a delay
// from 0 to maxRetryAfter.
func retryAfter(v string, now time.Time) (time.Duration, bool) {
	v = strings.TrimSpace(v)
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
	return min(max(t.Sub(now), 0), maxRetryAfter), true
}
