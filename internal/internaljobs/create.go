package internaljobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/penstock-dev/penstock/internal/pipeline/enqueue"
	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/protocol"
)

// maxBody bounds a request's body; the payload's own limit is lower.
const maxBody = rpc.DefaultMaxMessageBytes

// created is the body of a request that makes a job.
type created struct {
	JobType        string          `json:"job_type"`
	TenantID       string          `json:"tenant_id"`
	PayloadJSON    json.RawMessage `json:"payload_json"`
	IdempotencyKey string          `json:"idempotency_key"`
}

// maxRetries is fixed, whatever the configuration says: the 4th failure is the
// last.
var maxRetries int32 = protocol.DefaultMaxRetries

func (s *Service) create(w http.ResponseWriter, r *http.Request) error {
	if r.URL.RawQuery != "" {
		return bad("", "this call takes no query parameters; put them in the body")
	}
	var in created
	if ok, err := decode(w, r, &in); !ok || err != nil {
		return err
	}
	res, err := s.o.Enqueue.Enqueue(r.Context(), &enqueue.Request{
		Type: in.JobType, Tenant: in.TenantID, Payload: in.PayloadJSON, IdempotencyKey: in.IdempotencyKey,
		MaxRetries: &maxRetries, Queue: protocol.QueueInternal, Internal: true,
	})
	if err != nil {
		return renamed(err)
	}
	t := res.Task()
	status, states := http.StatusCreated, []protocol.State{protocol.State(t.State)}
	if res.Hit {
		status = http.StatusOK
		if states, err = s.history(r.Context(), protocol.ID(t.ID), 0); err != nil {
			return err
		}
	}
	j := jobOf(t, states)
	j.IdempotentHit = &res.Hit
	return reply(w, status, j)
}

// decode reads the body. ok is false if the request was answered already.
func decode(w http.ResponseWriter, r *http.Request, in *created) (ok bool, err error) {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		rpc.Refuse(w, http.StatusUnsupportedMediaType, "send JSON with Content-Type: application/json")
		return false, nil
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		rpc.Refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the request is larger than %d bytes", maxBody))
		return false, nil
	}
	if err != nil {
		return false, bad("", "the body can't be read: %v", err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(in); err != nil {
		field := ""
		if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			field = e.Field
		}
		return false, bad(field, "the body must be one JSON object with job_type, and optionally tenant_id, payload_json and idempotency_key: %s",
			strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := d.Token(); err != io.EOF { //nolint:errorlint // the decoder returns it as it is
		return false, bad("", "the body must be one JSON object; something follows it")
	}
	return true, nil
}

// renamed names the field of an enqueue request as this surface does.
func renamed(err error) error {
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok {
		return err
	}
	names := map[string]string{"type": "job_type", "tenant": "tenant_id", "payload": "payload_json"}
	field, rest := e.Field, ""
	if i := strings.IndexAny(field, ".["); i >= 0 {
		field, rest = field[:i], field[i:]
	}
	if n := names[field]; n != "" {
		return &protocol.Error{Code: e.Code, Field: n + rest, Message: e.Message}
	}
	return err
}
