package protocol

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The table of the contract, section 12; "-" is "the state before".
const contractWords = `
state            b2           men       p3c             tqp
pending          queued       pending   queued          queued
waiting_approval queued       pending   queued          waiting_approval
queued           queued       ready     queued          queued
running          running      running   running         running
retrying         retrying     ready     retry_scheduled running
interrupted      running      ready     interrupted     running
dlq_pending      dlq_pending  -         -               -
dlq_recorded     dlq_recorded -         -               -
succeeded        succeeded    succeeded succeeded       succeeded
failed           failed       failed    failed          failed
cancelled        cancelled    cancelled cancelled       failed
`

func contractWordsTable() map[Vocabulary]map[State]string {
	lines := strings.Split(strings.TrimSpace(contractWords), "\n")
	head := strings.Fields(lines[0])[1:]
	m := map[Vocabulary]map[State]string{}
	for i, v := range head {
		m[Vocabulary(v)] = map[State]string{}
		for _, line := range lines[1:] {
			words := strings.Fields(line)
			m[Vocabulary(v)][State(words[0])] = words[i+1]
		}
	}
	return m
}

func TestProjectionTable(t *testing.T) {
	t.Parallel()
	table := contractWordsTable()
	for _, v := range []Vocabulary{VocabularyB2, VocabularyMEN, VocabularyP3C, VocabularyTQP} {
		if len(table[v]) != len(contractStates) {
			t.Fatalf("%s: the test's table has %d states", v, len(table[v]))
		}
		for _, s := range contractStates {
			want := table[v][s]
			if want == "-" {
				want = "before"
			}
			if got := v.Project(s, "before"); got != want {
				t.Errorf("%s: %s is %q, want %q", v, s, got, want)
			}
		}
		for _, s := range []State{StateNone, "ready", "Running"} {
			if got := v.Project(s, "before"); got != "" {
				t.Errorf("%s: unknown state %q is %q, want none", v, s, got)
			}
		}
	}
	if got := Vocabulary("cobol").Project(StateRunning, "before"); got != "" {
		t.Errorf("an unknown vocabulary says %q", got)
	}
}

// moves writes pairs as "a→b b→c".
func moves(pairs [][2]string) string {
	var out []string
	for _, p := range pairs {
		out = append(out, p[0]+"→"+p[1])
	}
	return strings.Join(out, " ")
}

func TestMoves(t *testing.T) {
	t.Parallel()
	dead := []State{"queued", "running", "dlq_pending", "dlq_recorded", "failed"}
	lost := []State{"queued", "running", "interrupted", "queued", "running", "interrupted", "dlq_pending", "dlq_recorded", "failed"}
	retried := []State{"pending", "queued", "running", "retrying", "retrying", "running", "succeeded"}
	guarded := []State{"waiting_approval", "pending", "queued", "cancelled"}
	for _, tt := range []struct {
		v      Vocabulary
		states []State
		want   string
	}{
		{VocabularyMEN, dead, "→ready ready→running running→failed"},
		{VocabularyP3C, dead, "→queued queued→running running→failed"},
		{VocabularyTQP, dead, "→queued queued→running running→failed"},
		{VocabularyB2, dead, "→queued queued→running running→dlq_pending dlq_pending→dlq_recorded dlq_recorded→failed"},
		{VocabularyMEN, lost, "→ready ready→running running→ready ready→running running→ready ready→failed"},
		{VocabularyP3C, lost, "→queued queued→running running→interrupted interrupted→queued queued→running running→interrupted interrupted→failed"},
		{VocabularyMEN, retried, "→pending pending→ready ready→running running→ready ready→running running→succeeded"},
		{VocabularyB2, retried, "→queued queued→running running→retrying retrying→running running→succeeded"},
		{VocabularyP3C, retried, "→queued queued→running running→retry_scheduled retry_scheduled→running running→succeeded"},
		{VocabularyTQP, retried, "→queued queued→running running→succeeded"},
		{VocabularyMEN, guarded, "→pending pending→ready ready→cancelled"},
		{VocabularyB2, guarded, "→queued queued→cancelled"},
		{VocabularyTQP, guarded, "→waiting_approval waiting_approval→queued queued→failed"},
		{VocabularyMEN, nil, ""},
		{"cobol", dead, ""},
	} {
		if got := moves(tt.v.Moves(tt.states)); got != tt.want {
			t.Errorf("%s, %s:\n got %s\nwant %s", tt.v, tt.states, got, tt.want)
		}
	}
}

// MEN's own table of legal moves (its short form), with a task's creation.
func TestMENMovesAreMENs(t *testing.T) {
	t.Parallel()
	legal := strings.Fields("→pending →ready pending→ready ready→running running→succeeded running→failed " +
		"running→ready pending→cancelled ready→cancelled running→cancelled")
	// Beyond MEN: what its model lacks. A handler may ask for approval, and an
	// interrupted task may be given up or leave a retry's state for it.
	beyond := strings.Fields("running→pending ready→failed")
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(m.actions())
		pairs := VocabularyMEN.Moves(statesOf(m.events))
		for i, p := range pairs {
			if p[0] == p[1] {
				t.Fatalf("move %d shows %s twice", i, p[0])
			}
			if i > 0 && pairs[i-1][1] != p[0] {
				t.Fatalf("move %d starts from %s, not %s", i, p[0], pairs[i-1][1])
			}
			if w := moves([][2]string{p}); !slices.Contains(legal, w) && !slices.Contains(beyond, w) {
				t.Fatalf("MEN can't show %s", w)
			}
		}
	})
}
