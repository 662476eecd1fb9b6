package protocol

import (
	"errors"
	"testing"
	"time"
)

func TestAlertID(t *testing.T) {
	t.Parallel()
	seen := map[ID]bool{}
	for _, k := range AlertKinds() {
		for _, tenant := range []string{"", "a", "b", string(k)} {
			id := AlertID(k, tenant)
			if id[0] != 0xfc || id.Version() != 8 || id[8]>>6 != 2 || id.Named() || id.IsTask() || id != AlertID(k, tenant) {
				t.Errorf("%s of %q: %s", k, tenant, id)
			}
			if seen[id] {
				t.Errorf("%s of %q has the id of another", k, tenant)
			}
			seen[id] = true
		}
	}
	garbage := Garbage(StreamTask, "1-1", map[string]any{"a": "b"}, errors.New("no task"), time.Now())
	if garbage.DLQID.IsTask() {
		t.Error("a dead letter that is no task is taken for one")
	}
	v7, err := ParseID("0195a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b")
	if err != nil || !v7.IsTask() || !NameID("t", "n").IsTask() {
		t.Errorf("ids of tasks are taken for others, %v", err)
	}
}

func TestAlertData(t *testing.T) {
	t.Parallel()
	d := AlertData{Kind: AlertInvalidTransitions, Severity: AlertInvalidTransitions.Severity(), Value: 12, Threshold: 10, WindowMS: 300_000}
	want := `{"kind":"invalid_transitions","severity":"P1","tenant":"","value":12,"threshold":10,"window_ms":300000}`
	if got := d.JSON(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if AlertRetryingShare.Severity() != "P2" || AlertDLQGrowth.Severity() != "P2" {
		t.Error("only refused transitions are P1")
	}
}
