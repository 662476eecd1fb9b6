package acceptance

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/protocol"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// What a line's own time did not suffice for is a failure, what the time of the
// whole cut short is not known; but what was wrong before stays wrong.
func TestVerdict(t *testing.T) {
	t.Parallel()
	late := errors.New("task x has not ended, it is running")
	for i, tt := range []struct {
		f         finding
		err       error
		over, cut bool
		want      Verdict
		reasons   int
	}{
		{want: Pass},
		{over: true, cut: true, want: Pass},
		{f: finding{wrong: []string{"a"}}, want: Fail, reasons: 1},
		{f: finding{wrong: []string{"a"}, unsure: true}, want: Inconclusive, reasons: 1},
		{err: late, want: Fail, reasons: 1},
		{err: late, over: true, want: Fail, reasons: 1},
		{err: late, over: true, cut: true, want: Inconclusive, reasons: 1},
		{f: finding{wrong: []string{"a"}}, err: late, over: true, cut: true, want: Fail, reasons: 2},
		{f: finding{wrong: []string{"a"}, unsure: true}, err: late, over: true, cut: true, want: Inconclusive, reasons: 2},
		{f: finding{wrong: []string{"a"}, unsure: true}, err: late, over: true, want: Fail, reasons: 2},
	} {
		if got, reasons := tt.f.verdict(tt.err, tt.over, tt.cut, time.Minute, time.Second); got != tt.want || len(reasons) != tt.reasons {
			t.Errorf("%d: %s %q, want %s", i, got, reasons, tt.want)
		}
	}
}

// What was missing to find out makes a line unknown, but not one that is wrong.
func TestLacks(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		f       finding
		missing []string
		want    Verdict
		reasons int
	}{
		{want: Pass},
		{missing: []string{noAdmin}, want: Inconclusive, reasons: 1},
		{missing: []string{noAdmin, nobodyElse}, want: Inconclusive, reasons: 2},
		{f: finding{wrong: []string{"a"}}, missing: []string{noAdmin}, want: Fail, reasons: 1},
		{f: finding{wrong: []string{"a"}, unsure: true}, want: Inconclusive, reasons: 1},
	} {
		tt.f.lacks(tt.missing)
		if got, reasons := tt.f.verdict(nil, false, false, time.Minute, time.Second); got != tt.want || len(reasons) != tt.reasons {
			t.Errorf("%d: %s %q, want %s", i, got, reasons, tt.want)
		}
	}
}

// brokenStories are the broken graph's stories, as they must be.
func brokenStories(t *testing.T) map[string]*story {
	t.Helper()
	out := map[string]*story{
		"bad":  newSim(t, protocol.StateQueued, 3).do("claim", "permanent", "bury").story(),
		"next": newSim(t, protocol.StatePending, 3).do("cancel").story(),
		"last": newSim(t, protocol.StatePending, 3).do("cancel").story(),
	}
	later := newSim(t, protocol.StatePending, 3)
	later.env.Now = later.env.Now.Add(time.Minute)
	out["report"] = later.do("dispatch", "claim", "ok").story()
	for name, of := range map[string]string{"next": "bad", "last": "next"} {
		s := out[name]
		s.task.LastErrorCode.Value, s.task.LastErrorReason.Value = string(protocol.CodeDependencyFailed), "task "+out[of].task.TaskId+" failed"
	}
	return out
}

// Each piece of evidence about steps that depend on each other counts.
func TestGraphJudge(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		change func(s map[string]*story)
		wrong  bool
	}{
		{func(map[string]*story) {}, false},
		{func(s map[string]*story) { s["next"].seen = s["bad"].seen }, true},
		{func(s map[string]*story) { s["last"].task.LastErrorReason.Value = "cancelled" }, true},
		{func(s map[string]*story) { s["next"].task.LastErrorCode.Value = string(protocol.CodeCancelled) }, true},
		{func(s map[string]*story) { s["next"].task.State = string(protocol.StateSucceeded) }, true},
		{func(s map[string]*story) { s["report"].seen[0].At = s["bad"].seen[0].At.Add(-1) }, true},
		{func(s map[string]*story) { s["report"].seen = nil }, true},
		{func(s map[string]*story) { s["report"].events[0].Status = string(protocol.StateQueued) }, true},
	} {
		stories := brokenStories(t)
		tt.change(stories)
		var f finding
		if judgeGraph(&f, broken, stories); (len(f.wrong) > 0) != tt.wrong || len(f.notes) == 0 {
			t.Errorf("%d: %q", i, f.wrong)
		}
	}
}

// guardedStory is a task that a rule stopped and carol approved.
func guardedStory(t *testing.T) (*story, *penstockv1.Approval) {
	t.Helper()
	asked := &penstockv1.Approval{ApprovalId: "a1", Digest: "d1", Kind: "guard", Requesters: []string{"ada"}}
	s := newSim(t, protocol.StateQueued, 3).do("claim", "ok").story()
	id := s.task.TaskId
	s.events = append([]*penstockv1.Event{
		{Seq: 1, TaskId: id, Type: string(protocol.EventCreated), Status: "waiting_approval"},
		{Seq: 2, TaskId: id, Type: string(protocol.EventApprovalRequested), PreviousStatus: "waiting_approval", Status: "waiting_approval", Data: []byte(`{"approval_id":"a1","digest":"d1"}`)},
		{Seq: 3, TaskId: id, Type: string(protocol.EventApprovalApproved), PreviousStatus: "waiting_approval", Status: "queued", Actor: "user:carol", Data: []byte(`{"approval_id":"a1","digest":"d1","principal":"carol"}`)},
	}, s.events[1:]...)
	for i, e := range s.events {
		e.Seq = int32(i + 1)
	}
	return s, asked
}

// Each piece of evidence about an approval counts.
func TestApprovalJudge(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		change func(s *story, a *penstockv1.Approval)
		wrong  bool
	}{
		{func(*story, *penstockv1.Approval) {}, false},
		{func(s *story, _ *penstockv1.Approval) { s.events[2].Type = string(protocol.EventProgress) }, true},
		{func(s *story, _ *penstockv1.Approval) { s.events[1].Type = string(protocol.EventProgress) }, true},
		{func(s *story, _ *penstockv1.Approval) { s.events[2].Actor = "user:ada" }, true},
		{func(_ *story, a *penstockv1.Approval) { a.Requesters = []string{"carol"} }, true},
		{func(_ *story, a *penstockv1.Approval) { a.Digest = "other" }, true},
		{func(_ *story, a *penstockv1.Approval) { a.ApprovalId = "other" }, true},
		{func(s *story, _ *penstockv1.Approval) { s.seen = append(s.seen, s.seen[0]) }, true},
		{func(s *story, _ *penstockv1.Approval) { s.task.State = "failed" }, true},
		{func(s *story, _ *penstockv1.Approval) { s.events[0].Status = "queued" }, true},
	} {
		s, asked := guardedStory(t)
		tt.change(s, asked)
		var f finding
		if (decision{"guard", "approved"}).judge(&f, s, asked); (len(f.wrong) > 0) != tt.wrong {
			t.Errorf("%d: %q", i, f.wrong)
		}
	}
}
