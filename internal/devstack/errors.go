package devstack

import (
	"fmt"
	"strings"
)

// MissingError reports server programs that are not installed. Start returns
// it, and errors.As finds it.
type MissingError struct {
	// What names the missing servers: "postgres", "redis-server" or both.
	What []string
}

// Error says what was looked for and where, and prints the line that installs
// it on Debian and Ubuntu.
func (e *MissingError) Error() string {
	searched := map[string]string{
		"postgres":     "postgres (a Postgres server with initdb; searched $PATH and /usr/lib/postgresql/*/bin)",
		"redis-server": "redis-server or valkey-server (searched $PATH)",
	}
	packages := map[string]string{"postgres": "postgresql", "redis-server": "redis-server"}
	var missing, install []string
	for _, what := range e.What {
		text, ok := searched[what]
		if !ok {
			text = what
		}
		missing = append(missing, text)
		if pkg, ok := packages[what]; ok {
			install = append(install, pkg)
		}
	}
	return fmt.Sprintf("devstack: not installed: %s; on Debian or Ubuntu run: apt-get install -y --no-install-recommends %s",
		strings.Join(missing, "; "), strings.Join(install, " "))
}

// serverError reports a server that did not start, with the end of its log.
type serverError struct {
	name, what    string
	cause         error
	logPath, tail string
}

func (e *serverError) Error() string {
	text := fmt.Sprintf("devstack: %s %s", e.name, e.what)
	if e.cause != nil && !strings.Contains(text, e.cause.Error()) {
		text += ": " + e.cause.Error()
	}
	if e.tail == "" {
		return fmt.Sprintf("%s; its log %s is empty", text, e.logPath)
	}
	return fmt.Sprintf("%s; the end of its log %s:\n%s", text, e.logPath, e.tail)
}

func (e *serverError) Unwrap() error { return e.cause }

// addressInUse reports whether the server found its TCP port taken.
func (e *serverError) addressInUse() bool {
	return strings.Contains(e.tail, "Address already in use")
}

// permanentError marks a failed probe that another attempt cannot mend.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }
