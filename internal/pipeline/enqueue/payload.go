package enqueue

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// checkPayload checks size, encoding, syntax, depth and NUL, and returns the
// payload as it is stored: as given, or null if there is none.
func checkPayload(p []byte, lim Limits) ([]byte, error) {
	if len(p) == 0 {
		return []byte("null"), nil
	}
	if len(p) > lim.MaxPayloadBytes {
		return nil, bad("payload", "has %d bytes, at most %d are allowed (enqueue.max_payload_bytes); store large data elsewhere and pass a reference", len(p), lim.MaxPayloadBytes)
	}
	if !utf8.Valid(p) {
		return nil, bad("payload", "is not valid UTF-8")
	}
	depth, nul := scan(p)
	if depth > lim.MaxPayloadDepth {
		return nil, bad("payload", "is nested deeper than %d levels", lim.MaxPayloadDepth)
	}
	if !json.Valid(p) {
		var v any
		return nil, bad("payload", "is not one JSON value: %v", json.Unmarshal(p, &v))
	}
	if nul {
		return nil, bad("payload", `contains the character NUL (\u0000)`)
	}
	return p, nil
}

// scan returns the deepest nesting of p and whether a string in it contains an
// escaped NUL. It needs no valid JSON and uses no stack.
func scan(p []byte) (deepest int, nul bool) {
	depth, inString := 0, false
	for i := 0; i < len(p); i++ {
		c := p[i]
		switch {
		case inString && c == '\\':
			if bytes.HasPrefix(p[i:], []byte(`\u0000`)) {
				nul = true
			}
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest, nul
}

// canonical is the form in which two payloads are compared: members sorted,
// no insignificant space, escapes resolved, numbers as they were written.
func canonical(p []byte) string {
	dec := json.NewDecoder(bytes.NewReader(p))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil { // was checked when it was stored
		return string(p)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(p)
	}
	return string(b)
}
