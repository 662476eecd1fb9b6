package handlers

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-dev/penstock/task"
)

// reserved are the headers that a declaration can't set, besides Penstock-*
// and Proxy-*: those of the task, and those that frame or route the request.
var reserved = map[string]bool{
	"Idempotency-Key": true, "Traceparent": true,
	"Host": true, "Content-Length": true, "Transfer-Encoding": true,
	"Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true,
	"Upgrade": true, "Expect": true, "Accept-Encoding": true, "Content-Encoding": true,
}

// headers validates the declared headers and returns them with the defaults.
// Errors name a header, never its value.
func (d *declaration) headers() http.Header {
	out := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"penstock-worker"}}
	seen := make(map[string]bool, len(d.Headers))
	for _, name := range slices.Sorted(maps.Keys(d.Headers)) {
		key, value := "headers."+name, d.Headers[name]
		if !validHeaderName(name) {
			d.fail("headers", "%q is not the name of a header", name)
			continue
		}
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case reserved[canonical], strings.HasPrefix(canonical, "Penstock-"), strings.HasPrefix(canonical, "Proxy-"):
			d.fail(key, "can't be set: the worker does")
		case seen[canonical]:
			d.fail(key, "is declared twice in different case")
		case !validHeaderValue(value):
			d.fail(key, "value contains a line break or another control character")
		}
		seen[canonical] = true
		out[canonical] = []string{value}
	}
	return out
}

// validHeaderName reports whether s is a token by RFC 9110.
func validHeaderName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') &&
			!strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// validHeaderValue reports whether s has no control characters but tabs.
func validHeaderValue(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// setTaskHeaders adds the headers that describe the execution; key writes the
// idempotency key.
func setTaskHeaders(h http.Header, i *task.Info, key func(string) string) {
	h.Set("Idempotency-Key", key(i.IdempotencyKey))
	h.Set("Penstock-Task-Id", escapeValue(i.TaskID))
	h.Set("Penstock-Attempt", strconv.Itoa(i.Attempt))
	h.Set("Penstock-Delivery", strconv.FormatInt(i.Delivery, 10))
	h.Set("Penstock-Trace-Id", escapeValue(i.TraceID))
	if tp := traceparent(i.TraceID); tp != "" {
		h.Set("Traceparent", tp)
	}
}

// plainKey returns s as it is, with what a header's value can't hold, and "%",
// percent-encoded. No two keys have the same form.
func plainKey(s string) string {
	var b strings.Builder
	for i, c := range []byte(s) {
		if c < ' ' || c > '~' || c == '%' || c == ' ' && (i == 0 || i == len(s)-1) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// structuredString returns s as a structured field value: a String by RFC 8941,
// "a\"b", or, if s has other than printable ASCII, which that can't express, a
// Display String by RFC 9651, %"caf%c3%a9". No two keys have the same form.
func structuredString(s string) string {
	var b strings.Builder
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0 {
		b.WriteByte('"')
		for _, c := range []byte(s) {
			if c == '"' || c == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
	} else {
		b.WriteString(`%"`)
		for _, c := range []byte(s) {
			if c < ' ' || c > '~' || c == '%' || c == '"' {
				fmt.Fprintf(&b, "%%%02x", c)
			} else {
				b.WriteByte(c)
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}

// escapeValue returns s as a header value: what is not visible ASCII, and "%",
// is percent-encoded.
func escapeValue(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// traceparent returns the W3C header for a trace id: id itself if it is such a
// header, or one with a new span if id is a trace id of 32 hex digits; else "".
func traceparent(id string) string {
	if validTraceparent(id) {
		return id
	}
	id = strings.ToLower(id)
	if !validHexID(id, 32) {
		return ""
	}
	var span [8]byte
	for span == ([8]byte{}) {
		_, _ = rand.Read(span[:]) // never fails
	}
	return "00-" + id + "-" + hex.EncodeToString(span[:]) + "-01"
}

// validTraceparent reports whether s is a traceparent by the W3C's Trace
// Context: version 00, or a later one, which may go on after a further dash.
func validTraceparent(s string) bool {
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || !validHeaderValue(s) {
		return false
	}
	version := s[:2]
	return isHex(version) && version != "ff" && validHexID(s[3:35], 32) && validHexID(s[36:52], 16) &&
		isHex(s[53:55]) && (len(s) == 55 || version != "00" && s[55] == '-')
}

// validHexID reports whether s is an id of n lower-case hex digits, not all 0.
func validHexID(s string, n int) bool {
	return len(s) == n && isHex(s) && strings.Trim(s, "0") != ""
}

// isHex reports whether s has only lower-case hex digits.
func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// minSecret is the shortest value, in bytes, that is looked for in a response:
// shorter ones occur in it by chance.
const minSecret = 6

// secrets returns what an error text must not quote though a server may send
// it back: the payload, and the declared header values with and without their
// scheme ("Bearer "). Longest first.
func (h *httpHandler) secrets(payload []byte) []string {
	out := []string{string(payload)}
	for key, values := range h.header {
		if key == "Content-Type" || key == "User-Agent" {
			continue
		}
		v := strings.TrimSpace(values[0])
		_, credentials, _ := strings.Cut(v, " ")
		out = append(out, v, strings.TrimSpace(credentials))
	}
	out = slices.DeleteFunc(out, func(s string) bool { return len(s) < minSecret })
	slices.SortFunc(out, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return out
}

// redact replaces the literal occurrences of secrets in s.
func redact(s string, secrets []string) string {
	for _, secret := range secrets {
		s = strings.ReplaceAll(s, secret, "[redacted]")
	}
	return s
}
