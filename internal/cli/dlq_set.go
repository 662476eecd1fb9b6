package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// step is one part of a path into a JSON value: a key of an object or an index
// of an array.
type step struct {
	key   string
	index int // -1: key
}

// parsePath reads a path such as a.b[0].c or ["a.b"].c up to its end or an
// equals sign, and returns what follows it. "." alone is the whole value.
func parsePath(s string) (path []step, rest string, err error) {
	if !utf8.ValidString(s) {
		return nil, "", fmt.Errorf("%q is not valid UTF-8", s)
	}
	if s == "." || strings.HasPrefix(s, ".=") {
		return nil, s[1:], nil
	}
	rest = s
	for rest != "" && rest[0] != '=' {
		if rest[0] == '[' {
			var st step
			if st, rest, err = parseBracket(rest); err != nil {
				return nil, "", fmt.Errorf("path %q: %w", s, err)
			}
			path = append(path, st)
			continue
		}
		if len(path) > 0 {
			if rest[0] != '.' {
				return nil, "", fmt.Errorf("path %q: want a dot before %q", s, rest)
			}
			rest = rest[1:]
		}
		n := strings.IndexAny(rest, ".[=")
		if n < 0 {
			n = len(rest)
		}
		if n == 0 {
			return nil, "", fmt.Errorf("path %q: a key is missing; write an empty or odd one as [\"...\"]", s)
		}
		path = append(path, step{rest[:n], -1})
		rest = rest[n:]
	}
	if len(path) == 0 {
		return nil, "", errors.New("the path is empty; the whole payload is \".\"")
	}
	return path, rest, nil
}

// parseBracket reads [index] or ["key"].
func parseBracket(s string) (step, string, error) {
	if strings.HasPrefix(s, `["`) {
		dec := json.NewDecoder(strings.NewReader(s[1:]))
		var key string
		if err := dec.Decode(&key); err != nil {
			return step{}, "", fmt.Errorf("%q is not a quoted key in brackets", s)
		}
		rest := s[1+dec.InputOffset():]
		if !strings.HasPrefix(rest, "]") {
			return step{}, "", fmt.Errorf("a bracket is not closed in %q", s)
		}
		return step{key, -1}, rest[1:], nil
	}
	end := strings.IndexByte(s, ']')
	if end < 0 {
		return step{}, "", fmt.Errorf("a bracket is not closed in %q", s)
	}
	n, err := strconv.ParseUint(s[1:end], 10, 31)
	if err != nil {
		return step{}, "", fmt.Errorf("%q is not an index, a number from 0 on; a key is written [\"...\"]", s[1:end])
	}
	return step{index: int(n)}, s[end+1:], nil
}

func (s step) String() string {
	if s.index >= 0 {
		return fmt.Sprintf("[%d]", s.index)
	}
	return s.key
}

// pathText writes a path for an error message.
func pathText(path []step) string {
	out := ""
	for _, s := range path {
		if s.index < 0 && out != "" {
			out += "."
		}
		out += s.String()
	}
	if out == "" {
		return "the payload"
	}
	return out
}

// child is a member of an object or an element of an array, as text, so that
// what is not changed stays as it is, the digits of numbers and the order of
// keys included.
type child struct {
	key    string
	rawKey []byte
	value  json.RawMessage
}

