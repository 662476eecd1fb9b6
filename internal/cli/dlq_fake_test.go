package cli

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-dev/penstock/internal/rpc"
	"github.com/penstock-dev/penstock/internal/testkit"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// fakeServer answers like an orchestrator, out of memory, and keeps what it was
// asked.
type fakeServer struct {
	penstockv1connect.UnimplementedTaskServiceHandler
	penstockv1connect.UnimplementedDeadLetterServiceHandler

	url string

	mu      sync.Mutex
	letters []*penstockv1.DeadLetter
	batches map[string]*penstockv1.DeadLetterBatch
	items   []*penstockv1.DeadLetterBatchItem
	skip    int32 // items of a batch that are skipped
	held    bool  // batches make no progress
	calls   []proto.Message
	// before may refuse a call.
	before func(m proto.Message) error
}

const fakeDigest = "3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b8550"

var fakeTime = time.Date(2026, 2, 25, 12, 0, 0, 0, time.UTC)

func newFake(t *testing.T, letters ...*penstockv1.DeadLetter) *fakeServer {
	t.Helper()
	f := &fakeServer{letters: letters, batches: map[string]*penstockv1.DeadLetterBatch{}}
	mux := http.NewServeMux()
	mux.Handle(penstockv1connect.NewTaskServiceHandler(f))
	mux.Handle(penstockv1connect.NewDeadLetterServiceHandler(f))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	f.url = s.URL
	return f
}

// letter makes the n-th dead letter of a test.
func letter(n int) *penstockv1.DeadLetter {
	return &penstockv1.DeadLetter{
		DlqId: fmt.Sprintf("0199%04x-0000-7000-8000-000000000000", n), TaskId: fmt.Sprintf("task-%d", n), Tenant: "acme", Queue: "default", Type: "email.send",
		Payload: fmt.Appendf(nil, `{"z": 1.50, "n": %d, "to": {"name": "Ann"}}`, n), ErrorCode: "TASK_RETRY_EXHAUSTED", CauseCode: "TASK_EXECUTION_FAILED", Error: "TASK_EXECUTION_FAILED: no \x1b[31mroute\nto host",
		RetryCount: 3, FailedAt: timestamppb.New(fakeTime.Add(-time.Duration(n) * time.Second)), RecordedAt: timestamppb.New(fakeTime), Status: "open", Fingerprint: "4f2a90c1d3e8",
	}
}

func letters(n int) (out []*penstockv1.DeadLetter) {
	for i := range n {
		out = append(out, letter(i+1))
	}
	return out
}

// call records a call and answers with what reply returns.
func call[Q, R any](f *fakeServer, q *connect.Request[Q], reply func(m *Q) (*R, error)) (*connect.Response[R], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := any(q.Msg).(proto.Message)
	f.calls = append(f.calls, m)
	if f.before != nil {
		if err := f.before(m); err != nil {
			return nil, rpc.ToConnect(err)
		}
	}
	r, err := reply(q.Msg)
	if err != nil {
		return nil, rpc.ToConnect(err)
	}
	return connect.NewResponse(r), nil
}

// asked returns the calls of one kind.
func asked[M proto.Message](f *fakeServer) (out []M) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if m, ok := c.(M); ok {
			out = append(out, m)
		}
	}
	return out
}

func (f *fakeServer) find(id string) (*penstockv1.DeadLetter, error) {
	for _, d := range f.letters {
		if d.DlqId == id {
			return d, nil
		}
	}
	return nil, protocol.Errorf(protocol.CodeNotFound, "dlq_id", "no dead letter %s", id)
}

func (f *fakeServer) ListDeadLetters(_ context.Context, q *connect.Request[penstockv1.ListDeadLettersRequest]) (*connect.Response[penstockv1.ListDeadLettersResponse], error) {
	return call(f, q, func(m *penstockv1.ListDeadLettersRequest) (*penstockv1.ListDeadLettersResponse, error) {
		from := 0
		_, _ = fmt.Sscan(m.PageToken, &from)
		to := min(from+int(m.PageSize), len(f.letters))
		r := &penstockv1.ListDeadLettersResponse{DeadLetters: f.letters[from:to]}
		if to < len(f.letters) {
			r.NextPageToken = fmt.Sprint(to)
		}
		return r, nil
	})
}

