package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/protocol"
)

// Everything within these bounds is explored, and nothing is wrong with it.
func TestProtocol(t *testing.T) {
	t.Parallel()
	for _, cfg := range Small() {
		t.Run(cfg.String(), func(t *testing.T) {
			t.Parallel()
			cfg.Stop = true
			checkClean(t, Explore(cfg))
		})
	}
}

func checkClean(t *testing.T, r *Result) {
	t.Helper()
	t.Logf("%d states, %d edges, %d blocks, %d rows, %s", r.States, r.Edges, r.Blocks, r.Rows, r.Took)
	if !r.Complete || !r.Live {
		t.Errorf("complete %v, live %v", r.Complete, r.Live)
	}
	for _, v := range r.Violations {
		t.Errorf("%s", v)
	}
}

// Each wrong protocol is caught by the property that it breaks, and the same
// bounds without the mutation are clean.
func TestWrongProtocolsAreCaught(t *testing.T) {
	t.Parallel()
	for _, w := range Wrongs() {
		t.Run(string(w.Mutant)+" "+w.Faults.String(), func(t *testing.T) {
			t.Parallel()
			r := Explore(w.Config)
			if len(r.Violations) == 0 || property(r.Violations[0].Property) != w.Want {
				t.Fatalf("want %q, got %v", w.Want, r.Violations)
			}
			if v := r.Violations[0]; len(v.Trace) == 0 || strings.Contains(v.String(), "?") {
				t.Errorf("no readable trace: %s", v)
			}
			cfg := w.Config
			cfg.Mutant = ""
			checkClean(t, Explore(cfg))
		})
	}
}

// What a fault may break, and nothing else: the list of what stays at-least-once
// (docs/model.md). It shows, too, that the explorations above would see it.
func TestWhatFaultsCanBreak(t *testing.T) {
	t.Parallel()
	for f, want := range map[Fault][]property{
		Crashes | LostReplies: nil,
		ResultGroupLost:       nil,
		WorkerPause:           {overlap},
		Backstop:              {honestRefused, overlap},
		LateAdd:               {honestRefused, decidedStarts, cancelledStarts, overlap},
		FlushAll:              {decidedStarts, overlap},
		TaskGroupLost:         {decidedStarts, overlap},
		StrangerAck:           {decidedStarts, overlap},
		Failover:              {honestRefused, decidedStarts, cancelledStarts, overlap},
	} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			r := Explore(Config{Tasks: 1, Workers: 2, Retries: 1, Interruptions: 1, Faults: f, Budget: 1, Cancels: 1, Fine: true, Strict: true})
			var got []string
			for _, v := range r.Violations {
				got = append(got, v.Property)
			}
			names := make([]string, len(want))
			for i, p := range want {
				names[i] = string(p)
			}
			slices.Sort(got)
			slices.Sort(names)
			if !slices.Equal(got, names) || !r.Complete || !r.Live {
				t.Errorf("breaks %q, want %q (complete %v, live %v)", got, names, r.Complete, r.Live)
			}
		})
	}
}

// Tasks end in each way and pass through each state that the protocol has.
func TestReachesEveryState(t *testing.T) {
	t.Parallel()
	cfg := Config{Tasks: 1, Workers: 2, Retries: 1, Interruptions: 1}
	m := newModel(&cfg)
	m.start()
	for i := uint32(0); int(i) < min(len(m.blocks), 5_000); i++ {
		for c := free; c < classes; c++ {
			m.stepsOf(i, c)
		}
	}
	met := map[protocol.State]bool{protocol.StateDLQRecorded: true} // passed through within one transaction
	for _, r := range m.rows.all {
		met[r.task.State] = true
	}
	for _, s := range protocol.States() {
		if want := s != protocol.StatePending && s != protocol.StateWaitingApproval; met[s] != want {
			t.Errorf("state %s: reached %v, want %v", s, met[s], want)
		}
	}
}

// Bounds that make no sense are refused with the name of what is wrong.
func TestValidate(t *testing.T) {
	t.Parallel()
	good := Config{Tasks: 2, Workers: 2, Budget: 3, Mutant: AckFirst}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for word, cfg := range map[string]Config{
		"tasks":   {Tasks: 3, Workers: 2},
		"workers": {Tasks: 1},
		"budget":  {Tasks: 1, Workers: 2, Budget: 4},
		"mutant":  {Tasks: 1, Workers: 2, Mutant: "none such"},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
	if f, err := ParseFaults("worker-crash,flushall"); err != nil || f != WorkerCrash|FlushAll || f.String() != "worker-crash,flushall" {
		t.Errorf("%v, %v", f, err)
	}
	if _, err := ParseFaults("worker-crash,earthquake"); err == nil || !strings.Contains(err.Error(), "earthquake") {
		t.Error(err)
	}
}
