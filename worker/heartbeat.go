package worker

import (
	"context"
	"errors"
	"os"
	"time"

	"connectrpc.com/connect"

	"github.com/penstock-dev/penstock/internal/version"
	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/task"
)

const (
	// callTimeout bounds one call to one orchestrator; leaveTimeout the last one.
	// leastTimeout is for all orchestrators that a heartbeat tries.
	callTimeout  = 5 * time.Second
	leaveTimeout = time.Second
	leastTimeout = time.Second
	// maxSentProgress bounds the progress in one call in bytes; what is left is
	// sent with the next. Orchestrators take 4 MiB a call.
	maxSentProgress = 2 << 20
)

// beater tells orchestrators what runs here, and does what they answer. All of
// it is for one goroutine.
type beater struct {
	w       *Worker
	drain   func() // called once when the worker is ordered to drain
	host    string // of this machine
	down    bool   // the last call failed
	drained bool
}

// keepBeating sends heartbeats until ctx ends, then says good-bye. drain is
// called when the worker is ordered to. Nothing depends on the calls: while they
// fail, everything else goes on.
func (w *Worker) keepBeating(ctx context.Context, drain func()) {
	if w.rpc == nil {
		return
	}
	b := &beater{w: w, drain: drain}
	b.host, _ = os.Hostname()
	tick := time.NewTicker(w.o.HeartbeatInterval)
	defer tick.Stop()
	for {
		b.beat(ctx)
		select {
		case <-ctx.Done():
			b.leave()
			return
		case <-tick.C:
		}
	}
}

// beat makes one call for everything that runs long enough.
func (b *beater) beat(ctx context.Context) {
	m, listed := b.request(time.Now())
	// An orchestrator that does not answer must not hold up the next heartbeat,
	// unless that is due sooner than one on a busy machine can answer.
	ctx, cancel := context.WithTimeout(ctx, max(b.w.o.HeartbeatInterval*9/10, leastTimeout))
	defer cancel()
	res, err := b.call(ctx, m)
	if err != nil {
		if !b.down && !errors.Is(ctx.Err(), context.Canceled) {
			b.w.o.Log.Warn("no orchestrator takes heartbeats; tasks go on without", "error", err)
			b.down = true
		}
		return
	}
	if b.down {
		b.w.o.Log.Info("an orchestrator takes heartbeats again")
		b.down = false
	}
	dropped := map[protocol.Pair]bool{}
	for _, t := range res.Unclaimed {
		dropped[pairOf(t.Id, t.Delivery)] = true
	}
	for _, t := range m.Tasks {
		if p := pairOf(t.Id, t.Delivery); len(t.Progress) > 0 && !dropped[p] {
			for _, x := range listed[p] {
				x.sent(t.Progress)
			}
		}
	}
	b.obey(res, listed)
}

// request describes the worker, and the executions that run for longer than the
// interval or have something to report.
func (b *beater) request(now time.Time) (*penstockv1.HeartbeatRequest, map[protocol.Pair][]*execution) {
	w := b.w
	m := &penstockv1.HeartbeatRequest{
		WorkerId: w.id, Host: b.host, Pid: int32(os.Getpid()), Version: version.String(), Queues: w.o.Queues, Concurrency: int32(w.o.Concurrency),
		Stuck: int32(w.Stuck()), IntervalMs: max(w.o.HeartbeatInterval.Milliseconds(), 1),
	}
	listed, size := map[protocol.Pair][]*execution{}, 0
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.running {
		if x.task == nil || !x.running() {
			continue
		}
		m.Running++
		t := &penstockv1.RunningTask{Id: x.task.ID.String(), Delivery: x.task.Delivery}
		x.mu.Lock()
		if p := x.progress; p.unsent && size+len(p.detail) <= maxSentProgress {
			t.Progress = p.detail
			size += len(p.detail)
		}
		x.mu.Unlock()
		if t.Progress != nil || now.Sub(x.started) >= w.o.HeartbeatInterval {
			m.Tasks = append(m.Tasks, t)
			pair := protocol.Pair{ID: x.task.ID, Delivery: x.task.Delivery}
			listed[pair] = append(listed[pair], x)
		}
	}
	return m, listed
}

// call tries each orchestrator once.
func (b *beater) call(ctx context.Context, m *penstockv1.HeartbeatRequest) (*penstockv1.HeartbeatResponse, error) {
	return callAny(ctx, b.w.rpc, m, func(ctx context.Context, o orchestrator, req *connect.Request[penstockv1.HeartbeatRequest]) (*connect.Response[penstockv1.HeartbeatResponse], error) {
		return o.workers.Heartbeat(ctx, req)
	}, func(error) bool { return false })
}

// obey does what an orchestrator answered.
func (b *beater) obey(res *penstockv1.HeartbeatResponse, listed map[protocol.Pair][]*execution) {
	for _, t := range res.Cancelled {
		for _, x := range listed[pairOf(t.Id, t.Delivery)] {
			b.w.callOff(x, task.ErrCancelled)
		}
	}
	for _, t := range res.Superseded {
		for _, x := range listed[pairOf(t.Id, t.Delivery)] {
			b.w.callOff(x, task.ErrLeaseLost)
		}
	}
	if res.Drain && !b.drained {
		b.drained = true
		b.w.o.Log.Info("ordered to drain", "worker_id", b.w.id)
		b.drain()
	}
}

// leave tells that this worker has stopped, if an orchestrator answers soon.
func (b *beater) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	if _, err := b.call(ctx, &penstockv1.HeartbeatRequest{WorkerId: b.w.id, Leaving: true}); err != nil {
		b.w.o.Log.Debug("no orchestrator was told that this worker stops", "error", err)
	}
}

// callOff ends the handler of an execution that does not count any more, by an
// orchestrator's word or a tombstone. Its entry is still acknowledged after its outcome: whoever
// took it over would only do that, too.
func (w *Worker) callOff(x *execution, cause error) {
	x.mu.Lock()
	first := !x.calledOff
	x.calledOff = true
	if first && errors.Is(cause, task.ErrCancelled) {
		x.cancelledAt = time.Now()
	}
	x.mu.Unlock()
	if first {
		w.o.Log.Warn("execution called off", "type", x.task.Type, "task_id", x.task.TaskID, "delivery", x.task.Delivery, "cause", cause)
		x.cancel(cause)
	}
}

// pairOf is the key of an execution in an answer; the zero pair, which none has,
// if the id is none.
func pairOf(id string, delivery int64) protocol.Pair {
	parsed, err := protocol.ParseID(id)
	if err != nil {
		return protocol.Pair{}
	}
	return protocol.Pair{ID: parsed, Delivery: delivery}
}
