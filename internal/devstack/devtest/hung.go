package devtest

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"
	"time"
)

// hungAfter is how long a test may run that uses a server, with the subtests that
// run after it. One that takes longer is taken to wait for something that does
// not come: testkit's waits end after a minute, and no test needs so long.
const hungAfter = 110 * time.Second

// Full reports whether tests that have a long form are to run in it (`make
// nightly`): PENSTOCK_TEST_FULL is 1.
func Full() bool { return os.Getenv("PENSTOCK_TEST_FULL") == "1" }

// watch ends the process, with the stack of every goroutine, if the test has not
// ended in time: a test that hangs says at once what it waits for, and not when
// the time of its whole package is over.
func watch(t testing.TB) {
	begun, limit := time.Now(), hungAfter
	if Full() {
		limit *= 10
	}
	timer := time.AfterFunc(limit, func() {
		debug.SetTraceback("all")
		panic(fmt.Sprintf("devtest: %s has run since %s: it hangs. What it waits for is among these goroutines.", t.Name(), begun.Format(time.TimeOnly)))
	})
	t.Cleanup(func() { timer.Stop() })
}
