package guard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

// MaxDepth is how deep a payload may be nested for rules to read it: what a
// configuration may allow at most. JSON's own reader would go on until the stack
// is full.
const MaxDepth = 1000

// ErrDepth: a payload is nested too deep for rules.
var ErrDepth = fmt.Errorf("the payload is nested deeper than %d levels", MaxDepth)

// Decode reads a payload for rules. Whole numbers become ints (uints where they
// are too large for one), others doubles; CEL compares them with each other. An
// object that has a member twice, in whatever case, is an error: readers differ
// in which of the two counts, and a rule must not judge another value than the
// handler sees.
func Decode(payload []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	v, err := value(dec, MaxDepth)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the payload is not one JSON value")
	}
	return v, nil
}

func value(dec *json.Decoder, deeper int) (any, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("the payload is not JSON: %w", err)
	}
	switch t := t.(type) {
	case json.Delim:
		if deeper == 0 {
			return nil, ErrDepth
		}
		if t == '[' {
			return list(dec, deeper-1)
		}
		return object(dec, deeper-1)
	case json.Number:
		return number(t.String())
	}
	return t, nil // string, bool or nil
}

func list(dec *json.Decoder, deeper int) (any, error) {
	out := []any{}
	for dec.More() {
		v, err := value(dec, deeper)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := dec.Token()
	return out, err
}

func object(dec *json.Decoder, deeper int) (any, error) {
	out := map[string]any{}
	folded := map[string]string{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, fmt.Errorf("the payload is not JSON: %w", err)
		}
		name, _ := t.(string)
		if before, ok := folded[fold(name)]; ok {
			return nil, fmt.Errorf("the payload has a member twice, as %q and %q: it can't be told which one counts", clip(before), clip(name))
		}
		folded[fold(name)] = name
		if out[name], err = value(dec, deeper); err != nil {
			return nil, err
		}
	}
	_, err := dec.Token()
	return out, err
}

// fold is the same for names that differ in case only.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, s)
}

func number(s string) (any, error) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil && s != "-0" {
		return i, nil
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return u, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, fmt.Errorf("the payload has the number %s, which is out of range", clip(s))
	}
	return f, nil
}

// Canonical is the form in which two payloads are compared: members sorted, no
// insignificant space, escapes resolved, numbers as they were written. What is
// no JSON stays as it is.
func Canonical(payload []byte) string {
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return string(payload)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return string(payload)
	}
	return string(b)
}
