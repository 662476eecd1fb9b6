package main

import (
	"fmt"
	"strings"
	"time"
)

// state is a whole state in 64 bits: two blocks of 26 bits, and the globals.
// Tasks are interchangeable: the larger block comes first.
type state uint64

const blockBits = 26

// globals are what does not belong to one task.
type globals struct {
	noGroup bool // the task stream's group is missing
	rebuild bool // an orchestrator has seen that and is about to drop the stream (mutant)
	// left of the budgets
	faults, cancels, releases uint8
}

func pack(a, b uint32, g globals) state {
	if a < b {
		a, b = b, a
	}
	v := uint64(g.faults) | uint64(g.cancels)<<2 | uint64(g.releases)<<4
	if g.noGroup {
		v |= 1 << 6
	}
	if g.rebuild {
		v |= 1 << 7
	}
	return state(v<<(2*blockBits) | uint64(a)<<blockBits | uint64(b))
}

func (s state) unpack() (a, b uint32, g globals) {
	const mask = 1<<blockBits - 1
	v := uint64(s) >> (2 * blockBits)
	return uint32(s>>blockBits) & mask, uint32(s) & mask, globals{
		v>>6&1 == 1, v>>7&1 == 1, uint8(v & 3), uint8(v >> 2 & 3), uint8(v >> 4 & 3),
	}
}

// edge is one step of the whole system.
type edge struct {
	to    state
	order uint8
	bad   uint8
	// the steps of the two tasks, for the trace
	first, second ref
	global        string
}

// ref names a step of a block.
type ref struct {
	class class
	n     int // 1 more than its index; 0: none
}

// search is a breadth-first exploration.
type search struct {
	m      *model
	states []state
	parent []uint32
	table  []uint32 // index + 1, open addressing
	edges  uint64
	found  map[property]finding
	order  []property
}

// finding is the first violation of a property: the edge from a state.
type finding struct {
	from  uint32
	to    state
	why   string
	count uint64
}

func (s *search) hash(v state) uint64 {
	h := uint64(v) * 0x9E3779B97F4A7C15
	h ^= h >> 32
	h *= 0xD6E8FEB86659FD93
	return (h ^ h>>29) & uint64(len(s.table)-1)
}

// find returns the place of a state in the table.
func (s *search) find(v state) (place uint64, index uint32, ok bool) {
	for place = s.hash(v); s.table[place] != 0; place = (place + 1) & uint64(len(s.table)-1) {
		if i := s.table[place] - 1; s.states[i] == v {
			return place, i, true
		}
	}
	return place, 0, false
}

func (s *search) visit(v state, parent uint32) {
	place, _, ok := s.find(v)
	if ok {
		return
	}
	s.states, s.parent = append(s.states, v), append(s.parent, parent)
	s.table[place] = uint32(len(s.states))
	if len(s.states)*5 > len(s.table)*3 {
		s.table = make([]uint32, 2*len(s.table))
		for i, v := range s.states {
			place, _, _ := s.find(v)
			s.table[place] = uint32(i) + 1
		}
	}
}

// Result is what an exploration found.
type Result struct {
	Config Config
	// Complete: every reachable state was seen.
	Complete bool
	// Live: from every state, the schedule finishes all tasks. Only if complete.
	Live                 bool
	States, Blocks, Rows int
	Edges                uint64
	Took                 time.Duration
	Violations           []Violation
}

// Violation is a property that does not hold, with a shortest trace.
type Violation struct {
	Property, Why string
	Trace         []string
	Edges         uint64
}

// String is the property with the trace, a step a line.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "    VIOLATION: %s: %s\n", v.Property, v.Why)
	for i, l := range v.Trace {
		fmt.Fprintf(&b, "      %2d. %s\n", i+1, l)
	}
	return b.String()
}

// Explore visits every state within the bounds of cfg.
func Explore(cfg Config) *Result {
	began := time.Now()
	m := newModel(&cfg)
	s := &search{m: m, table: make([]uint32, 1<<16), found: map[property]finding{}}
	a, b := m.start(), uint32(0)
	if cfg.Tasks == 2 {
		b = a
	}
	s.visit(pack(a, b, globals{faults: uint8(cfg.Budget), cancels: uint8(cfg.Cancels), releases: uint8(cfg.Releases)}), 0)
	complete := true
	for i := uint32(0); int(i) < len(s.states); i++ {
		if cfg.Stop && len(s.found) > 0 || cfg.MaxStates > 0 && len(s.states) > cfg.MaxStates || len(m.blocks) >= 1<<blockBits-1<<16 {
			complete = false
			break
		}
		s.successors(s.states[i], func(e edge) {
			s.edges++
			if e.bad != 0 {
				s.note(i, e)
			}
			s.visit(e.to, i)
		})
	}
	r := &Result{Config: cfg, Complete: complete}
	if complete {
		r.Live = s.live()
	}
	for _, p := range s.order {
		f := s.found[p]
		r.Violations = append(r.Violations, Violation{string(p), f.why, s.trace(f), f.count})
	}
	r.States, r.Blocks, r.Rows, r.Edges, r.Took = len(s.states), len(m.blocks), len(m.rows.all), s.edges, time.Since(began)
	return r
}

func (s *search) note(from uint32, e edge) {
	v := s.m.bad[e.bad]
	f, ok := s.found[v.prop]
	if !ok {
		f = finding{from: from, to: e.to, why: v.why}
		s.order = append(s.order, v.prop)
	}
	f.count++
	s.found[v.prop] = f
}

