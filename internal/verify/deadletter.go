package verify

import (
	"fmt"
	"strconv"

	"github.com/penstock-dev/penstock/internal/store"
	"github.com/penstock-dev/penstock/internal/store/dbsqlc"
	"github.com/penstock-dev/penstock/internal/store/pgid"
	"github.com/penstock-dev/penstock/protocol"
)

// Statuses of a dead letter.
const (
	statusOpen      = "open"
	statusRequeued  = "requeued"
	statusDiscarded = "discarded"
	statusExpired   = "expired"
)

// checkDead compares a task with its dead letter, which is nil if it has none.
func (h *history) checkDead(d *deadRow, requeues int) {
	h.checkOrigin()
	differ := func(field, want, got string) {
		if want != got {
			h.differ(CheckDeadLetter, 0, field, want, got)
		}
	}
	state := protocol.State(h.row.State)
	switch state {
	case protocol.StateDLQPending, protocol.StateDLQRecorded, protocol.StateFailed:
	default:
		if d != nil {
			differ("dlq_items", none+" in state "+string(state), protocol.ID(d.DlqID).String())
		}
		return
	}
	if d == nil {
		differ("dlq_items", "a dead letter in state "+string(state), none)
		return
	}
	differ("dlq_id", protocol.DLQID(h.id).String(), protocol.ID(d.DlqID).String())
	differ("recorded", strconv.FormatBool(state != protocol.StateDLQPending), strconv.FormatBool(d.RecordedAt.Valid))
	differ("retry_count", strconv.Itoa(int(h.row.Attempt)-1), strconv.Itoa(int(d.RetryCount)))
	differ("error_code", text(store.Deref(h.row.LastErrorCode)), text(d.ErrorCode))
	differ("error", text(store.Deref(h.row.LastErrorReason)), text(d.Error))
	differ("tenant", text(h.row.Tenant), text(d.Tenant))
	differ("queue", text(h.row.Queue), text(store.Deref(d.Queue)))
	differ("type", text(h.row.Type), text(store.Deref(d.Type)))
	if d.Status != statusExpired && !d.ErasedAt.Valid && !h.broken {
		differ("errors", strconv.Itoa(h.failures), strconv.Itoa(int(max(d.Errors, 0))))
	}
	differ("edits", strconv.Itoa(int(d.Revision)), strconv.FormatInt(d.Edits, 10))
	h.checkRequeues(d, requeues)
	h.checkDiscard(d)
}

// checkRequeues compares the number of a dead letter's requeues in all places
// that count them.
func (h *history) checkRequeues(d *deadRow, links int) {
	n := int(d.Requeues)
	if links != n {
		h.differ(CheckRequeue, 0, "dlq_requeues", strconv.Itoa(n), strconv.Itoa(links))
	}
	if h.requeued != n {
		h.differ(CheckRequeue, 0, string(protocol.EventDLQRequeued)+" events", strconv.Itoa(n), strconv.Itoa(h.requeued))
	}
	switch {
	case d.Status == statusRequeued && n == 0:
		h.differ(CheckRequeue, 0, "requeues", "at least 1 in status requeued", "0")
	case d.Status == statusOpen && n > 0:
		h.differ(CheckRequeue, 0, "requeues", "0 in status open", strconv.Itoa(n))
	}
}

func (h *history) checkDiscard(d *deadRow) {
	want := 0
	if d.Status == statusDiscarded || d.Status == statusExpired && h.discarded > 0 {
		want = 1
		by, confirmed := store.Deref(d.DiscardProposedBy), store.Deref(d.DiscardConfirmedBy)
		if by == "" || confirmed == "" || by == confirmed {
			h.differ(CheckDiscard, 0, "discard_confirmed_by", "somebody else than "+text(by), text(confirmed))
		}
	}
	if h.discarded != want {
		h.differ(CheckDiscard, 0, string(protocol.EventDiscarded)+" events", fmt.Sprintf("%d in status %s", want, d.Status), strconv.Itoa(h.discarded))
	}
}

// checkOrigin: a task that came out of a dead letter is listed there.
func (h *history) checkOrigin() {
	origin, link := h.row.OriginDlqID, h.row.LinkDlqID
	if origin == nil && link == nil || origin != nil && link != nil && *origin == *link {
		return
	}
	name := func(id *pgid.ID) string {
		if id == nil {
			return none
		}
		return protocol.ID(*id).String()
	}
	h.differ(CheckRequeue, 0, "origin_dlq_id", name(link), name(origin))
}

// checkRequeue checks the n-th requeue of the original's dead letter.
func (r *run) checkRequeue(original *taskRow, x *dbsqlc.VerifyRequeuesRow, n int) {
	task := protocol.ID(x.TaskID).String()
	differ := func(field, want, got string) {
		if want != got {
			r.report(subjectOf(original).of(Difference{
				Check: CheckRequeue, Object: "requeue " + strconv.Itoa(int(x.N)), Field: field, Expected: want, Found: got,
			}))
		}
	}
	differ("n", strconv.Itoa(n), strconv.Itoa(int(x.N)))
	differ(string(protocol.EventDLQRequeued)+" events of task "+task, "1", strconv.FormatInt(x.Events, 10))
	if !x.TaskFound {
		if !x.TaskRemoved { // by retention
			differ("task", task, none)
		}
		return
	}
	origin := none
	if x.OriginDlqID != nil {
		origin = protocol.ID(*x.OriginDlqID).String()
	}
	differ("origin_dlq_id of task "+task, protocol.ID(x.DlqID).String(), origin)
}
