package schema

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func mustCompile(t *testing.T, text string) *Schema {
	t.Helper()
	s, err := Compile([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return s
}

const mail = `{
  "type": "object",
  "required": ["to", "subject"],
  "additionalProperties": false,
  "properties": {
    "to": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"$ref": "#/$defs/address"}},
    "subject": {"type": "string", "maxLength": 10},
    "priority": {"enum": ["low", "high"]},
    "retries": {"type": "integer", "minimum": 0, "maximum": 5}
  },
  "$defs": {"address": {"type": "string", "format": "email"}}
}`

func TestCheck(t *testing.T) {
	t.Parallel()
	s := mustCompile(t, mail)
	for doc, want := range map[string]string{
		`{"to":["a@example.com"],"subject":"s"}`:                                "",
		`{"to":["a@example.com"],"subject":"s","priority":"low","retries":5e0}`: "",
		`[]`:                                   "at /: want object, got array",
		`null`:                                 "at /: want object, got null",
		`{}`:                                   `at /: lacks "to", "subject"`,
		`{"to":[],"subject":"s"}`:              "at /to: want at least 1 items, got 0",
		`{"to":["s3cr3t"],"subject":"s"}`:      "at /to/0: want the format email",
		`{"to":["a@b.c","a@b.c"],"subject":1}`: "at /subject: want string, got number; at /to: has equal items: 0 and 1",
		`{"to":["a@b.c"],"subject":"s3cr3t s3cr3t"}`:                                  "at /subject: want at most 10 characters, got 13",
		`{"to":["a@b.c"],"subject":"s","priority":"s3cr3t"}`:                          `at /priority: want one of "low", "high"`,
		`{"to":["a@b.c"],"subject":"s","retries":-1}`:                                 "at /retries: want at least 0",
		`{"to":["a@b.c"],"subject":"s","retries":1.5}`:                                "at /retries: want integer, got number",
		`{"to":["a@b.c"],"subject":"s","ccc":1,"bcc":2,"x":3,"y":4}`:                  `at /: has members that are not allowed: "bcc", "ccc", "x" and 1 more`,
		`{"to":[1,2,3,4,5],"subject":"s"}`:                                            "at /to/0: want string, got number; at /to/1: want string, got number; at /to/2: want string, got number; and 2 more",
		`{"to":["a@b.c"],"subject":"s","retries":1e999999999999}`:                     "at /retries: number with more than 400 characters or an exponent beyond ±400",
		`{"to":["a@b.c"],"subject":"s","retries":1` + strings.Repeat("0", 400) + `}`:  "at /retries: number with more than 400 characters",
		`{"to":["a@b.c"],"subject":"s","retries":1e-401}`:                             "at /retries: number with",
		`{"to":["a@b.c"],"subject":"s","retries":1E+400}`:                             "at /retries: want at most 5",
		`{"to":["a@b.c"],"subject":"s","` + strings.Repeat("k", 1000) + `\u0085":{}}`: `not allowed: "` + strings.Repeat("k", 120) + `…"`,
	} {
		err := s.Check([]byte(doc))
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", doc, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.60s: %v, want %q", doc, err, want)
		case want != "" && (strings.Contains(err.Error(), "s3cr3t") || len(err.Error()) > 1000):
			t.Errorf("%.60s: the error quotes the document: %v", doc, err)
		}
	}
}

