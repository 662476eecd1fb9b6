package internaljobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Job is a job as replies show it.
type Job struct {
	JobID      string `json:"job_id"`
	TenantID   string `json:"tenant_id"`
	JobType    string `json:"job_type"`
	Status     string `json:"status"`
	RetryCount int    `json:"retry_count"`
	// IdempotencyKey is the caller's, else JobID.
	IdempotencyKey string `json:"idempotency_key"`
	// DLQID is null unless the job was given up.
	DLQID   *string `json:"dlq_id"`
	TraceID string  `json:"trace_id"`
	// ErrorCode is that of the last failure, or of the call that was refused;
	// null if there was none, or the job succeeded after all.
	ErrorCode *string `json:"error_code"`
	// StatusTransition is how the job moved, e.g. "queued -> running ->
	// retrying": by this call where it moves the job, else from the beginning.
	// Empty if the call was refused.
	StatusTransition string          `json:"status_transition"`
	PayloadJSON      json.RawMessage `json:"payload_json"`
	CreatedAt        time.Time       `json:"created_at"`
	UpdatedAt        time.Time       `json:"updated_at"`
	// IdempotentHit is only in replies to the making of a job: it existed
	// already.
	IdempotentHit *bool `json:"idempotent_hit,omitempty"`
	// Message is only in the reply to a call that was refused: why.
	Message string `json:"message,omitempty"`

	id protocol.ID
}

// jobOf describes a job's row; states are those that it went through.
func jobOf(t *dbsqlc.Task, states []protocol.State) *Job {
	id := protocol.ID(t.ID)
	j := &Job{
		id: id, JobID: id.String(), TenantID: t.Tenant, JobType: t.Type,
		IdempotencyKey: store.Deref(t.IdempotencyKey), TraceID: t.TraceID,
		StatusTransition: protocol.VocabularyB2.Path(states), PayloadJSON: t.Payload, CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.UpdatedAt.UTC(),
	}
	if j.IdempotencyKey == "" {
		j.IdempotencyKey = j.JobID
	}
	j.stand(protocol.State(t.State), int(t.Attempt)-1, protocol.Code(store.Deref(t.LastErrorCode)))
	return j
}

// stand sets what changes as a job moves.
func (j *Job) stand(state protocol.State, retries int, code protocol.Code) {
	j.Status = protocol.VocabularyB2.Project(state, "")
	j.RetryCount = retries
	j.ErrorCode, j.DLQID = nil, nil
	if code != "" && state != protocol.StateSucceeded {
		name := protocol.VocabularyB2.Code(code)
		j.ErrorCode = &name
	}
	switch state {
	case protocol.StateDLQPending, protocol.StateDLQRecorded, protocol.StateFailed:
		dlq := protocol.DLQID(j.id).String()
		j.DLQID = &dlq
	}
}

// find reads a job. The error has TASK_NOT_FOUND if there is none, or the task
// of that id was not made through this interface.
func (s *Service) find(ctx context.Context, id protocol.ID) (*dbsqlc.Task, error) {
	t, err := s.o.Store.GetTask(ctx, pgid.ID(id))
	if errors.Is(err, pgx.ErrNoRows) || err == nil && t.Queue != protocol.QueueInternal {
		return nil, notFound(id.String())
	}
	if err != nil {
		return nil, fmt.Errorf("read job %s: %w", id, err)
	}
	return t, nil
}

// maxEvents is far more than a job can have: its attempts are few, and one
// refusal is recorded for each.
const maxEvents = 1000

// history returns the states that a job went through after an event.
func (s *Service) history(ctx context.Context, id protocol.ID, after int) ([]protocol.State, error) {
	rows, err := s.o.Store.ListEvents(ctx, dbsqlc.ListEventsParams{TaskID: pgid.ID(id), AfterSeq: int32(after), MaxRows: maxEvents})
	if err != nil {
		return nil, fmt.Errorf("read events of job %s: %w", id, err)
	}
	out := make([]protocol.State, len(rows))
	for i, e := range rows {
		out[i] = protocol.State(e.Status)
	}
	return out, nil
}

func (s *Service) get(w http.ResponseWriter, r *http.Request, jobID string) error {
	if r.URL.RawQuery != "" {
		return bad("", "this call takes no query parameters")
	}
	id, err := protocol.ParseID(jobID)
	if err != nil {
		return notFound(jobID)
	}
	t, err := s.find(r.Context(), id)
	if err != nil {
		return err
	}
	states, err := s.history(r.Context(), id, 0)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, jobOf(t, states))
}

func reply(w http.ResponseWriter, status int, j *Job) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // "->" is to be read
	if err := enc.Encode(j); err != nil {
		return fmt.Errorf("encode job %s: %w", j.JobID, err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
	return nil
}
