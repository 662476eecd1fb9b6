package protocol

import (
	"slices"
	"strings"
	"testing"
)

// contractMoves is the table of the contract, section 2, written from its text.
// "-" stands for no state yet.
const contractMoves = `
- > pending waiting_approval queued
pending > queued waiting_approval cancelled
waiting_approval > pending queued cancelled
queued > queued running interrupted cancelled
running > succeeded retrying waiting_approval dlq_pending interrupted cancelled
retrying > retrying running dlq_pending interrupted cancelled
interrupted > queued dlq_pending cancelled
dlq_pending > dlq_recorded
dlq_recorded > failed
succeeded >
failed >
cancelled >
`

var contractStates = []State{
	"pending", "waiting_approval", "queued", "running", "retrying", "interrupted",
	"dlq_pending", "dlq_recorded", "succeeded", "failed", "cancelled",
}

func parseContractMoves() map[pair]bool {
	m := make(map[pair]bool)
	for line := range strings.Lines(strings.TrimSpace(contractMoves)) {
		words := strings.Fields(line)
		from := State(words[0])
		if from == "-" {
			from = StateNone
		}
		for _, to := range words[2:] {
			m[pair{from, State(to)}] = true
		}
	}
	return m
}

func TestTransitionTable(t *testing.T) {
	t.Parallel()
	want := parseContractMoves()
	if len(want) != 29 {
		t.Fatalf("the test's own table has %d moves, want 29", len(want))
	}
	all := append([]State{StateNone, "unheard_of"}, contractStates...)
	for _, from := range all {
		for _, to := range all {
			if got := Allowed(from, to); got != want[pair{from, to}] {
				t.Errorf("Allowed(%q, %q) = %v, want %v", from, to, got, !got)
			}
		}
	}
}

func TestTransitionsListsEachMoveOnce(t *testing.T) {
	t.Parallel()
	want := parseContractMoves()
	seen := make(map[pair]bool)
	for _, tr := range Transitions() {
		p := pair{tr.From, tr.To}
		if seen[p] {
			t.Errorf("%q → %q is listed twice", tr.From, tr.To)
		}
		if !want[p] {
			t.Errorf("%q → %q is not in the contract", tr.From, tr.To)
		}
		if tr.Trigger == "" {
			t.Errorf("%q → %q has no trigger", tr.From, tr.To)
		}
		seen[p] = true
	}
	if len(seen) != len(want) {
		t.Errorf("%d moves are listed, want %d", len(seen), len(want))
	}
	Transitions()[0] = Transition{StateSucceeded, StateFailed, "meddling"}
	if Allowed(StateSucceeded, StateFailed) || Transitions()[0].From == StateSucceeded {
		t.Error("a caller can change the table")
	}
}

func TestStates(t *testing.T) {
	t.Parallel()
	if !slices.Equal(States(), contractStates) {
		t.Errorf("States() = %q, want %q", States(), contractStates)
	}
	for _, s := range contractStates {
		terminal := s == "succeeded" || s == "failed" || s == "cancelled"
		if s.Terminal() != terminal {
			t.Errorf("%s.Terminal() = %v", s, !terminal)
		}
		if !s.Valid() {
			t.Errorf("%s is not valid", s)
		}
		leaves := slices.ContainsFunc(Transitions(), func(tr Transition) bool { return tr.From == s })
		if leaves == terminal {
			t.Errorf("%s: terminal is %v, but a move leaves it: %v", s, terminal, leaves)
		}
	}
	for _, s := range []State{StateNone, "Pending", "ready", " queued"} {
		if s.Valid() || s.Terminal() {
			t.Errorf("%q is taken for a state", s)
		}
	}
}

// Every state can be reached, and from every state a terminal one.
func TestNoStateIsADeadEnd(t *testing.T) {
	t.Parallel()
	reach := func(from State, reverse bool) map[State]bool {
		seen := map[State]bool{from: true}
		for todo := []State{from}; len(todo) > 0; todo = todo[1:] {
			for _, tr := range Transitions() {
				a, b := tr.From, tr.To
				if reverse {
					a, b = b, a
				}
				if a == todo[0] && !seen[b] {
					seen[b] = true
					todo = append(todo, b)
				}
			}
		}
		return seen
	}
	fromStart := reach(StateNone, false)
	toEnd := map[State]bool{}
	for _, s := range contractStates {
		if s.Terminal() {
			for k := range reach(s, true) {
				toEnd[k] = true
			}
		}
	}
	for _, s := range contractStates {
		if !fromStart[s] {
			t.Errorf("%s can't be reached", s)
		}
		if !toEnd[s] {
			t.Errorf("no terminal state can be reached from %s", s)
		}
	}
}

func TestMovePanicsOutsideTheTable(t *testing.T) {
	t.Parallel()
	want := parseContractMoves()
	for _, from := range contractStates {
		for _, to := range contractStates {
			func() {
				defer func() {
					if refused := recover() != nil; refused == want[pair{from, to}] {
						t.Errorf("move %s → %s: refused is %v", from, to, refused)
					}
				}()
				task := Task{State: from, Attempt: 1, Delivery: 1}
				task.move(to, EventQueued, testEnv(), ActorAPI)
			}()
		}
	}
}
