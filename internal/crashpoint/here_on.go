//go:build crashpoints

package crashpoint

import (
	"fmt"
	"os"
	"sync/atomic"
)

// target is where this process dies; it has no name if it does not.
var target struct {
	Point
	nth     int64
	reached atomic.Int64
}

// init reads the environment once. The variable is removed: it is no setting of
// the program, and its children shall live.
func init() {
	value := os.Getenv(Env)
	if value == "" {
		return
	}
	var err error
	if target.Point, target.nth, err = parse(value); err == nil {
		err = os.Unsetenv(Env)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// Here marks a place between two steps. It does not return where the
// environment says that this process dies, and panics at a name that Points
// does not list.
func Here(name string) {
	if _, ok := find(name); !ok {
		panic("crashpoint: " + name + " is not listed")
	}
	if target.Name != name || target.reached.Add(1) != target.nth {
		return
	}
	_, _ = fmt.Fprintf(os.Stderr, "crashpoint: this process dies at %s: %s\n", name, target.Between)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic("crashpoint: " + err.Error())
	}
	select {} // until the signal arrives: nothing behind this place may happen
}