func (f *fakeServer) GroupDeadLetters(_ context.Context, q *connect.Request[penstockv1.GroupDeadLettersRequest]) (*connect.Response[penstockv1.GroupDeadLettersResponse], error) {
	return call(f, q, func(*penstockv1.GroupDeadLettersRequest) (*penstockv1.GroupDeadLettersResponse, error) {
		return &penstockv1.GroupDeadLettersResponse{Groups: f.groups()}, nil
	})
}

func (f *fakeServer) groups() []*penstockv1.DeadLetterGroup {
	return []*penstockv1.DeadLetterGroup{
		{Key: "4f2a90c1d3e8", Count: int64(len(f.letters)), FirstFailedAt: timestamppb.New(fakeTime), LastFailedAt: timestamppb.New(fakeTime), Sample: f.letters[0]},
		{Key: "", Count: 1, FirstFailedAt: timestamppb.New(fakeTime), LastFailedAt: timestamppb.New(fakeTime)},
	}
}

func (f *fakeServer) GetDeadLetter(_ context.Context, q *connect.Request[penstockv1.GetDeadLetterRequest]) (*connect.Response[penstockv1.GetDeadLetterResponse], error) {
	return call(f, q, func(m *penstockv1.GetDeadLetterRequest) (*penstockv1.GetDeadLetterResponse, error) {
		d, err := f.find(m.DlqId)
		return &penstockv1.GetDeadLetterResponse{DeadLetter: d}, err
	})
}

func (f *fakeServer) RequeueDeadLetters(_ context.Context, q *connect.Request[penstockv1.RequeueDeadLettersRequest]) (*connect.Response[penstockv1.RequeueDeadLettersResponse], error) {
	return call(f, q, func(m *penstockv1.RequeueDeadLettersRequest) (*penstockv1.RequeueDeadLettersResponse, error) {
		r := &penstockv1.RequeueDeadLettersResponse{}
		for _, id := range m.DlqIds {
			d, err := f.find(id)
			if err == nil && d.Status != "open" && (d.Status != "requeued" || !m.Again) {
				err = protocol.Errorf(protocol.CodeInvalidTransition, "dlq_id", "dead letter %s was %s already", id, d.Status)
			}
			if err != nil {
				r.Results = append(r.Results, &penstockv1.RequeueResult{DlqId: id, Error: rpc.InfoOf(rpc.ToConnect(err))})
				continue
			}
			d.Status, d.RequeueCount = "requeued", d.RequeueCount+1
			r.Results = append(r.Results, &penstockv1.RequeueResult{DlqId: id, TaskId: "new-" + d.TaskId})
		}
		return r, nil
	})
}

func (f *fakeServer) EditDeadLetter(_ context.Context, q *connect.Request[penstockv1.EditDeadLetterRequest]) (*connect.Response[penstockv1.EditDeadLetterResponse], error) {
	return call(f, q, func(m *penstockv1.EditDeadLetterRequest) (*penstockv1.EditDeadLetterResponse, error) {
		d, err := f.find(m.DlqId)
		if err != nil {
			return nil, err
		}
		if d.Revision != m.Revision {
			return nil, protocol.Errorf(protocol.CodeInvalidTransition, "revision", "somebody edited it meanwhile")
		}
		d.Revision, d.EditedPayload = d.Revision+1, m.Payload
		return &penstockv1.EditDeadLetterResponse{DeadLetter: d, Diff: []byte(`[{"op":"replace","path":"/n","from":1,"to":2},{"op":"add","path":"/x","to":"\u009b"},{"op":"remove","path":"/y","from":null}]`)}, nil
	})
}

// batch makes a batch, or finds the one that was made.
func (f *fakeServer) batch(id, kind, status string, ids []string, filter *penstockv1.DeadLetterFilter) *penstockv1.DeadLetterBatch {
	b := &penstockv1.DeadLetterBatch{
		BatchId: id, Kind: kind, Status: status, Filter: filter, Digest: fakeDigest, Total: int32(len(ids)), CreatedBy: "alice", CreatedAt: timestamppb.New(fakeTime),
		Details: &penstockv1.DeadLetterBatchDetails{ByType: f.groups(), ByFingerprint: f.groups(), SettledSince: 2, NewMatches: 7},
	}
	if filter != nil {
		b.Total = int32(len(f.letters))
	}
	if status != "running" {
		b.ExpiresAt = timestamppb.New(fakeTime.Add(24 * time.Hour))
	}
	f.batches[id] = b
	return b
}

