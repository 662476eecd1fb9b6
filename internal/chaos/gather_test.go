package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/chaos/check"
)

// handlersLog has a worker that starts three tasks, stands still for two
// seconds and is killed in the middle of a line.
const handlersLog = `{"at":1000000000,"what":"hello","worker":"w1"}
{"at":1000000001,"what":"pulse","goroutines":7}
{"at":1100000000,"what":"start","task":"a","delivery":1,"attempt":1,"message":"1-0"}
{"at":1100000000,"what":"start","task":"b","delivery":2,"attempt":1,"message":"1-1"}
{"at":1200000000,"what":"end","task":"a","delivery":1,"attempt":1,"message":"1-0","ending":"ok"}
{"at":1300000000,"what":"pulse","goroutines":7}
{"at":3300000000,"what":"pulse","goroutines":7}
{"at":3400000000,"what":"end","task":"b","delivery":2,"attempt":1,"message":"1-1","ending":"cancelled","cause":"lease lost"}
{"at":3400000000,"what":"start","task":"a","delivery":2,"attempt":1,"message":"1-2"}
{"at":34000`

func TestReadLog(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "worker-1-0.jsonl")
	if err := os.WriteFile(file, []byte(handlersLog), 0o600); err != nil {
		t.Fatal(err)
	}
	h := &check.History{
		Visibility: 3 * time.Second, Executions: map[string][]check.Execution{}, Ended: map[string]time.Time{}, Frozen: map[string][]check.Span{},
	}
	killed := time.Unix(3, 500_000_000)
	if err := readLog(h, life{log: file, until: killed}); err != nil {
		t.Fatal(err)
	}
	a, b := h.Executions["a"], h.Executions["b"]
	if len(a) != 2 || len(b) != 1 {
		t.Fatalf("%+v", h.Executions)
	}
	if a[0].Ending != check.EndOK || a[0].Worker != "w1" || a[0].End.Sub(a[0].Start) != 100*time.Millisecond || !a[1].End.IsZero() || a[1].Delivery != 2 {
		t.Errorf("%+v", a)
	}
	if b[0].Ending != check.EndCancelled || b[0].Cause != "lease lost" || b[0].Message != "1-1" {
		t.Errorf("%+v", b)
	}
	if !h.Ended["w1"].Equal(killed) {
		t.Errorf("ended %v", h.Ended)
	}
	if f := h.Frozen["w1"]; len(f) != 1 || f[0].To.Sub(f[0].From) != 2*time.Second {
		t.Errorf("stood still %v", f)
	}
	// A process that was killed before it wrote anything has no log.
	if err := readLog(h, life{log: file + "x", until: killed}); err != nil {
		t.Error(err)
	}
}
