package main

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
	"github.com/penstock-dev/penstock/task"
)

func newFastLoad() *load {
	return &load{visibility: 3 * time.Second, tasks: map[string]*check.Task{}, fast: &fast{rate: 100}}
}

// Every kind is there, and some tasks are asked for twice: under two ids, with one
// key, and otherwise by the same request.
func TestBatchHasTwins(t *testing.T) {
	t.Parallel()
	l := newFastLoad()
	r := rand.New(rand.NewPCG(1, 2))
	reqs, later := l.batch(r, 1000, nil)
	if len(later) == 0 || len(reqs) <= 1000 || l.fast.sent.Load() != 1000 {
		t.Fatalf("%d requests, %d for later, %d tasks", len(reqs), len(later), l.fast.sent.Load())
	}
	next, _ := l.batch(r, 10, later)
	if !slices.Equal(next[:len(later)], later) {
		t.Error("the next batch does not begin with the requests left for it")
	}
	seen := map[string]bool{}
	first := map[string]*task.Request{}
	for _, req := range append(reqs, later...) {
		asked := l.tasks[req.TaskID]
		if asked == nil {
			t.Fatalf("nobody knows of request %s", req.TaskID)
		}
		if seen[asked.Kind] = true; req.Key == "" {
			continue
		}
		one := first[req.Key]
		if one == nil {
			first[req.Key] = req
			continue
		}
		if one.TaskID == req.TaskID || l.tasks[one.TaskID] != asked || !bytes.Equal(one.Payload, req.Payload) || one.Queue != req.Queue {
			t.Errorf("%+v and %+v are not for one task", one, req)
		}
	}
	if len(seen) != len(fastKinds) {
		t.Errorf("kinds %v", seen)
	}
}

// An answer names the task of the request, and for one key always the same.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers  [][2]string // the request's id, and that of the answer
		refused  int
		answered int
	}{
		"its own":             {[][2]string{{"a", "a"}, {"a", "a"}, {"k1", "k1"}}, 0, 2},
		"that of its key":     {[][2]string{{"k1", "k2"}, {"k2", "k2"}}, 0, 1},
		"another's":           {[][2]string{{"a", "b"}}, 1, 0},
		"nobody's":            {[][2]string{{"a", "x"}}, 1, 0},
		"two for one key":     {[][2]string{{"k1", "k1"}, {"k2", "k2"}}, 1, 1},
		"another than before": {[][2]string{{"k1", "k2"}, {"k1", "k1"}}, 1, 1},
	} {
		l := newFastLoad()
		l.asked("a", &check.Task{})
		l.asked("b", &check.Task{})
		k := &check.Task{Key: &check.Key{}}
		l.asked("k1", k)
		l.asked("k2", k)
		for _, a := range c.answers {
			l.accepted(a[0], a[1], 0)
		}
		if len(l.refused) != c.refused || l.answered != c.answered {
			t.Errorf("%s: refused %q, %d tasks answered", name, l.refused, l.answered)
		}
	}
}

// -at-least counts what ended while there was load.
func TestAtLeast(t *testing.T) {
	t.Parallel()
	from := time.Unix(1000, 0)
	for atLeast, want := range map[int]bool{0: true, 2: true, 3: false} {
		v := &check.Verdict{Counts: map[check.Rule]int{}}
		for i := range 30 {
			v.Finished = append(v.Finished, from.Add(time.Duration(i)*time.Second/2))
		}
		h := &harness{options: options{atLeast: atLeast}}
		r := &report{h: h, Verdict: v, loadFrom: from, loadTo: from.Add(10 * time.Second), Fast: &fastReport{}}
		r.judgeFast()
		if v.OK() != want || r.Fast.Finished != 2 {
			t.Errorf("at least %d: %v, %.1f finished", atLeast, v.Counts, r.Fast.Finished)
		}
	}
}