// children splits an object or array, which doc must be.
func children(doc []byte) ([]child, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	open, err := dec.Token()
	if err != nil {
		return nil, err
	}
	var out []child
	for dec.More() {
		var c child
		if open == json.Delim('{') {
			from := dec.InputOffset()
			key, err := dec.Token()
			if err != nil {
				return nil, err
			}
			c.key, _ = key.(string)
			c.rawKey = bytes.TrimLeft(doc[from:dec.InputOffset()], ", \t\r\n")
		}
		if err := dec.Decode(&c.value); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// join is the reverse of children.
func join(kind byte, list []child) json.RawMessage {
	out := []byte{kind}
	for i, c := range list {
		if i > 0 {
			out = append(out, ',')
		}
		if kind == '{' {
			out = append(append(out, c.rawKey...), ':')
		}
		out = append(out, c.value...)
	}
	return append(out, kind+2) // '{' and '}', '[' and ']' are two apart
}

// setJSON returns doc, one JSON value, with the value at path put in its place;
// nil removes it. Objects and arrays that are missing on the way are made.
func setJSON(doc json.RawMessage, path []step, value json.RawMessage) (json.RawMessage, error) {
	return setAt(bytes.TrimSpace(doc), path, 0, value)
}

func setAt(doc json.RawMessage, path []step, depth int, value json.RawMessage) (json.RawMessage, error) {
	if depth == len(path) {
		if value == nil {
			return nil, errors.New("the whole payload can't be removed")
		}
		return value, nil
	}
	s, here := path[depth], pathText(path[:depth])
	kind, what := byte('{'), "an object"
	if s.index >= 0 {
		kind, what = '[', "an array"
	}
	if len(doc) == 0 || doc[0] != kind {
		return nil, fmt.Errorf("%s is %s, not %s", here, kindOf(doc), what)
	}
	list, err := children(doc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", here, err)
	}
	at := s.index
	if kind == '{' {
		for at = len(list) - 1; at >= 0 && list[at].key != s.key; at-- { // of equal keys the last one counts
		}
	}
	missing := at < 0 || at >= len(list)
	switch {
	case missing && value == nil:
		return nil, fmt.Errorf("there is no %s", pathText(path[:depth+1]))
	case missing && kind == '[' && at > len(list):
		return nil, fmt.Errorf("%s has %d elements: [%d] would leave a gap", here, len(list), at)
	case missing:
		made, err := build(path[depth+1:], value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pathText(path[:depth+1]), err)
		}
		return join(kind, append(list, child{rawKey: quote(s.key), value: made})), nil
	case value == nil && depth == len(path)-1:
		list = append(list[:at], list[at+1:]...)
		if kind == '{' { // an earlier one of the same name would show up
			list = without(list, s.key)
		}
		return join(kind, list), nil
	}
	if list[at].value, err = setAt(list[at].value, path, depth+1, value); err != nil {
		return nil, err
	}
	return join(kind, list), nil
}

func without(list []child, key string) (out []child) {
	for _, c := range list {
		if c.key != key {
			out = append(out, c)
		}
	}
	return out
}

// build makes what is missing on the way to a value.
func build(path []step, value json.RawMessage) (json.RawMessage, error) {
	for i := len(path) - 1; i >= 0; i-- {
		switch s := path[i]; {
		case s.index > 0:
			return nil, fmt.Errorf("a new array starts with [0], not [%d]", s.index)
		case s.index == 0:
			value = join('[', []child{{value: value}})
		default:
			value = join('{', []child{{rawKey: quote(s.key), value: value}})
		}
	}
	return value, nil
}

func quote(s string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string can always be encoded
	return bytes.TrimSpace(b.Bytes())
}

func kindOf(doc []byte) string {
	if len(doc) == 0 {
		return "empty"
	}
	switch doc[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// change is one --set or --unset.
type change struct {
	path  []step
	value json.RawMessage // nil: remove
}

// changes are --set and --unset in the order they were given.
type changes []change

// setFlag and unsetFlag collect into the same changes.
type (
	setFlag   struct{ to *changes }
	unsetFlag struct{ to *changes }
)

// Set takes path=value: JSON if the value is valid JSON, else a string.
func (f setFlag) Set(s string) error {
	path, rest, err := parsePath(s)
	if err != nil {
		return err
	}
	text, ok := strings.CutPrefix(rest, "=")
	if !ok {
		return fmt.Errorf("want PATH=VALUE, got %q", s)
	}
	value := json.RawMessage(strings.TrimSpace(text))
	if !json.Valid(value) {
		value = quote(text)
	}
	*f.to = append(*f.to, change{path, value})
	return nil
}

func (setFlag) String() string { return "" }
func (setFlag) Type() string   { return "path=value" }

// Set takes a path.
func (f unsetFlag) Set(s string) error {
	path, rest, err := parsePath(s)
	if err == nil && rest != "" {
		err = fmt.Errorf("want a path alone, got %q", s)
	}
	if err != nil {
		return err
	}
	*f.to = append(*f.to, change{path: path})
	return nil
}

func (unsetFlag) String() string { return "" }
func (unsetFlag) Type() string   { return "path" }