func (f *fakeServer) CreateDeadLetterBatch(_ context.Context, q *connect.Request[penstockv1.CreateDeadLetterBatchRequest]) (*connect.Response[penstockv1.CreateDeadLetterBatchResponse], error) {
	return call(f, q, func(m *penstockv1.CreateDeadLetterBatchRequest) (*penstockv1.CreateDeadLetterBatchResponse, error) {
		status := "running"
		if m.DryRun {
			status = "draft"
		}
		return &penstockv1.CreateDeadLetterBatchResponse{Batch: f.batch(m.BatchId, "requeue", status, m.DlqIds, m.Filter)}, nil
	})
}

func (f *fakeServer) ProposeDiscard(_ context.Context, q *connect.Request[penstockv1.ProposeDiscardRequest]) (*connect.Response[penstockv1.ProposeDiscardResponse], error) {
	return call(f, q, func(m *penstockv1.ProposeDiscardRequest) (*penstockv1.ProposeDiscardResponse, error) {
		b := f.batch(m.BatchId, "discard", "proposed", m.DlqIds, m.Filter)
		b.Reason = m.Reason
		return &penstockv1.ProposeDiscardResponse{Batch: b}, nil
	})
}

// change changes the status of a batch.
func (f *fakeServer) change(id, status string) (*penstockv1.DeadLetterBatch, error) {
	b := f.batches[id]
	if b == nil {
		return nil, protocol.Errorf(protocol.CodeNotFound, "batch_id", "no batch %s", id)
	}
	if ended(b) {
		return nil, protocol.Errorf(protocol.CodeInvalidTransition, "batch_id", "batch %s is %s", id, b.Status)
	}
	b.Status = status
	return b, nil
}

func (f *fakeServer) ConfirmDiscard(_ context.Context, q *connect.Request[penstockv1.ConfirmDiscardRequest]) (*connect.Response[penstockv1.ConfirmDiscardResponse], error) {
	return call(f, q, func(m *penstockv1.ConfirmDiscardRequest) (*penstockv1.ConfirmDiscardResponse, error) {
		b, err := f.change(m.BatchId, "running")
		return &penstockv1.ConfirmDiscardResponse{Batch: b}, err
	})
}

func (f *fakeServer) RejectDiscard(_ context.Context, q *connect.Request[penstockv1.RejectDiscardRequest]) (*connect.Response[penstockv1.RejectDiscardResponse], error) {
	return call(f, q, func(m *penstockv1.RejectDiscardRequest) (*penstockv1.RejectDiscardResponse, error) {
		b, err := f.change(m.BatchId, "rejected")
		return &penstockv1.RejectDiscardResponse{Batch: b}, err
	})
}

func (f *fakeServer) ControlDeadLetterBatch(_ context.Context, q *connect.Request[penstockv1.ControlDeadLetterBatchRequest]) (*connect.Response[penstockv1.ControlDeadLetterBatchResponse], error) {
	return call(f, q, func(m *penstockv1.ControlDeadLetterBatchRequest) (*penstockv1.ControlDeadLetterBatchResponse, error) {
		b, err := f.change(m.BatchId, map[string]string{"start": "running", "pause": "paused", "resume": "running", "cancel": "cancelled"}[m.Action])
		return &penstockv1.ControlDeadLetterBatchResponse{Batch: b}, err
	})
}

// GetDeadLetterBatch also lets a running batch make progress.
func (f *fakeServer) GetDeadLetterBatch(_ context.Context, q *connect.Request[penstockv1.GetDeadLetterBatchRequest]) (*connect.Response[penstockv1.GetDeadLetterBatchResponse], error) {
	return call(f, q, func(m *penstockv1.GetDeadLetterBatchRequest) (*penstockv1.GetDeadLetterBatchResponse, error) {
		b := f.batches[m.BatchId]
		if b == nil {
			return nil, protocol.Errorf(protocol.CodeNotFound, "batch_id", "no batch %s", m.BatchId)
		}
		switch {
		case b.Status != "running" || f.held:
		case b.Done+b.Skipped < b.Total && b.Skipped < f.skip:
			b.Skipped++
		case b.Done+b.Skipped < b.Total:
			b.Done++
		default:
			b.Status, b.StartedAt, b.FinishedAt = "finished", timestamppb.New(fakeTime), timestamppb.New(fakeTime.Add(3210*time.Millisecond))
		}
		out := proto.CloneOf(b)
		if !m.Details {
			out.Details = nil
		}
		return &penstockv1.GetDeadLetterBatchResponse{Batch: out}, nil
	})
}

