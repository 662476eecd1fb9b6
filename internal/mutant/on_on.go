//go:build mutants

package mutant

import (
	"fmt"
	"os"
)

// Built tells whether this build can have a bug at all.
const Built = true

// planted is the bug of this process; "" if it has none.
var planted = read()

// read reads the environment once. The variable is removed: it is no setting
// of the program.
func read() string {
	value := os.Getenv(Env)
	if value == "" {
		return ""
	}
	name, err := parse(value)
	if err == nil {
		err = os.Unsetenv(Env)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return name
}

// On reports whether this process has the bug. It panics at a name that Names
// does not list.
func On(name string) bool {
	if _, err := parse(name); err != nil {
		panic(err)
	}
	return planted == name
}
