// Package client enqueues tasks and follows them, over the orchestrators' RPC.
//
//	c, err := client.New("http://127.0.0.1:8080")
//	...
//	t, err := SendEmail.Enqueue(ctx, c, Email{To: "a@example.com"}, task.Key("order-42"))
//
// Concurrent calls share round trips. Every task gets its id here, so a call
// that is repeated, by the client itself or by its user with the same TaskID,
// can't create a second task.
package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/batch"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"

	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

// Options are the settings of a Client. Zero fields take the defaults named.
type Options struct {
	// HTTP carries the calls; default: a client of its own with keep-alive.
	HTTP *http.Client
	// TLS is for https URLs: which authorities the orchestrators' certificates
	// must come from, and the certificate to show. Default: the system's
	// authorities, no certificate, TLS 1.2 or newer. Not together with HTTP.
	TLS *tls.Config
	// MaxBatch is the most tasks of one call, 1 to 1,000; default 500.
	MaxBatch int
	// Calls is how many enqueue calls may be under way at once; default 4.
	Calls int
	// RetryFor is how long an enqueue is repeated while no orchestrator can
	// take it; default 30 s, negative: never repeated.
	RetryFor time.Duration
	// Token says who the caller is, if the orchestrators have a token file; see
	// docs/authentication.md. It is sent with every call, readable by all on the
	// way unless the URL is https. Empty: the caller is anonymous.
	Token string
}

// Client talks to one or more orchestrators. It is safe for concurrent use.
type Client struct {
	servers  []server
	current  atomic.Uint32
	retryFor time.Duration
	http     *http.Client
	batch    *batch.Batcher[*penstockv1.EnqueueRequest, *task.Enqueued]
}

// server is one orchestrator.
type server struct {
	tasks       penstockv1connect.TaskServiceClient
	deadLetters penstockv1connect.DeadLetterServiceClient
	workers     penstockv1connect.WorkerServiceClient
	schedules   penstockv1connect.ScheduleServiceClient
	effects     penstockv1connect.EffectServiceClient
	approvals   penstockv1connect.ApprovalServiceClient
}

// New makes a Client for the orchestrators at the given base URLs, separated
// by commas, with default options.
func New(urls string) (*Client, error) { return NewWith(urls, Options{}) }

// NewWith is New with options. The error is about a URL, the token or the options.
func NewWith(urls string, o Options) (*Client, error) {
	if o.HTTP != nil && o.TLS != nil {
		return nil, errors.New("client: Options has both HTTP and TLS; set TLS in the transport of HTTP")
	}
	if o.TLS == nil {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if o.HTTP == nil {
		o.HTTP = &http.Client{Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
			MaxIdleConnsPerHost: 64,
			IdleConnTimeout:     90 * time.Second,
			TLSClientConfig:     o.TLS.Clone(),
			ForceAttemptHTTP2:   true,
		}}
	}
	if o.RetryFor == 0 {
		o.RetryFor = 30 * time.Second
	}
	if o.MaxBatch < 1 || o.MaxBatch > 1000 {
		o.MaxBatch = 500
	}
	if o.Calls < 1 {
		o.Calls = 4
	}
	var opts []connect.ClientOption
	if o.Token != "" {
		if err := checkToken(o.Token); err != nil {
			return nil, err
		}
		opts = append(opts, connect.WithInterceptors(bearer{o.Token}))
	}
	c := &Client{retryFor: o.RetryFor, http: o.HTTP}
	for _, s := range strings.Split(urls, ",") {
		s = strings.TrimSpace(s)
		u, err := url.Parse(s)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("client: %q is not a base URL such as http://127.0.0.1:8080", s)
		}
		s = strings.TrimSuffix(s, "/")
		c.servers = append(c.servers, server{
			tasks:       penstockv1connect.NewTaskServiceClient(o.HTTP, s, opts...),
			deadLetters: penstockv1connect.NewDeadLetterServiceClient(o.HTTP, s, opts...),
			workers:     penstockv1connect.NewWorkerServiceClient(o.HTTP, s, opts...),
			schedules:   penstockv1connect.NewScheduleServiceClient(o.HTTP, s, opts...),
			effects:     penstockv1connect.NewEffectServiceClient(o.HTTP, s, opts...),
			approvals:   penstockv1connect.NewApprovalServiceClient(o.HTTP, s, opts...),
		})
	}
	c.batch = batch.New(batch.Options{Max: o.MaxBatch, Flushes: o.Calls}, c.flush)
	return c, nil
}

// Close waits for calls under way and releases connections.
func (c *Client) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := c.batch.Close(ctx)
	c.http.CloseIdleConnections()
	return err
}

// RPC is the generated client of the orchestrator that answered last, for
// calls that this package does not wrap.
func (c *Client) RPC() penstockv1connect.TaskServiceClient { return c.server(c.current.Load()).tasks }

// DeadLetters is the generated client of that orchestrator for dead letters.
func (c *Client) DeadLetters() penstockv1connect.DeadLetterServiceClient {
	return c.server(c.current.Load()).deadLetters
}

// Workers is the generated client of that orchestrator for workers.
func (c *Client) Workers() penstockv1connect.WorkerServiceClient {
	return c.server(c.current.Load()).workers
}

