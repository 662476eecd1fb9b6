package protocol_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-dev/penstock/protocol"
)

// run is one execution that reserved an effect.
type effectRun struct {
	by    protocol.EffectHolder
	token protocol.ID
	sent  bool // its effect has happened
	told  bool // the ledger knows
}

// effectModel has executions reserve one effect and die at any point. The receiver
// counts.
type effectModel struct {
	e        protocol.Effect
	delivery int64
	current  *effectRun // granted to the live execution
	late     []*effectRun
	happened int
	tokens   byte
	now      time.Time
}

func (m *effectModel) holder() protocol.EffectHolder {
	return protocol.EffectHolder{TaskID: protocol.ID{1}, Delivery: m.delivery, WorkerID: "w"}
}

// live tells whether the ledger's holder is the live execution.
func (m *effectModel) live() bool { return m.e.Holder == m.holder() }

func (m *effectModel) reserve(t *rapid.T) {
	r := &effectRun{by: m.holder(), token: protocol.ID{2, m.tokens}}
	if m.current != nil && rapid.Bool().Draw(t, "reply lost") {
		r.token = m.current.token
	} else {
		m.tokens++
		r.token = protocol.ID{2, m.tokens}
	}
	var j *protocol.EffectJudgement
	again := m.current != nil && r.token == m.current.token
	v := m.e.Reserve(r.by, r.token, m.live(), nil, m.now)
	if v == protocol.EffectInDoubt && rapid.Bool().Draw(t, "check") {
		j = &protocol.EffectJudgement{Token: m.e.Token, Resolution: protocol.CheckedNotDone}
		if m.happened > 0 {
			j.Resolution, j.Result = protocol.CheckedDone, []byte("1")
		}
		v = m.e.Reserve(r.by, r.token, m.live(), j, m.now)
	}
	switch {
	case again && v != protocol.EffectGranted && v != protocol.EffectKnown:
		t.Fatalf("a repeated reservation comes to %s", v)
	case v == protocol.EffectGranted && !again:
		m.current = r
	case v == protocol.EffectKnown && m.happened == 0:
		t.Fatal("done, but it never happened")
	case v == protocol.EffectBusy && m.current == nil:
		t.Fatal("busy, but no live execution has it")
	}
}

func (m *effectModel) send() {
	if m.current != nil && !m.current.sent {
		m.current.sent = true
		m.happened++
	}
}

func (m *effectModel) complete(t *rapid.T, r *effectRun) {
	if v := m.e.Complete(r.by, r.token, []byte("1"), "", m.now); v == protocol.Rejected {
		t.Fatalf("what happened once is refused: %+v", m.e)
	}
	r.told = true
}

// lose ends the live execution; what it did may be told later.
func (m *effectModel) lose() {
	if m.current != nil && m.current.sent {
		m.late = append(m.late, m.current)
	}
	m.current = nil
	m.delivery++
}

func (m *effectModel) person(t *rapid.T) {
	if m.e.State == "" {
		return
	}
	as := protocol.ResolvedNotDone
	if m.happened > 0 {
		as = protocol.ResolvedDone
	}
	v, err := m.e.Resolve(as, "ada", "looked", []byte("1"), m.live(), m.now)
	doubt := m.e.State != protocol.EffectReserved || !m.live()
	if err == nil && v == protocol.Applied && !doubt {
		t.Fatal("resolved under the hands of a live execution")
	}
}

// However executions die, and whoever tells the truth about it, the effect happens
// once at most, and what the ledger says is so.
func TestEffectHappensOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &effectModel{delivery: 1, now: time.Unix(1, 0)}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": m.reserve,
			"send":    func(*rapid.T) { m.send() },
			"complete": func(t *rapid.T) {
				if m.current != nil && m.current.sent {
					m.complete(t, m.current)
				}
			},
			"release": func(t *rapid.T) {
				if m.current != nil && !m.current.sent {
					if m.e.Release(m.current.token) == protocol.Rejected {
						t.Fatal("what did not happen is refused")
					}
					m.current = nil
				}
			},
			"lose": func(*rapid.T) { m.lose() },
			"late": func(t *rapid.T) {
				if len(m.late) > 0 {
					m.complete(t, m.late[0])
				}
			},
			"person": m.person,
			"": func(t *rapid.T) {
				m.now = m.now.Add(time.Second)
				switch {
				case m.happened > 1:
					t.Fatalf("it happened %d times", m.happened)
				case m.e.State == protocol.EffectDone && m.happened != 1:
					t.Fatal("done, but it never happened")
				case m.e.State == protocol.EffectFree && m.happened != 0:
					t.Fatal("free, but it happened")
				case m.e.Conflicts != 0:
					t.Fatalf("conflicts where everybody tells the truth: %+v", m.e.History)
				case m.e.State != "" && len(m.e.Users) != 1:
					t.Fatalf("users %v", m.e.Users)
				}
			},
		})
	})
}

