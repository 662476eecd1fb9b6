package handlers

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/task"
)

const (
	// termGrace is how long a program may take to end after SIGTERM.
	termGrace = 2 * time.Second
	// maxErrorOutput is how many bytes of the end of standard error an error
	// text quotes.
	maxErrorOutput = 2 << 10
	// taskEnvPrefix begins the names of the variables that describe the task.
	taskEnvPrefix = "PENSTOCK_TASK_"
)

// program is an exec handler: it starts one program for each execution.
type program struct {
	path      string // absolute
	name      string // argv[0], as declared
	args      []argument
	env       []string // declared, and PATH
	dir       string   // absolute; "": a fresh one for each run
	maxOutput int
	grace     time.Duration // from SIGTERM to SIGKILL
	log       *slog.Logger
}

// argument is an argument as declared. Its parts alternate between literal
// text, which may be empty, and the name of a placeholder.
type argument struct {
	parts []string
	// ends: an argument "--" stands before it, so a program takes no later one
	// for an option.
	ends bool
}

// placeholders are the names that an argument may contain within {{ and }}.
var placeholders = map[string]func(*task.Info) string{
	"task_id": func(i *task.Info) string { return i.TaskID },
	"type":    func(i *task.Info) string { return i.Type },
	"attempt": func(i *task.Info) string { return strconv.Itoa(i.Attempt) },
	"tenant":  func(i *task.Info) string { return i.Tenant },
	"queue":   func(i *task.Info) string { return i.Queue },
}

// newExec validates the declaration of an exec handler. The handler is of no
// use if d has errors afterwards.
func newExec(d *declaration, log *slog.Logger) *program {
	p := &program{maxOutput: d.maxOutput(), grace: termGrace, log: log}
	if !execSupported {
		d.fail("kind", "exec is not supported on this system")
	}
	p.setCommand(d)
	p.setEnv(d)
	if d.Dir != "" {
		dir, err := filepath.Abs(d.Dir)
		if err != nil {
			d.fail("dir", "%w", err)
		} else if st, err := os.Stat(dir); err != nil {
			d.fail("dir", "%w", err)
		} else if !st.IsDir() {
			d.fail("dir", "%s is not a directory", dir)
		}
		p.dir = dir
	}
	return p
}

// setCommand takes over the program, which must be there, and its arguments.
func (p *program) setCommand(d *declaration) {
	if len(d.Command) == 0 || d.Command[0] == "" {
		d.fail("command", "missing: it is a list of the program and its arguments")
		return
	}
	p.name = d.Command[0]
	if strings.Contains(p.name, "{{") {
		d.fail("command[0]", "the program can't contain a placeholder")
		return
	}
	path, err := exec.LookPath(p.name)
	if err == nil {
		path, err = filepath.Abs(path) // the working directory is another one
	}
	if err != nil {
		d.fail("command[0]", "%w", err)
	}
	p.path = path
	ends := false
	for i, s := range d.Command[1:] {
		key := fmt.Sprintf("command[%d]", i+1)
		a, err := parseArgument(s)
		if err != nil {
			d.fail(key, "%w", err)
			continue
		}
		if len(a.parts) > 1 && isShellCode(p.name, d.Command[1:i+1]) {
			d.fail(key, `a placeholder in shell code would let whoever enqueues a task run commands; `+
				`use the variables $PENSTOCK_TASK_…, or "$1" and a further argument`)
		}
		a.ends = ends
		ends = ends || s == "--"
		p.args = append(p.args, a)
	}
}

var placeholder = regexp.MustCompile(`\{\{([^{}]*)\}\}`)

// parseArgument splits an argument at its placeholders.
func parseArgument(s string) (argument, error) {
	var a argument
	if strings.ContainsRune(s, 0) {
		return a, errors.New("contains NUL")
	}
	end := 0
	for _, m := range placeholder.FindAllStringSubmatchIndex(s, -1) {
		name := strings.TrimSpace(s[m[2]:m[3]])
		if placeholders[name] == nil {
			return a, fmt.Errorf("unknown placeholder {{%s}}: there are %s", name,
				strings.Join(slices.Sorted(maps.Keys(placeholders)), ", "))
		}
		a.parts = append(a.parts, s[end:m[0]], name)
		end = m[1]
	}
	a.parts = append(a.parts, s[end:])
	for i := 0; i < len(a.parts); i += 2 {
		if strings.Contains(a.parts[i], "{{") {
			return a, errors.New("{{ begins no placeholder")
		}
	}
	return a, nil
}

// isShellCode reports whether a known shell runs the argument after before as
// code: `sh -c CODE`.
func isShellCode(program string, before []string) bool {
	switch filepath.Base(program) {
	case "sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish":
	default:
		return false
	}
	if len(before) == 0 {
		return false
	}
	last := before[len(before)-1]
	return strings.HasPrefix(last, "-") && !strings.HasPrefix(last, "--") && strings.Contains(last, "c")
}

// expand returns the argument for an execution. It fails permanently if a
// value makes it begin with "-", so that the program would take it for an
// option, and if it contains NUL. A value's own {{…}} stays as it is.
func (a *argument) expand(i *task.Info) (string, error) {
	if len(a.parts) == 1 {
		return a.parts[0], nil
	}
	var b strings.Builder
	for n, part := range a.parts {
		if n%2 == 1 {
			part = placeholders[part](i)
		}
		b.WriteString(part)
	}
	s := b.String()
	if a.parts[0] == "" && strings.HasPrefix(s, "-") && !a.ends {
		return "", task.Permanent(fmt.Errorf(
			`{{%s}} begins with "-" and would be an option of the program: the command needs an argument "--" before it`, a.parts[1]))
	}
	if strings.ContainsRune(s, 0) {
		return "", task.Permanent(errors.New("an argument would contain NUL"))
	}
	return s, nil
}

// setEnv takes over the declared variables, which are the whole environment
// besides PATH, which they may replace, and those of the task.
func (p *program) setEnv(d *declaration) {
	if _, declared := d.Env["PATH"]; !declared {
		if path, ok := os.LookupEnv("PATH"); ok {
			p.env = append(p.env, "PATH="+path)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.Env)) {
		switch value := d.Env[name]; {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			d.fail("env", "%q is not the name of a variable", name)
		case strings.HasPrefix(name, taskEnvPrefix):
			d.fail("env."+name, "can't be set: the worker does")
		case strings.ContainsRune(value, 0):
			d.fail("env."+name, "value contains NUL")
		default:
			p.env = append(p.env, name+"="+value)
		}
	}
}

// taskEnv returns the environment of an execution. It fails permanently if a
// value contains NUL.
func (p *program) taskEnv(i *task.Info) ([]string, error) {
	env := slices.Clone(p.env)
	for _, v := range [...]struct{ name, value string }{
		{"ID", i.TaskID},
		{"TYPE", i.Type},
		{"ATTEMPT", strconv.Itoa(i.Attempt)},
		{"DELIVERY", strconv.FormatInt(i.Delivery, 10)},
		{"IDEMPOTENCY_KEY", i.IdempotencyKey},
		{"TRACE_ID", i.TraceID},
		{"TENANT", i.Tenant},
	} {
		if strings.ContainsRune(v.value, 0) {
			return nil, task.Permanent(fmt.Errorf("%s%s would contain NUL", taskEnvPrefix, v.name))
		}
		env = append(env, taskEnvPrefix+v.name+"="+v.value)
	}
	return env, nil
}
