// Package schema checks payloads against JSON Schemas: drafts 4, 6, 7, 2019-09
// and 2020-12 (where $schema is missing), with the keyword format asserted.
//
// A schema is one file. A $ref may point into the file and to the metaschemas
// of json-schema.org, which are built in; nothing else is ever loaded.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// maxFileBytes bounds a schema file.
const maxFileBytes = 1 << 20

// Bounds of the numbers in a document that is checked: the library makes exact
// fractions of them, which would cost minutes and gigabytes for 1e999999999.
const (
	maxNumberBytes = 400
	maxExponent    = 400
)

// Schema is a compiled schema. It is safe for concurrent use.
type Schema struct {
	root *jsonschema.Schema
}

// Load compiles the schema in a file of at most 1 MiB. The error says what is
// wrong with the file and names it.
func Load(path string) (*Schema, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err // names the file
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFileBytes)
	}
	s, err := Compile(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// location stands for the file in URLs that a relative $ref is resolved
// against; it can't be reached.
const location = "schema:///schema.json"

// Compile compiles a schema. The error is one line.
func Compile(text []byte) (*Schema, error) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("is not one JSON value: %w", err)
	}
	switch doc.(type) {
	case map[string]any, bool:
	default:
		return nil, errors.New("is no JSON Schema: that is an object or a boolean")
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.AssertFormat()
	if err := c.AddResource(location, doc); err != nil {
		return nil, err
	}
	root, err := c.Compile(location)
	if err != nil {
		return nil, compileError(err)
	}
	return &Schema{root}, nil
}

// compileError says in one line why a schema does not compile.
func compileError(err error) error {
	if e, ok := errors.AsType[*jsonschema.LoadURLError](err); ok {
		return fmt.Errorf("refers to %s: %w", e.URL, e.Err)
	}
	if e, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if v, ok := errors.AsType[*jsonschema.ValidationError](e.Err); ok {
			return fmt.Errorf("is no valid JSON Schema: %s", explain(v))
		}
	}
	text := strings.ReplaceAll(err.Error(), location, "")
	return fmt.Errorf("is no valid JSON Schema: %s", strings.Join(strings.Fields(text), " "))
}

// noLoader loads nothing.
type noLoader struct{}

// Load always fails.
func (noLoader) Load(string) (any, error) {
	return nil, errors.New("a $ref can't leave the file; put what it needs under $defs")
}

// Check reports whether a document, one valid JSON value, follows the schema.
// The error names up to three places as JSON Pointers and says what was
// expected there. It quotes member names of the document but no values.
func (s *Schema) Check(doc []byte) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return fmt.Errorf("is not one JSON value: %w", err)
	}
	if at, ok := hugeNumber(v, nil); ok {
		return fmt.Errorf("at %s: number with more than %d characters or an exponent beyond ±%d", pointer(at), maxNumberBytes, maxExponent)
	}
	err := s.root.Validate(v)
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*jsonschema.ValidationError](err); ok {
		return errors.New(explain(e))
	}
	return errors.New("can't be checked against the schema")
}

// hugeNumber looks for a number out of bounds and returns where it is.
func hugeNumber(v any, path []string) ([]string, bool) {
	switch v := v.(type) {
	case json.Number:
		return path, !bounded(string(v))
	case []any:
		for i, item := range v {
			if at, ok := hugeNumber(item, append(path, strconv.Itoa(i))); ok {
				return at, true
			}
		}
	case map[string]any:
		for name, item := range v {
			if at, ok := hugeNumber(item, append(path, name)); ok {
				return at, true
			}
		}
	}
	return nil, false
}

func bounded(number string) bool {
	if len(number) > maxNumberBytes {
		return false
	}
	i := strings.IndexAny(number, "eE")
	if i < 0 {
		return true
	}
	e, err := strconv.Atoi(number[i+1:])
	return err == nil && -maxExponent <= e && e <= maxExponent
}
