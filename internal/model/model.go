package main

import "slices"

// model holds what is known of single tasks: their rows, their blocks, and the
// steps of each block. Whole states are pairs of blocks; see search.go.
type model struct {
	cfg    *Config
	rows   *rows
	blocks []block
	index  map[block]uint32
	// steps are made when they are first asked for.
	steps [][classes][]step
	made  []uint8 // a bit for each class
	// finished: the task is terminal and nothing is left of it; slots as in
	// block.
	finished []bool
	slots    []uint8
	lost     map[lossKey]loss
	bad      []violation // by step.bad
	badIndex map[violation]uint8
}

type violation struct {
	prop property
	why  string
}

// lossKey asks what a fault of all of Redis does to a block.
type lossKey struct {
	block uint32
	fault Fault // 0: a rebuild drops the stream
}

type loss struct {
	to  uint32
	bad uint8
}

func newModel(cfg *Config) *model {
	m := &model{
		cfg: cfg, rows: newRows(cfg), index: map[block]uint32{}, lost: map[lossKey]loss{},
		bad: []violation{{}}, badIndex: map[violation]uint8{},
	}
	m.intern(block{none: true}) // no task: the second one of a run with one task
	m.finished[0], m.made[0] = true, 1<<classes-1
	return m
}

// start is a task that was just enqueued: committed with its outbox row.
func (m *model) start() uint32 {
	w := work{m: m}
	w.from = &block{}
	w.addBox(box{1, boxAdd})
	w.settle()
	return m.intern(w.block)
}

// ghosts tells whether blocks remember which deliveries were ever added.
func (m *model) ghosts() bool { return m.cfg.Fine || m.cfg.Mutant != "" }

func (m *model) intern(b block) uint32 {
	i, ok := m.index[b]
	if !ok {
		i = uint32(len(m.blocks))
		m.index[b] = i
		m.blocks = append(m.blocks, b)
		m.steps, m.made = append(m.steps, [classes][]step{}), append(m.made, 0)
		m.finished = append(m.finished, m.rows.all[b.row].task.State.Terminal() && b.empty())
		m.slots = append(m.slots, uint8(b.slots()))
	}
	return i
}

func (m *model) badness(p property, why string) uint8 {
	if p == "" {
		return 0
	}
	v := violation{p, why}
	i, ok := m.badIndex[v]
	if !ok {
		if len(m.bad) == 255 {
			v.why = "…"
		}
		i = uint8(min(len(m.bad), 254))
		m.badIndex[v] = i
		if len(m.bad) < 255 {
			m.bad = append(m.bad, v)
		}
	}
	return i
}

// class groups steps by what they cost, so that those that nobody can pay for
// any more are not made.
type class uint8

const (
	free class = iota
	faulty
	cancelling
	releasing
	classes
)

func classOf(n need, f Fault) class {
	switch {
	case f != 0:
		return faulty
	case n&needCancel != 0:
		return cancelling
	case n&needRelease != 0:
		return releasing
	}
	return free
}

func (m *model) stepsOf(i uint32, c class) []step {
	if m.made[i]>>c&1 == 0 {
		if m.made[i] |= 1 << c; m.rows.all[m.blocks[i].row].task.Delivery > maxD {
			return nil // reported when it came about
		}
		g := generator{m: m, from: m.blocks[i], class: c}
		g.all()
		m.steps[i][c] = slices.Clip(g.out)
	}
	return m.steps[i][c]
}

// label describes a step of a block.
func (m *model) label(i uint32, c class, n int) string {
	g := generator{m: m, from: m.blocks[i], class: c, names: true}
	g.all()
	return g.labels[n]
}

func (m *model) lossOf(i uint32, f Fault) loss {
	k := lossKey{i, f}
	l, ok := m.lost[k]
	if !ok {
		var b block
		var bad property
		var why string
		if i == 0 {
			return loss{}
		}
		if f == 0 {
			b, bad, why = m.drop(m.blocks[i])
		} else {
			b, bad, why = m.lose(m.blocks[i], f)
		}
		l = loss{m.intern(b), m.badness(bad, why)}
		m.lost[k] = l
	}
	return l
}
