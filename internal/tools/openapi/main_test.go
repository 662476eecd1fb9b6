package main

import (
	"bytes"
	"strings"
	"testing"
)

const document = `{
 "openapi": "3.1.0",
 "info": {"title": "tasks"},
 "paths": {"/api/v1/tasks": {
  "get": {"operationId": "TaskService_ListTasks", "summary": "Pages. More\nof it.", "responses": {},
   "parameters": [{"name": "pageSize", "in": "query", "schema": {"type": "string", "format": "int64"}}]},
  "post": {"operationId": "TaskService_Enqueue", "summary": "Stores.", "responses": {},
   "requestBody": {"content": {"application/json": {"schema": {"type": "object", "properties": {
    "payload": {"type": "string", "format": "byte"}, "scheduledAt": {"type": "string", "format": "date-time"}}}}}}}}},
 "components": {"schemas": {
  "google.rpc.Status": {"type": "object"},
  "penstock.v1.Reply": {"type": "object", "properties": {
   "inner": {"$ref": "#/components/schemas/x"}, "delayMs": {"type": "array", "items": {"type": "string", "format": "int64"}}}}}},
 "tags": [{"name": "TaskService", "description": "Accepts tasks. Tells\nmore.\n\nEnd."}]
}`

const second = `{
 "openapi": "3.1.0",
 "paths": {"/api/v1/dead-letters/{dlq_id}/edit": {
  "post": {"operationId": "DeadLetterService_EditDeadLetter", "summary": "Stores.", "responses": {},
   "requestBody": {"content": {"application/json": {"schema": {"type": "object", "properties": {"revision": {"type": "integer"}}}}}}}}},
 "components": {"schemas": {
  "google.rpc.Status": {"type": "object"},
  "penstock.v1.DeadLetterFilter": {"type": "object"},
  "penstock.v1.AttemptError": {"type": "object", "properties": {"backoffDelayMs": {"type": "string", "format": "int64"}}}}},
 "tags": [{"name": "DeadLetterService", "description": "Is for\noperators. More."}]
}`

func TestConvert(t *testing.T) {
	text, err := convert([]byte(second), []byte(document))
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		again, err := convert([]byte(second), []byte(document))
		if err != nil || !bytes.Equal(text, again) {
			t.Fatalf("the output differs: %v", err)
		}
	}
	flat := strings.Join(strings.Fields(string(text)), "")
	for _, want := range []string{
		`"penstock.v1.EnqueueRequest":{"additionalProperties":false,"properties":{"payload":{"description":"AnyJSONvalue."},` +
			`"scheduled_at":{"format":"date-time","type":["string","null"]}}`,
		`"inner":{"anyOf":[{"$ref":"#/components/schemas/x"},{"type":"null"}]}`,
		`"delay_ms":{"items":{"format":"int64","type":"integer"},"type":"array"}`,
		`"name":"page_size"`, `"Idempotency-Key"`, `"/api/v1/events/watch"`, `"application/problem+json"`,
		`"summary":"Pages."`, `"description":"Acceptstasks.Tellsmore.\n\nEnd."`, `"title":"Penstock"`,
		`"/api/v1/dead-letters/{dlq_id}/edit"`, `"penstock.v1.EditDeadLetterRequest":{"additionalProperties":false`,
		`"penstock.v1.DeadLetterFilter":{"additionalProperties":false`, `"backoff_delay_ms":{"format":"int64","type":["integer","null"]}`,
		`"security":[{},{"bearer":[]}]`, `"scheme":"bearer"`,
		`"tags":[{"description":"Acceptstasks.","name":"TaskService"},{"description":"Isforoperators.More.","name":"DeadLetterService"}]`,
	} {
		if !strings.Contains(flat, want) {
			t.Errorf("missing %s in\n%s", want, text)
		}
	}
	if strings.Contains(flat, "google.rpc") {
		t.Error("google.rpc.Status is still there")
	}
}

func TestConvertRefuses(t *testing.T) {
	for _, text := range []string{``, `{}`, `{"paths":{}}`} {
		if _, err := convert([]byte(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
	if _, err := convert(); err == nil {
		t.Error("nothing was accepted")
	}
	other := strings.Replace(document, `"type": "object"}`, `"type": "string"}`, 1)
	if _, err := convert([]byte(document), []byte(other)); err == nil || !strings.Contains(err.Error(), "google.rpc.Status") {
		t.Errorf("two descriptions of one message: %v", err)
	}
}
