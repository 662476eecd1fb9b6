package enqueue

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/penstock-dev/penstock/internal/guard"
	"github.com/penstock-dev/penstock/internal/schema"
	"github.com/penstock-dev/penstock/protocol"
)

// CheckPayload checks a payload as Enqueue does: its size, that it is one JSON
// value in UTF-8, its depth, its escapes (see protocol.CheckEscapes), and the
// schema of the type. It returns the payload as it is stored: as given, or null if there is
// none. The error is an *protocol.Error with code TASK_INPUT_INVALID and field
// "payload"; it quotes no values of the payload.
func (s *Stage) CheckPayload(typ string, payload []byte) ([]byte, error) {
	return checkPayload(payload, &s.o.Limits, s.o.Limits.of(typ).Schema)
}

// checkPayload is CheckPayload with the type's schema, which may be nil.
func checkPayload(p []byte, lim *Limits, sch *schema.Schema) ([]byte, error) {
	if len(p) == 0 {
		return follow([]byte("null"), sch)
	}
	if len(p) > lim.MaxPayloadBytes {
		return nil, bad("payload", "has %d bytes, at most %d are allowed (enqueue.max_payload_bytes); store large data elsewhere and pass a reference", len(p), lim.MaxPayloadBytes)
	}
	if !utf8.Valid(p) {
		return nil, bad("payload", "is not valid UTF-8")
	}
	if nesting(p) > lim.MaxPayloadDepth {
		return nil, bad("payload", "is nested deeper than %d levels", lim.MaxPayloadDepth)
	}
	if !json.Valid(p) {
		var v any
		return nil, bad("payload", "is not one JSON value: %v", json.Unmarshal(p, &v))
	}
	if err := protocol.CheckEscapes(p); err != nil {
		return nil, bad("payload", "%v", err)
	}
	return follow(p, sch)
}

// follow checks the type's schema.
func follow(p []byte, sch *schema.Schema) ([]byte, error) {
	if sch != nil {
		if err := sch.Check(p); err != nil {
			return nil, bad("payload", "does not follow the schema of its type: %v", err)
		}
	}
	return p, nil
}

// nesting returns the deepest nesting of p. It needs no valid JSON and uses no
// stack.
func nesting(p []byte) (deepest int) {
	depth, inString := 0, false
	for i := 0; i < len(p); i++ {
		c := p[i]
		switch {
		case inString && c == '\\':
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
	return deepest
}

// canonical is the form in which two payloads are compared.
func canonical(p []byte) string { return guard.Canonical(p) }