// TestKeywords has one document that breaks each keyword.
func TestKeywords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ schema, doc, want string }{
		{`false`, `1`, "at /: is not allowed"},
		{`{"const": {"a": 1}}`, `2`, `want {"a":1}`},
		{`{"not": {"type": "string"}}`, `"s3cr3t"`, "matches what the schema excludes (not)"},
		{`{"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}`, `{}`, `at /: matches no alternative of anyOf (lacks "a" | lacks "b")`},
		{`{"oneOf": [{"type": "string"}, {"properties": {"n": {"minimum": 5}}}]}`, `{"n": 4}`,
			"at /: matches no alternative of oneOf (want string, got object | at /n: want at least 5)"},
		{`{"oneOf": [{"minimum": 1}, {"minimum": 2}]}`, `3`, "matches more than one alternative of oneOf: number 1 and number 2"},
		{`{"allOf": [{"minimum": 1.5}, {"maximum": 0}]}`, `1`, "at /: want at least 1.5; at /: want at most 0"},
		{`{"exclusiveMinimum": 1}`, `1`, "want more than 1"},
		{`{"exclusiveMaximum": 1}`, `1`, "want less than 1"},
		{`{"multipleOf": 0.01}`, `0.001`, "want a multiple of 0.01"},
		{`{"minLength": 3}`, `"s3"`, "want at least 3 characters, got 2"},
		{`{"pattern": "^[a-z]+$"}`, `"s3cr3t"`, "want the pattern ^[a-z]+$"},
		{`{"maxItems": 1}`, `[1,2]`, "want at most 1 items, got 2"},
		{`{"minProperties": 1}`, `{}`, "want at least 1 members, got 0"},
		{`{"maxProperties": 0}`, `{"a":1}`, "want at most 0 members, got 1"},
		{`{"contains": {"type": "string"}}`, `[1]`, "at /: has no item that contains asks for"},
		{`{"contains": {"type": "string"}, "minContains": 2}`, `["a"]`, "want at least 2 items that contains asks for, got 1"},
		{`{"contains": {"type": "string"}, "maxContains": 1}`, `["a","b"]`, "want at most 1 items that contains asks for, got 2"},
		{`{"propertyNames": {"maxLength": 1}}`, `{"ab": 1}`, `has a member with a name that is not allowed: "ab"`},
		{`{"dependentRequired": {"a": ["b"]}}`, `{"a": 1}`, `lacks "b", required beside "a"`},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}}`, `{"a": 1}`, `lacks "b", required beside "a"`},
		{`{"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}], "additionalItems": false}`, `[1, 2, 3]`, "has 2 items too many"},
		{`{"prefixItems": [{}], "items": {"type": "string"}}`, `["a", 1]`, "at /1: want string, got number"},
		{`{"unevaluatedProperties": false}`, `{"a": 1}`, "at /a: is not allowed"},
		{`{"properties": {"a/b~c": {"type": "string"}}}`, `{"a/b~c": 1}`, "at /a~1b~0c: want string"},
		{`{"properties": {"a": {"$ref": "#"}}, "required": ["b"]}`, `{"b": 1, "a": {}}`, `at /a: lacks "b"`},
		{`{"$ref": "https://json-schema.org/draft/2020-12/schema"}`, `{"type": "text"}`, "at /type: matches no alternative of anyOf"},
		{`{"format": "no-such-format"}`, `1`, ""},
		{`{"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": true}`, `1`, "want more than 1"},
	} {
		err := mustCompile(t, tt.schema).Check([]byte(tt.doc))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.schema, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cr3t")):
			t.Errorf("%s of %s: %v, want %q", tt.schema, tt.doc, err, tt.want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                               "is not one JSON value",
		`{`:                              "is not one JSON value",
		`{} {}`:                          "is not one JSON value",
		`5`:                              "is no JSON Schema: that is an object or a boolean",
		`{"type": "text"}`:               "is no valid JSON Schema: at /type: ",
		`{"required": "to"}`:             "is no valid JSON Schema: at /required: want array, got string",
		`{"pattern": "("}`:               "is no valid JSON Schema",
		`{"$ref": "#/$defs/x"}`:          "is no valid JSON Schema",
		`{"$ref": "other.json"}`:         "refers to schema:///other.json: a $ref can't leave the file",
		`{"$ref": "/etc/passwd"}`:        "a $ref can't leave the file",
		`{"$ref": "file:///etc/passwd"}`: "refers to file:///etc/passwd: a $ref can't leave the file",
		`{"$ref": "http://127.0.0.1:1/schema.json"}`:                  "refers to http://127.0.0.1:1/schema.json: a $ref",
		`{"$schema": "http://127.0.0.1:1/meta"}`:                      "a $ref can't leave the file",
		`{"$id": "https://example.com/a.json", "$ref": "b.json"}`:     "refers to https://example.com/b.json",
		`{"properties": {"a": {"$dynamicRef": "https://h/x#meta"}}}`:  "a $ref can't leave the file",
		`{"$schema": "https://json-schema.org/draft/2020-13/schema"}`: "a $ref can't leave the file",
	} {
		_, err := Compile([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "s.json")
	for text, want := range map[string]string{
		`{"type": "object"}`: "",
		`{"type": "objekt"}`: path + ": is no valid JSON Schema: at /type: ",
		`{"$comment": "` + strings.Repeat("x", 1<<20) + `"}`: path + " is larger than 1048576 bytes",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(path); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.40s: %v, want %q", text, err, want)
		}
	}
	for _, p := range []string{filepath.Join(dir, "none.json"), dir} {
		if _, err := Load(p); err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	s := mustCompile(t, mail)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if s.Check([]byte(`{"to":["a@example.com"],"subject":"s"}`)) != nil || s.Check([]byte(`{}`)) == nil {
					t.Error("a wrong answer")
				}
			}
		})
	}
	wg.Wait()
}

// FuzzCheck: no document makes a check fail otherwise than with an error.
func FuzzCheck(f *testing.F) {
	s, err := Compile([]byte(mail))
	if err != nil {
		f.Fatal(err)
	}
	for _, doc := range []string{`{}`, `{"to":["a"],"subject":"` + strings.Repeat("x", 20) + `"}`, `[1e400]`, `{"retries":1e-9999999}`, `x`, ``} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		if err := s.Check(doc); err != nil && err.Error() == "" {
			t.Error("an error without a text")
		}
	})
}
