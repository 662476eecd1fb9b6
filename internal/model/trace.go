package main

import (
	"fmt"
	"strings"
)

// trace tells the shortest way to a violation.
func (s *search) trace(f finding) []string {
	var path []uint32
	for i := f.from; ; i = s.parent[i] {
		path = append(path, i)
		if i == 0 {
			break
		}
	}
	var out []string
	for k := len(path) - 1; k >= 0; k-- {
		to, bad := f.to, true
		if k > 0 {
			to, bad = s.states[path[k-1]], false
		}
		out = append(out, s.describe(s.states[path[k]], to, bad))
	}
	return out
}

// describe names the step from a state to another, by preference one that
// breaks something.
func (s *search) describe(from, to state, bad bool) string {
	a, b, _ := from.unpack()
	text := "?"
	s.successors(from, func(e edge) {
		if e.to != to || text != "?" && !(bad && e.bad != 0) {
			return
		}
		if text = e.global; text != "" {
			return
		}
		var parts []string
		for k, r := range []ref{e.first, e.second} {
			if r.n > 0 {
				i := []uint32{a, b}[k]
				parts = append(parts, s.who(i)+s.m.label(i, r.class, r.n-1))
			}
		}
		text = strings.Join(parts, " AND ")
	})
	return text
}

// who names a task by its row, since tasks trade places.
func (s *search) who(i uint32) string {
	if s.m.cfg.Tasks == 1 {
		return ""
	}
	t := &s.m.rows.all[s.m.blocks[i].row].task
	return fmt.Sprintf("task %s d%d: ", t.State, t.Delivery)
}