// Approvals is the generated client of that orchestrator for approvals and the
// guard's rules.
func (c *Client) Approvals() penstockv1connect.ApprovalServiceClient {
	return c.server(c.current.Load()).approvals
}

// Effects is the generated client of that orchestrator for the side-effect
// ledger.
func (c *Client) Effects() penstockv1connect.EffectServiceClient {
	return c.server(c.current.Load()).effects
}

// server returns the orchestrator that is n-th in turn.
func (c *Client) server(n uint32) server { return c.servers[int(n)%len(c.servers)] }

const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// retry calls one orchestrator after the other until one answers, for at most
// retryFor. An answer that repeating can't change is returned at once.
func retry[T any](ctx context.Context, c *Client, call func(context.Context, penstockv1connect.TaskServiceClient) (T, error)) (T, error) {
	deadline := time.Now().Add(c.retryFor)
	for pause, try := firstPause, 1; ; try++ {
		n := c.current.Load()
		v, err := call(ctx, c.server(n).tasks)
		if err == nil || !temporary(err) || ctx.Err() != nil {
			return v, err
		}
		c.current.CompareAndSwap(n, n+1)
		if c.retryFor < 0 || time.Now().Add(pause).After(deadline) {
			return v, err
		}
		if try%len(c.servers) != 0 {
			continue // another orchestrator may answer at once
		}
		select {
		case <-ctx.Done():
			return v, err
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

func temporary(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeAborted:
		return true
	case connect.CodeResourceExhausted:
		// Without details it is the transport's: a message over its limit.
		i := infoOf(err)
		return i != nil && i.Retryable
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled, connect.CodeDeadlineExceeded: // a connection that broke in mid-call
		var e *connect.Error
		return errors.As(err, &e) && !connect.IsWireError(err)
	}
	return false
}

// fromConnect turns an RPC error into the *protocol.Error it carries, if any. The
// server has the caller's deadline, too, and its answer that it passed may arrive
// just before it does here.
func fromConnect(err error) error {
	if connect.CodeOf(err) == connect.CodeDeadlineExceeded && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	if info := infoOf(err); info != nil && info.Code != "" {
		return fromInfo(info)
	}
	return err
}

// infoOf returns the detail that the service's own errors carry, or nil.
func infoOf(err error) *penstockv1.ErrorInfo {
	var e *connect.Error
	if !errors.As(err, &e) {
		return nil
	}
	for _, d := range e.Details() {
		if v, derr := d.Value(); derr == nil {
			if info, ok := v.(*penstockv1.ErrorInfo); ok {
				return info
			}
		}
	}
	return nil
}

func fromInfo(i *penstockv1.ErrorInfo) error {
	if i.Code == "" {
		if i.Retryable { // as if the whole call had failed with it
			e := connect.NewError(connect.CodeUnavailable, errors.New(i.Message))
			if d, err := connect.NewErrorDetail(i); err == nil {
				e.AddDetail(d)
			}
			return e
		}
		return errors.New(i.Message)
	}
	return &protocol.Error{Code: protocol.Code(i.Code), Field: i.Field, Message: i.Message}
}

// Task is a task as the server reports it.
type Task = penstockv1.Task

// Get returns a task. The error is a *protocol.Error with TASK_NOT_FOUND if
// there is none.
func (c *Client) Get(ctx context.Context, tenant, taskID string) (*Task, error) {
	if err := checkText([2]string{"tenant", tenant}, [2]string{"task_id", taskID}); err != nil {
		return nil, err
	}
	res, err := retry(ctx, c, func(ctx context.Context, s penstockv1connect.TaskServiceClient) (*connect.Response[penstockv1.GetTaskResponse], error) {
		return s.GetTask(ctx, connect.NewRequest(&penstockv1.GetTaskRequest{TaskId: taskID, Tenant: tenant}))
	})
	if err != nil {
		return nil, fromConnect(err)
	}
	return res.Msg.Task, nil
}

// lastCall is how long before the end of a context Wait makes its last call.
const lastCall = 200 * time.Millisecond

// Wait returns the task once it is terminal, or ctx's error. It goes on
// waiting while orchestrators restart. An end within the last 200 ms before ctx's
// deadline may not be seen.
func (c *Client) Wait(ctx context.Context, tenant, taskID string) (*Task, error) {
	if err := checkText([2]string{"tenant", tenant}, [2]string{"task_id", taskID}); err != nil {
		return nil, err
	}
	for {
		res, err := retry(ctx, c, func(ctx context.Context, s penstockv1connect.TaskServiceClient) (*connect.Response[penstockv1.WaitTaskResponse], error) {
			return s.WaitTask(ctx, connect.NewRequest(&penstockv1.WaitTaskRequest{TaskId: taskID, Tenant: tenant, TimeoutMs: 60_000}))
		})
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, fromConnect(err)
		case res.Msg.Done:
			return res.Msg.Task, nil
		}
		// Orchestrators answer before ctx ends. Close to its end they would do so
		// at once, again and again.
		if d, ok := ctx.Deadline(); ok && time.Until(d) < lastCall {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}
}

// Decode decodes the result of a succeeded task into v.
func Decode(t *Task, v any) error {
	if err := json.Unmarshal(t.Result, v); err != nil {
		return fmt.Errorf("client: result of task %s: %w", t.TaskId, err)
	}
	return nil
}
