package rpc

import (
	"net/http"
	"strings"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// IdempotencyKeyHeader is the header (or gRPC metadata key) that may carry an
// Enqueue call's idempotency_key.
const IdempotencyKeyHeader = "Idempotency-Key"

// IdempotencyKeyFromHeader returns the key in the Idempotency-Key header, "" if
// there is none. The value is a structured-field string ("order-1001", with the
// quotes; \" and \\ are the only escapes) or the bare key in visible ASCII
// without any of " \ , ;. Anything else, an empty value, and more than one
// value is an error with code TASK_INPUT_INVALID. The length of the key is for
// the service to check.
func IdempotencyKeyFromHeader(h http.Header) (string, error) {
	values := h.Values(IdempotencyKeyHeader)
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", badKey("the header %s is given %d times", IdempotencyKeyHeader, len(values))
	}
	value := strings.Trim(values[0], " \t")
	if value == "" {
		return "", badKey("the header %s is empty", IdempotencyKeyHeader)
	}
	if value[0] != '"' {
		for i := range len(value) {
			if c := value[i]; c <= ' ' || c > '~' || strings.IndexByte(`"\,;`, c) >= 0 {
				return "", badKey("the header %s holds %q; put the key in quotes", IdempotencyKeyHeader, c)
			}
		}
		return value, nil
	}
	return unquoteKey(value)
}

// unquoteKey decodes a structured-field string (RFC 9651, section 4.2.5) that
// has nothing after it.
func unquoteKey(value string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"':
			if i != len(value)-1 {
				return "", badKey("the header %s goes on after the closing quote", IdempotencyKeyHeader)
			}
			if key.Len() == 0 {
				return "", badKey("the header %s is empty", IdempotencyKeyHeader)
			}
			return key.String(), nil
		case c == '\\':
			i++
			if i >= len(value) || value[i] != '"' && value[i] != '\\' {
				return "", badKey("the header %s holds a bad escape", IdempotencyKeyHeader)
			}
			key.WriteByte(value[i])
		case c < ' ' || c > '~':
			return "", badKey("the header %s holds %q, which is not visible ASCII", IdempotencyKeyHeader, c)
		default:
			key.WriteByte(c)
		}
	}
	return "", badKey("the header %s has no closing quote", IdempotencyKeyHeader)
}

// badKey makes an error about the key.
func badKey(format string, args ...any) error {
	return protocol.Errorf(protocol.CodeInputInvalid, "idempotency_key", format, args...)
}

// applyIdempotencyKey fills the key of a request from its headers. It is an
// error if both give a key and they differ.
func applyIdempotencyKey(h http.Header, req *penstockv1.EnqueueRequest) error {
	key, err := IdempotencyKeyFromHeader(h)
	if err != nil || key == "" {
		return err
	}
	switch req.GetIdempotencyKey() {
	case "":
		req.IdempotencyKey = key
	case key:
	default:
		return badKey("the request says %q but the header %s says %q",
			req.GetIdempotencyKey(), IdempotencyKeyHeader, key)
	}
	return nil
}
