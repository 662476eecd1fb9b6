package lifecycle

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p Pulse
		want := func(want string) {
			t.Helper()
			got := ""
			if err := p.Check(); err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("after %s: got %q, want %q", t.Name(), got, want)
			}
		}
		want("")
		a, b := p.Watch("a", 5*time.Second, 2*time.Second), p.Watch("b", 24*time.Hour, 0)
		<-time.After(5 * time.Second)
		want("")
		<-time.After(time.Second)
		want("a: no round finished for 6s")
		b.Fail("not reachable")
		want("a: no round finished for 6s\nb: not reachable for 0s")
		b.Mark()
		a.Mark()
		want("")

		// Failures count from the first in a row; each is a sign of life.
		a.Fail("cannot read")
		<-time.After(time.Second)
		a.Fail("cannot write")
		want("")
		<-time.After(time.Second)
		want("a: cannot write for 2s")
		a.Mark()
		a.Fail("cannot read")
		want("")

		// Who rests is not late, but what failed stays failed.
		a.Rest()
		<-time.After(time.Hour)
		want("a: cannot read for 1h0m0s")
		a.Mark()
		a.Rest()
		<-time.After(30 * time.Minute)
		b.Mark()
		want("")
		a.Mark()
		<-time.After(6 * time.Second)
		want("a: no round finished for 6s")
	})
}

func TestANilBeatDoesNothing(t *testing.T) {
	t.Parallel()
	var b *Beat
	b.Mark()
	b.Fail("x")
	b.Rest()
}

// A loop that panics takes the process with it: there is no half-dead program.
func TestAPanicEndsTheProcess(t *testing.T) {
	if os.Getenv("PENSTOCK_TEST_PANIC") != "" {
		_ = Run(t.Context(), never, quiet, time.Minute, []Loop{
			{Name: "good", Run: func(context.Context) error { select {} }},
			{Name: "bad", Run: func(context.Context) error { panic("a bug") }},
		})
		return
	}
	t.Parallel()
	c := exec.Command(os.Args[0], "-test.run=^TestAPanicEndsTheProcess$") //nolint:gosec // this very program
	c.Env = append(os.Environ(), "PENSTOCK_TEST_PANIC=1")
	out, err := c.CombinedOutput()
	if err == nil || c.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "panic: a bug") {
		t.Errorf("%v, want exit code 2 and the panic:\n%s", err, out)
	}
}
