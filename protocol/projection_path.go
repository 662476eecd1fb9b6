package protocol

import "strings"

// Path writes a task's history in the vocabulary's words, as Moves has them:
// "queued -> running -> succeeded".
func (v Vocabulary) Path(states []State) string {
	moves := v.Moves(states)
	words := make([]string, len(moves))
	for i, m := range moves {
		words[i] = m[1]
	}
	return strings.Join(words, " -> ")
}

// Code returns the vocabulary's name for a code: c itself, unless it has
// another one.
func (v Vocabulary) Code(c Code) string {
	if v == VocabularyB2 && c == CodeInvalidTransition {
		return "WF_STATE_TRANSITION_INVALID"
	}
	return string(c)
}
