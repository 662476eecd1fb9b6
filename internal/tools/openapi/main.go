// Command openapi turns the documents that protoc-gen-openapiv3 writes, one for
// each file with a service, which describe plain protojson, into the one document
// of what the REST API really speaks. Its output depends on its input only. Run it
// at the root of the repository after buf generate:
//
//	go run internal/tools/openapi/main.go
//
// All bytes fields of the API hold JSON values (option raw_json), so every
// schema with format byte becomes "any JSON value".
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

const (
	schemaRef   = "#/components/schemas/"
	packageName = "penstock.v1."
	// mainService is the one whose comment describes the whole API.
	mainService = "TaskService"
)

// nullable lists the fields whose type is a wrapper, which the plugin
// describes like plain fields. Fields with a message type and times are
// nullable, too, but are recognized as they are.
var nullable = map[string][]string{
	"penstock.v1.Task":         {"last_error_code", "last_error_reason"},
	"penstock.v1.Event":        {"backoff_delay_ms"},
	"penstock.v1.AttemptError": {"backoff_delay_ms"},
}

// strict lists the messages besides requests that callers send: the server
// refuses unknown fields.
var strict = []string{"penstock.v1.RetryPolicy", "penstock.v1.DeadLetterFilter"}

// object is a JSON object.
type object = map[string]any

func main() {
	in := flag.String("in", "protocol/penstock/v1/penstock/v1", "the directory of the plugin's documents")
	out := flag.String("out", "protocol/penstock/v1/openapi.json", "where to write the API's document")
	flag.Parse()
	if err := run(*in, *out); err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}

// run reads the documents in a directory and writes out.
func run(in, out string) error {
	names, err := filepath.Glob(filepath.Join(in, "*.openapi.json")) // sorted
	if err != nil {
		return err
	}
	var texts [][]byte
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	text, err := convert(texts...)
	if err != nil {
		return fmt.Errorf("%s: %w", in, err)
	}
	return os.WriteFile(out, text, 0o644) //nolint:gosec // a public document
}

// merge makes one document of the plugin's: all paths, schemas and services. A
// path or a schema that two of them describe differently is an error.
func merge(texts [][]byte) (object, error) {
	all := object{"paths": object{}, "components": object{"schemas": object{}}, "tags": []any{}}
	for _, text := range texts {
		var doc object
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		if err := dec.Decode(&doc); err != nil {
			return nil, err
		}
		components, _ := doc["components"].(object)
		schemas, _ := components["schemas"].(object)
		paths, _ := doc["paths"].(object)
		if schemas == nil || paths == nil {
			return nil, fmt.Errorf("a document has no paths or no schemas")
		}
		all["openapi"] = doc["openapi"]
		if err := union(all["paths"].(object), paths); err != nil {
			return nil, err
		}
		if err := union(all["components"].(object)["schemas"].(object), schemas); err != nil {
			return nil, err
		}
		tags, _ := doc["tags"].([]any)
		all["tags"] = append(all["tags"].([]any), tags...)
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("there are no documents")
	}
	return all, nil
}

// union adds what is in from to to.
func union(to, from object) error {
	for name, value := range from {
		if known, ok := to[name]; ok && !reflect.DeepEqual(known, value) {
			return fmt.Errorf("%s is described twice and differently", name)
		}
		to[name] = value
	}
	return nil
}