// successors calls yield for every step from a state.
func (s *search) successors(from state, yield func(edge)) {
	a, b, g := from.unpack()
	m := s.m
	idle := int(m.slots[a])+int(m.slots[b]) < m.cfg.Workers
	for c := free; c < classes; c++ {
		if c == faulty && g.faults == 0 || c == cancelling && g.cancels == 0 || c == releasing && g.releases == 0 {
			continue
		}
		for i, st := range m.stepsOf(a, c) {
			if h, ok := g.take(st, idle); ok {
				yield(edge{pack(st.to, b, h), st.order, st.bad, ref{c, i + 1}, ref{}, ""})
			}
		}
		for i, st := range m.stepsOf(b, c) {
			if h, ok := g.take(st, idle); ok {
				yield(edge{pack(a, st.to, h), st.order, st.bad, ref{}, ref{c, i + 1}, ""})
			}
		}
	}
	if g.faults > 0 {
		s.together(a, b, g, idle, yield)
	}
	s.whole(a, b, g, yield)
}

// together makes the faults that strike both tasks at once.
func (s *search) together(a, b uint32, g globals, idle bool, yield func(edge)) {
	for i, x := range s.m.stepsOf(a, faulty) {
		if x.need&joint == 0 {
			continue
		}
		for j, y := range s.m.stepsOf(b, faulty) {
			if y.fault != x.fault || y.need&joint == 0 {
				continue
			}
			h, ok := g.take(x, idle)
			if _, also := g.take(y, idle); ok && also {
				yield(edge{pack(x.to, y.to, h), never, max(x.bad, y.bad), ref{faulty, i + 1}, ref{faulty, j + 1}, ""})
			}
		}
	}
}

// take pays for a step, if it is possible.
func (g globals) take(st step, idle bool) (globals, bool) {
	if st.need&needIdle != 0 && !idle || st.need&needGroup != 0 && g.noGroup || st.need&needNoGroup != 0 && !g.noGroup {
		return g, false
	}
	if st.fault != 0 {
		if g.faults == 0 {
			return g, false
		}
		g.faults--
	}
	if st.need&needCancel != 0 {
		if g.cancels == 0 {
			return g, false
		}
		g.cancels--
	}
	if st.need&needRelease != 0 {
		if g.releases == 0 {
			return g, false
		}
		g.releases--
	}
	return g, true
}

// whole makes the steps that concern all tasks: Redis loses something, and an
// orchestrator makes the group anew.
func (s *search) whole(a, b uint32, g globals, yield func(edge)) {
	m := s.m
	both := func(f Fault, h globals, order uint8, what string) {
		x, y := m.lossOf(a, f), m.lossOf(b, f)
		yield(edge{pack(x.to, y.to, h), order, max(x.bad, y.bad), ref{}, ref{}, what})
	}
	if g.noGroup {
		h := g
		h.noGroup = false
		yield(edge{pack(a, b, h), orderRebuild, 0, ref{}, ref{}, "WATCH; the group is missing: DEL, XGROUP CREATE 0"})
		if m.cfg.Mutant == RebuildTwice && !g.rebuild {
			h = g
			h.rebuild = true
			yield(edge{pack(a, b, h), never, 0, ref{}, ref{}, "an orchestrator sees that the group is missing"})
		}
	}
	if g.rebuild {
		h := g
		h.rebuild, h.noGroup = false, false
		both(0, h, never, "that orchestrator: DEL, XGROUP CREATE 0")
	}
	if g.faults == 0 {
		return
	}
	h := g
	h.faults--
	if m.cfg.Faults&ResultGroupLost != 0 {
		both(ResultGroupLost, h, never, "FAULT the group of stream:result is lost, and made anew")
	}
	h.noGroup = true
	if m.cfg.Faults&FlushAll != 0 {
		both(FlushAll, h, never, "FAULT FLUSHALL")
	}
	if m.cfg.Faults&TaskGroupLost != 0 && !g.noGroup {
		both(TaskGroupLost, h, never, "FAULT the group of the task stream is lost")
	}
}

// live checks that the schedule leads from every state to one in which all
// tasks are finished. A state from which it does not is a violation.
func (s *search) live() bool {
	ok := make([]bool, len(s.states))
	seen := make([]uint32, len(s.states)) // round + 1
	var chain []uint32
	for i := range s.states {
		chain = chain[:0]
		good := false
		for j := uint32(i); ; {
			if ok[j] {
				good = true
				break
			}
			a, b, _ := s.states[j].unpack()
			if s.m.finished[a] && s.m.finished[b] {
				good = true
				chain = append(chain, j)
				break
			}
			if seen[j] == uint32(i)+1 {
				break // the schedule goes in a circle
			}
			seen[j] = uint32(i) + 1
			chain = append(chain, j)
			next, any := s.scheduled(s.states[j])
			if !any {
				break
			}
			_, j, _ = s.find(next)
		}
		if !good {
			s.order = append(s.order, notLive)
			s.found[notLive] = finding{from: s.parent[i], to: s.states[i], why: "no scheduled step goes on from here", count: 1}
			return false
		}
		for _, j := range chain {
			ok[j] = true
		}
	}
	return true
}

// scheduled is the step that the schedule makes.
func (s *search) scheduled(from state) (to state, ok bool) {
	best := uint8(never)
	s.successors(from, func(e edge) {
		if e.order < best {
			best, to, ok = e.order, e.to, true
		}
	})
	return to, ok
}