func (f *fakeServer) ListDeadLetterBatches(_ context.Context, q *connect.Request[penstockv1.ListDeadLetterBatchesRequest]) (*connect.Response[penstockv1.ListDeadLetterBatchesResponse], error) {
	return call(f, q, func(*penstockv1.ListDeadLetterBatchesRequest) (*penstockv1.ListDeadLetterBatchesResponse, error) {
		r := &penstockv1.ListDeadLetterBatchesResponse{}
		for _, b := range f.batches {
			r.Batches = append(r.Batches, b)
		}
		return r, nil
	})
}

func (f *fakeServer) ListDeadLetterBatchItems(_ context.Context, q *connect.Request[penstockv1.ListDeadLetterBatchItemsRequest]) (*connect.Response[penstockv1.ListDeadLetterBatchItemsResponse], error) {
	return call(f, q, func(*penstockv1.ListDeadLetterBatchItemsRequest) (*penstockv1.ListDeadLetterBatchItemsResponse, error) {
		return &penstockv1.ListDeadLetterBatchItemsResponse{Items: f.items}, nil
	})
}

func (f *fakeServer) ListEvents(_ context.Context, q *connect.Request[penstockv1.ListEventsRequest]) (*connect.Response[penstockv1.ListEventsResponse], error) {
	return call(f, q, func(m *penstockv1.ListEventsRequest) (*penstockv1.ListEventsResponse, error) {
		if m.TaskId != "task-1" || m.Tenant != "acme" {
			return nil, protocol.Errorf(protocol.CodeNotFound, "task_id", "no task %s", m.TaskId)
		}
		e := &penstockv1.Event{Seq: m.AfterSeq + 1, Type: "task.created", TaskId: m.TaskId, Status: "queued", OccurredAt: timestamppb.New(fakeTime)}
		r := &penstockv1.ListEventsResponse{Events: []*penstockv1.Event{e}, NextAfterSeq: 1}
		if m.AfterSeq == 1 {
			e.Type, e.PreviousStatus, e.Status, e.BackoffDelayMs, r.NextAfterSeq = "task.retry_scheduled", "running", "retrying", wrapperspb.Int64(1250), 0
		}
		return r, nil
	})
}

func (f *fakeServer) GetTask(_ context.Context, q *connect.Request[penstockv1.GetTaskRequest]) (*connect.Response[penstockv1.GetTaskResponse], error) {
	return call(f, q, func(m *penstockv1.GetTaskRequest) (*penstockv1.GetTaskResponse, error) {
		if m.TaskId != "new-1" {
			return nil, protocol.Errorf(protocol.CodeNotFound, "task_id", "no task %s", m.TaskId)
		}
		return &penstockv1.GetTaskResponse{Task: &penstockv1.Task{TaskId: m.TaskId, State: "succeeded"}}, nil
	})
}

// operator is somebody who runs dlq-replay.
type operator struct {
	con   console
	stdin string
	ctx   context.Context
}

// run runs a command line. err of the result is all of standard error.
func (o operator) run(t *testing.T, f *fakeServer, args ...string) ran {
	t.Helper()
	if o.ctx == nil {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
		defer cancel()
		o.ctx = ctx
	}
	if o.con.getenv == nil {
		o.con.getenv = func(string) string { return "" }
	}
	o.con.poll = time.Millisecond
	root := dlqReplay(&o.con)
	var out, errOut bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errOut)
	root.SetIn(strings.NewReader(o.stdin))
	root.SetArgs(append(args, "--server", f.url))
	r := ran{}
	if err := root.ExecuteContext(o.ctx); err != nil {
		r.code = exitCode(o.ctx, err)
		errOut.WriteString(describe(err))
	}
	r.out, r.err = out.String(), errOut.String()
	return r
}

// script runs a command line where there is no terminal.
func script(t *testing.T, f *fakeServer, args ...string) ran { return operator{}.run(t, f, args...) }

// says checks what a command printed.
func says(t *testing.T, r ran, texts ...string) {
	t.Helper()
	for _, s := range texts {
		if !strings.Contains(r.out, s) {
			t.Errorf("output does not tell %q:\n%s", s, r.out)
		}
	}
	if strings.ContainsAny(r.out+r.err, "\x1b\u009b") {
		t.Errorf("a control character got through: %q", r.out+r.err)
	}
}