// convert returns the API's document for the plugin's.
func convert(texts ...[]byte) ([]byte, error) {
	doc, err := merge(texts)
	if err != nil {
		return nil, err
	}
	components := doc["components"].(object)
	schemas, paths := components["schemas"].(object), doc["paths"].(object)
	doc["info"] = object{
		"title":       "Penstock",
		"version":     "v1",
		"description": fixTags(doc["tags"].([]any)),
	}
	components["securitySchemes"] = object{"bearer": bearerScheme()}
	doc["security"] = []any{object{}, object{"bearer": []any{}}} // either without or with a token
	delete(schemas, "google.rpc.Status")
	delete(schemas, "google.protobuf.Any")
	for path, item := range paths {
		for method, operation := range item.(object) {
			fixOperation(path, method, operation.(object), schemas)
		}
	}
	for name, schema := range schemas {
		fixSchema(name, schema.(object))
	}
	schemas["Problem"] = problemSchema()
	paths["/api/v1/events/watch"] = object{"get": watchOperation()}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// fixTags takes the comment of the main service from its tag, puts that tag
// first and shortens it to its first sentence. The other services keep theirs.
func fixTags(tags []any) (description string) {
	slices.SortStableFunc(tags, func(a, b any) int {
		return cmp.Compare(rank(a.(object)), rank(b.(object)))
	})
	for _, tag := range tags {
		tag := tag.(object)
		text, _ := tag["description"].(string)
		whole := strings.Join(paragraphs(text), "\n\n")
		if tag["name"] != mainService {
			tag["description"] = whole
			continue
		}
		tag["description"], _ = splitComment(text)
		description = whole
	}
	return description
}

// rank puts the main service before the others.
func rank(tag object) int {
	if tag["name"] == mainService {
		return 0
	}
	return 1
}

// fixOperation fixes one operation; a request described in place moves to the
// schemas.
func fixOperation(path, method string, op, schemas object) {
	comment, _ := op["summary"].(string)
	op["summary"], op["description"] = splitComment(comment)
	if op["description"] == "" {
		delete(op, "description")
	}
	parameters, _ := op["parameters"].([]any)
	for _, parameter := range parameters {
		parameter := parameter.(object)
		parameter["name"] = snake(parameter["name"].(string))
		joinLines(parameter)
		fixTypes(parameter["schema"].(object))
	}
	if path == "/api/v1/tasks" && method == "post" {
		op["parameters"] = append(parameters, idempotencyKey())
	}
	if body, ok := op["requestBody"].(object); ok {
		_, rpc, _ := strings.Cut(op["operationId"].(string), "_")
		name := packageName + rpc + "Request"
		media := body["content"].(object)["application/json"].(object)
		if _, known := schemas[name]; !known {
			schema := media["schema"].(object)
			fixSchema(name, schema)
			schemas[name] = schema
		}
		media["schema"] = object{"$ref": schemaRef + name}
	}
	op["responses"].(object)["default"] = object{
		"description": "The call failed.",
		"content": object{
			"application/problem+json": object{"schema": object{"$ref": schemaRef + "Problem"}},
		},
	}
}

// fixSchema fixes a message. It may be called more than once for one.
func fixSchema(name string, schema object) {
	joinLines(schema)
	properties, _ := schema["properties"].(object)
	fixed := object{}
	for key, value := range properties {
		property := value.(object)
		joinLines(property)
		fixTypes(property)
		fixed[snake(key)] = orNull(property)
	}
	for _, key := range nullable[name] {
		property, ok := fixed[key].(object)
		if !ok {
			panic("no field " + key + " in " + name + ": nullable is out of date")
		}
		if kind, ok := property["type"].(string); ok {
			property["type"] = []any{kind, "null"}
		}
	}
	if len(fixed) > 0 {
		schema["properties"] = fixed
	}
	if strings.HasSuffix(name, "Request") || slices.Contains(strict, name) {
		schema["additionalProperties"] = false
	}
}

// fixTypes replaces the types that differ from protojson's.
func fixTypes(schema object) {
	switch schema["format"] {
	case "byte":
		delete(schema, "type")
		delete(schema, "format")
		if _, ok := schema["description"]; !ok {
			schema["description"] = "Any JSON value."
		}
	case "int64", "uint64":
		if schema["type"] == "string" {
			schema["type"] = "integer"
		}
	}
	if items, ok := schema["items"].(object); ok {
		fixTypes(items)
	}
}

// orNull adds null to what a field with presence may be.
func orNull(property object) object {
	if ref, ok := property["$ref"]; ok {
		delete(property, "$ref")
		property["anyOf"] = []any{object{"$ref": ref}, object{"type": "null"}}
	}
	if property["format"] == "date-time" && property["type"] == "string" {
		property["type"] = []any{"string", "null"}
	}
	return property
}

// joinLines undoes the line breaks of a comment.
func joinLines(o object) {
	if text, ok := o["description"].(string); ok {
		o["description"] = strings.ReplaceAll(text, "\n", " ")
	}
}

// splitComment returns the first sentence of a comment and the rest.
func splitComment(text string) (summary, rest string) {
	text = strings.ReplaceAll(text, "\n", " ")
	summary, rest, found := strings.Cut(text, ". ")
	if found {
		summary += "."
	}
	return summary, strings.TrimSpace(rest)
}

// snake turns a lowerCamelCase name into the name in the .proto file.
func snake(name string) string {
	var b strings.Builder
	for _, r := range name {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// idempotencyKey describes the header of Enqueue.
func idempotencyKey() object {
	return object{
		"name": "Idempotency-Key", "in": "header",
		"description": "idempotency_key for a body that has none, as a quoted string or, " +
			"without quotes, backslashes, commas and semicolons, as it is. 400 if the body has another one.",
		"schema": object{"type": "string"},
	}
}

// bearerScheme describes how callers say who they are.
func bearerScheme() object {
	return object{
		"type": "http", "scheme": "bearer",
		"description": "A token of the orchestrator's auth.tokens_file: what its holder does is recorded under their name. " +
			"Each call takes one of the roles that its description names. Without a token the caller is anonymous and has the roles of auth.anonymous_roles, none by default; " +
			"where there is no tokens file every role, but what takes a person, such as approving or discarding, takes a token all the same. " +
			"An unknown token is refused with 401, a token without the role with 403.",
	}
}

// problemSchema describes errors (RFC 9457).
func problemSchema() object {
	text := func(description string) object { return object{"type": "string", "description": description} }
	return object{
		"type":        "object",
		"description": "An error (RFC 9457).",
		"required":    []any{"type", "title", "status", "retryable"},
		"properties": object{
			"type":      text("urn:penstock:error: and the code, or about:blank for errors without a code."),
			"title":     text("A short name of the kind of error."),
			"status":    object{"type": "integer", "format": "int32", "description": "The HTTP status."},
			"detail":    text("What was wrong and what to do."),
			"code":      text("The code of the task contract, e.g. TASK_INPUT_INVALID."),
			"field":     text("The field that was wrong, as its path in the request."),
			"retryable": object{"type": "boolean", "description": "Whether the same call may succeed later."},
		},
	}
}

// watchOperation describes WatchEvents as server-sent events.
func watchOperation() object {
	parameter := func(name, in, description string, schema object) object {
		return object{"name": name, "in": in, "description": description, "schema": schema}
	}
	text := object{"type": "string"}
	return object{
		"tags":        []any{"TaskService"},
		"operationId": "TaskService_WatchEvents",
		"summary":     "WatchEvents streams events in commit-safe order as server-sent events.",
		"description": "The type of an event names it (event:), its data is the JSON of a penstock.v1.Event, " +
			"and the id of the last event of each group is the position to resume after it. " +
			"A message with an id and no data only moves the position; comments are signs of life. " +
			"A stream that fails ends with an event named stream.error, whose data is a Problem.",
		"parameters": []any{
			parameter("position", "query", "Where to go on: a position received earlier, empty for events "+
				"from now on, or earliest for all that the log still has.", text),
			parameter("task_id", "query", "Only this task's events.", text),
			parameter("tenant", "query", "Only this tenant's events; with task_id: whose task, default \"default\".", text),
			parameter("types", "query", "Only these event types, e.g. task.failed.",
				object{"type": "array", "items": text}),
			parameter("Last-Event-ID", "header", "Where to resume after a lost connection; goes before the query's position.", text),
		},
		"responses": object{
			"200": object{
				"description": "The stream.",
				"content":     object{"text/event-stream": object{"schema": object{"type": "string"}}},
			},
			"default": object{
				"description": "The call failed.",
				"content": object{
					"application/problem+json": object{"schema": object{"$ref": schemaRef + "Problem"}},
				},
			},
		},
	}
}

// paragraphs splits a comment at its blank lines and joins the other lines.
func paragraphs(text string) []string {
	parts := strings.Split(text, "\n\n")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], "\n", " ")
	}
	return parts
}