func TestEffectConflicts(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	first := protocol.EffectHolder{TaskID: protocol.ID{1}, Delivery: 1, WorkerID: "a"}
	second := protocol.EffectHolder{TaskID: protocol.ID{1}, Delivery: 2, WorkerID: "b"}
	t1, t2 := protocol.ID{0xa}, protocol.ID{0xb}
	reserved := func() *protocol.Effect {
		e := &protocol.Effect{}
		if e.Reserve(first, t1, false, nil, now) != protocol.EffectGranted {
			t.Fatal("a new effect is not granted")
		}
		return e
	}
	t.Run("run again, then the first comes late", func(t *testing.T) {
		t.Parallel()
		e := reserved()
		if v := e.Reserve(second, t2, false, &protocol.EffectJudgement{Token: t2, Resolution: protocol.ResolvedRunAgain}, now); v != protocol.EffectInDoubt {
			t.Fatalf("a judgement about another reservation comes to %s", v)
		}
		if v := e.Reserve(second, t2, false, &protocol.EffectJudgement{Token: t1, Resolution: protocol.ResolvedRunAgain}, now); v != protocol.EffectGranted || e.Runs != 2 {
			t.Fatalf("%s, %d runs", v, e.Runs)
		}
		if v := e.Complete(first, t1, []byte("1"), "", now); v != protocol.Rejected || e.Conflicts != 1 || e.State != protocol.EffectReserved {
			t.Errorf("the late run: %v, %+v", v, e)
		}
		if v := e.Release(t1); v != protocol.Rejected {
			t.Errorf("a release by the late run: %v", v)
		}
		if v := e.Complete(second, t2, []byte("2"), "", now); v != protocol.Applied || string(e.Result) != "2" {
			t.Errorf("the second run: %v, %+v", v, e)
		}
		if v := e.Complete(second, t2, []byte("3"), "", now); v != protocol.Repeated || string(e.Result) != "2" {
			t.Errorf("its repeat: %v, %+v", v, e)
		}
	})
	t.Run("a person was wrong", func(t *testing.T) {
		t.Parallel()
		e := reserved()
		if v, err := e.Resolve(protocol.ResolvedNotDone, "ada", "no trace of it", nil, false, now); v != protocol.Applied || err != nil {
			t.Fatal(v, err)
		}
		if v := e.Complete(first, t1, []byte("1"), "", now); v != protocol.Applied || e.State != protocol.EffectDone || e.Conflicts != 1 {
			t.Errorf("%v, %+v", v, e)
		}
	})
	t.Run("not in doubt", func(t *testing.T) {
		t.Parallel()
		e := reserved()
		if _, err := e.Resolve(protocol.ResolvedDone, "ada", "", nil, true, now); err == nil || !strings.Contains(err.Error(), "running") {
			t.Errorf("resolved while it runs: %v", err)
		}
		if v := e.Reserve(first, t2, true, nil, now); v != protocol.EffectBusy {
			t.Errorf("a second call of the same execution comes to %s", v)
		}
		e.Complete(first, t1, nil, "lost", now)
		if v, err := e.Resolve(protocol.ResolvedDone, "ada", "", []byte("7"), false, now); v != protocol.Repeated || err != nil || e.Result != nil {
			t.Errorf("resolved as what it is: %v, %v", v, err)
		}
		if _, err := e.Resolve(protocol.ResolvedNotDone, "ada", "", nil, false, now); err == nil {
			t.Error("a done effect was undone")
		}
		if v := e.Release(t1); v != protocol.Rejected {
			t.Errorf("a done effect was released: %v", v)
		}
	})
	t.Run("history is bounded", func(t *testing.T) {
		t.Parallel()
		e := reserved()
		for range 100 {
			e.Complete(first, t2, nil, "", now)
		}
		if e.Conflicts != 100 || len(e.History) != 20 {
			t.Errorf("%d conflicts, %d notes", e.Conflicts, len(e.History))
		}
	})
}

func TestCheckEffect(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"charge": true, "mail to ada@example.com": true, "é": true, strings.Repeat("x", 128): true,
		"": false, strings.Repeat("x", 129): false, strings.Repeat("k", 10_000): false, "a\x00": false, "a\nb": false, "\xff": false,
	} {
		if err := protocol.CheckEffectName(name); (err == nil) != ok {
			t.Errorf("name %.20q: %v", name, err)
		}
	}
	for result, ok := range map[string]bool{
		"null": true, `{"a":[1]}`: true, `"\\u0000"`: true, strings.Repeat("[", 1000) + strings.Repeat("]", 1000): true,
		"": false, "{": false, `"\u0000"`: false, "\"\xff\"": false, strings.Repeat("[", 1001) + strings.Repeat("]", 1001): false,
		`"` + strings.Repeat("x", protocol.MaxEffectResult-2) + `"`: true, `"` + strings.Repeat("x", protocol.MaxEffectResult) + `"`: false,
	} {
		if err := protocol.CheckEffectResult([]byte(result)); (err == nil) != ok {
			t.Errorf("result %.20q: %v", result, err)
		}
	}
}
