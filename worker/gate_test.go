package worker

import (
	"testing"
	"testing/synctest"
	"time"
)

// After a wait in vain a worker stands still for no other suspect for a while,
// unless there is nothing to wait for.
func TestGateRests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gate
		if !g.close(false) || g.close(true) {
			t.Fatal("an open gate did not close, or a closed one did")
		}
		g.openAfter(time.Second)
		if g.close(false) {
			t.Error("closed again at once")
		}
		if !g.close(true) {
			t.Error("an idle worker made its suspect wait")
		}
		g.open()
		time.Sleep(soloRest*time.Second - time.Nanosecond)
		if g.close(false) {
			t.Error("closed before the rest was over")
		}
		time.Sleep(time.Nanosecond)
		if !g.close(false) {
			t.Error("not closed after the rest")
		}
	})
}
