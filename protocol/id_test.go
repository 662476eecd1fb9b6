package protocol

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestIDRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := genID().Draw(t, "id")
		s := id.String()
		if back, err := ParseID(s); err != nil || back != id {
			t.Fatalf("ParseID(%q) = %s, %v", s, back, err)
		}
		if len(s) != 36 || s != strings.ToLower(s) {
			t.Fatalf("String() = %q", s)
		}
	})
}

func TestParseIDRefuses(t *testing.T) {
	t.Parallel()
	const ok = "019c945a-c800-7000-8000-00000000002a"
	if id, err := ParseID(ok); err != nil || id != testID(0x2a) || id.Version() != 7 {
		t.Fatalf("ParseID(%q) = %v, %v", ok, id, err)
	}
	for _, s := range []string{
		"", "-", ok[:35], ok + "0", " " + ok, ok + "\n", "{" + ok + "}", "urn:uuid:" + ok, strings.ToUpper(ok),
		"019C945a-c800-7000-8000-00000000002a", strings.ReplaceAll(ok, "-", ""), strings.ReplaceAll(ok, "-", "_"),
		"019c945ac-800-7000-8000-00000000002a", "019c945a-c800-7000-8000-0000000000-a", "019c945g-c800-7000-8000-00000000002a",
		"0x9c945a-c800-7000-8000-00000000002a", "+19c945a-c800-7000-8000-00000000002a", "019c945a-c800-7000-8000-0000000000é",
		strings.Repeat("-", 36), strings.Repeat("\xff", 36), strings.Repeat("x", 1000),
	} {
		if id, err := ParseID(s); err == nil || !id.IsZero() || len(err.Error()) > 400 {
			t.Errorf("ParseID(%q) = %s, %v", s, id, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.StringMatching(`[0-9a-fA-F{}-]{30,40}`), rapid.StringMatching(`[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}`), rapid.String()).Draw(t, "s")
		if id, err := ParseID(s); err == nil && id.String() != s {
			t.Fatalf("two forms of one id: %q and %s", s, id)
		}
	})
}

func TestIDParts(t *testing.T) {
	t.Parallel()
	id := testID(1)
	if id.IsZero() || !(ID{}).IsZero() {
		t.Error("IsZero is wrong")
	}
	if want := time.UnixMilli(0x019c945ac800).UTC(); id.Time() != want {
		t.Errorf("Time() = %s, want %s", id.Time(), want)
	}
	if id.Named() {
		t.Error("a version 7 id of today is taken for a name")
	}
}

func TestNameIDGolden(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ tenant, name, want string }{
		{"default", "task_20260225_0001", "ffd89436-92a7-8912-82bc-0c226b2ba3db"},
		{"tenant_a", "task_20260225_0001", "ffc6c769-ff23-86e6-b80c-e9a2ab08b4f0"},
	} {
		if got := NameID(tt.tenant, tt.name).String(); got != tt.want {
			t.Errorf("NameID(%q, %q) = %s, want %s", tt.tenant, tt.name, got, tt.want)
		}
	}
	if got, want := DLQID(testID(0x2a)).String(), "fea07738-73f5-8a03-8d4b-933254120fcc"; got != want {
		t.Errorf("DLQID = %s, want %s", got, want)
	}
}

func TestNameID(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tenant, name := genName(0, 255).Draw(t, "tenant"), genName(1, 255).Draw(t, "name")
		id := NameID(tenant, name)
		if id != NameID(tenant, name) {
			t.Fatal("not deterministic")
		}
		if id[0] != 0xff || id.Version() != 8 || id[8]>>6 != 2 || !id.Named() {
			t.Fatalf("%s is not a version 8 UUID that starts with ff", id)
		}
		if back, err := ParseID(id.String()); err != nil || back != id {
			t.Fatalf("%s does not parse: %v", id, err)
		}
		// The same characters, divided otherwise, are another name.
		whole := tenant + name
		cut := rapid.IntRange(0, len(whole)).Draw(t, "cut")
		if cut != len(tenant) && NameID(whole[:cut], whole[cut:]) == id {
			t.Fatalf("(%q, %q) and (%q, %q) are one", tenant, name, whole[:cut], whole[cut:])
		}
	})
}

func TestNamesDoNotCollide(t *testing.T) {
	t.Parallel()
	parts := []string{"", "a", "b", "ab", "ba", "a:b", "1:a", "1:a1:b", "a1:b", "1:", ":", "0:", "task", "4:task", "a\x00b", "\x00", "a b", "A", "a ", "dlq"}
	seen := map[ID][2]string{}
	for _, tenant := range parts {
		for _, name := range parts {
			id := NameID(tenant, name)
			if old, ok := seen[id]; ok {
				t.Errorf("(%q, %q) and %q are one", tenant, name, old)
			}
			seen[id] = [2]string{tenant, name}
		}
	}
}

func TestDLQID(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := genID().Draw(t, "a"), genID().Draw(t, "b")
		d := DLQID(a)
		if d[0] != 0xfe || d.Version() != 8 || d[8]>>6 != 2 || d.Named() || d != DLQID(a) {
			t.Fatalf("DLQID = %s", d)
		}
		if a != b && d == DLQID(b) {
			t.Fatal("two tasks share a dead letter")
		}
	})
}

// v7 makes a version 7 UUID of the given moment.
func v7(at time.Time) ID {
	id := testID(9)
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	return id
}

func TestResolveTaskID(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tt := range []struct {
		name  string
		at    time.Duration
		asIs  bool
		stale bool
	}{
		{"now", 0, true, false},
		{"24 h old", -day, true, false},
		{"a bit older", -day - time.Millisecond, false, true},
		{"1 h ahead", time.Hour, true, false},
		{"a bit further", time.Hour + time.Millisecond, false, true},
		{"years old", -1000 * day, false, true},
	} {
		id := v7(epoch.Add(tt.at))
		got, stale := ResolveTaskID("tenant", id.String(), epoch)
		if stale != tt.stale || (got == id) != tt.asIs || !tt.asIs && got != NameID("tenant", id.String()) {
			t.Errorf("%s: stored as %s, stale %v", tt.name, got, stale)
		}
	}
	v4 := testID(9)
	v4[6] = 0x4f
	far := v7(epoch)
	far[0] = 0xff // a version 7 id in the range of names
	for _, s := range []string{"order-1001", v4.String(), NameID("tenant", "x").String(), strings.ToUpper(v7(epoch).String()), "{" + v7(epoch).String() + "}", far.String()} {
		if got, stale := ResolveTaskID("tenant", s, epoch); got != NameID("tenant", s) || !got.Named() || stale != (s == far.String()) {
			t.Errorf("%q is stored as %s, stale %v", s, got, stale)
		}
	}
}

// Nobody can reach the id of another's name by giving it as a task_id.
func TestNamesCannotBeForged(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.Map(genID(), ID.String), genName(1, 64)).Draw(t, "task_id")
		at := rapid.OneOf(rapid.Just(epoch), genTime()).Draw(t, "now")
		if id, _ := ResolveTaskID("mallory", s, at); id.Named() && id != NameID("mallory", s) {
			t.Fatalf("%q is stored as %s", s, id)
		}
		victim := NameID("alice", "payroll")
		if id, _ := ResolveTaskID("mallory", victim.String(), at); id == victim {
			t.Fatal("mallory reached alice's task")
		}
	})
}
