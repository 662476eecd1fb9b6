package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
)

// program is the orchestrator's program, built for this run.
var program string

// TestMain is the client that enqueues batches, too, if this is started as that.
func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := mainFlood(ctx, os.Args); !errors.Is(err, errNoFlood) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "penstock-bench-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program = filepath.Join(dir, "orchestrator")
	build := exec.Command("go", "build", "-o", program, "../../cmd/orchestrator")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the orchestrator: %v\n%s", err, out)
		return 1
	}
	return devtest.Runner{M: m}.Run()
}

// small are options that show that a part works, and measure nothing.
func small() options {
	var o options
	o.flags(flag.NewFlagSet("", flag.PanicOnError))
	o.smoke()
	o.orchestrator = program
	return o
}

// quick are the parts that every run tries, beside the one of TestProfile: that
// with a process of its own, and that whose SQL follows the tables.
var quick = []string{"beside", "finished"}

// TestParts: each part runs to its end and reports what it is about.
func TestParts(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"drain": "drain, until the last result is on record", "through": "through: enqueue", "latency": "2000/s: p99", "beside": "the batches meanwhile",
		"orchestrators": "3 orchestrators: drain", "queues": "50 queues: drain", "payloads": "64 KB: drain",
		"backlog": "1,000 queued: drain", "finished": "many finished tasks: drain", "partitions": "400 partitions: enqueue",
		"future": "many waiting: drain", "idle": "1,000 expiring, 2 orchestrators: all servers",
		"retries": "three retries: time per attempt", "burst": "retries: drain", "poison": "rate kept", "dead-letters": "requeued by a batch",
		"timers": "dispatch after the due time, p99",
	}
	for _, p := range parts {
		if !devtest.Full() && !slices.Contains(quick, p.name) {
			continue
		}
		t.Run(p.name, func(t *testing.T) { // one after the other: each starts servers
			var out bytes.Buffer
			if err := measure(t.Context(), &out, small(), []*part{p}); err != nil {
				t.Fatal(err)
			}
			for _, w := range []string{want[p.name], "an orchestrator's RSS, most"} {
				if w == "" || !strings.Contains(out.String(), w) {
					t.Errorf("%q is missing from\n%s", w, &out)
				}
			}
			if m := regexp.MustCompile(`RSS, most .*?\)\s+([0-9.]+)`).FindStringSubmatch(out.String()); m == nil || strings.HasPrefix(m[1], "0.0") {
				t.Errorf("no RSS was read: %v", m)
			}
		})
	}
}

// TestProfile: each section of a part leaves the profiles of both processes and
// the statements that Postgres ran in it.
func TestProfile(t *testing.T) {
	t.Parallel()
	o := small()
	o.profile = t.TempDir()
	var out bytes.Buffer
	if err := measure(t.Context(), &out, o, []*part{drain}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "drain, until the last result is on record") {
		t.Errorf("it reports\n%s", &out)
	}
	for section, statement := range map[string]string{"enqueue": "InsertTasks", "drain": "FinishTasks"} {
		dir := filepath.Join(o.profile, "drain", section)
		for _, name := range []string{"orchestrator.pprof", "bench.pprof"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || !bytes.HasPrefix(b, []byte("\x1f\x8b")) {
				t.Errorf("%s of %s: %v, %.20q", name, section, err, b)
			}
		}
		b, err := os.ReadFile(filepath.Join(dir, "statements.txt"))
		if err != nil || !strings.Contains(string(b), statement) {
			t.Errorf("%s is not among the statements of %s: %v\n%s", statement, section, err, b)
		}
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*options){
		"":                     func(*options) {},
		"-n must be at least":  func(o *options) { o.n = 1 },
		"-reps must be":        func(o *options) { o.reps = 0 },
		"-finished must be":    func(o *options) { o.finished = -1 },
		"-span must be":        func(o *options) { o.span = 0 },
		"-idle must be":        func(o *options) { o.idle = 2 * time.Hour },
		"make build makes it":  func(o *options) { o.orchestrator = filepath.Join(t.TempDir(), "none") },
		"-latency at least 1s": func(o *options) { o.latency = time.Millisecond },
	} {
		o := small()
		change(&o)
		if err := o.check(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	for only, want := range map[string]string{
		"":              "drain through latency beside orchestrators queues payloads backlog finished partitions future idle retries burst poison dead-letters timers",
		"timers, drain": "drain timers", "shapes": "orchestrators queues payloads", "failures,drain": "drain retries burst poison dead-letters",
	} {
		chosen, err := choose(only)
		var got []string
		for _, p := range chosen {
			got = append(got, p.name)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %v, %v", only, got, err)
		}
	}
	if _, err := choose("drain,nothing"); err == nil || !strings.Contains(err.Error(), `"nothing"`) || !strings.Contains(err.Error(), "poison") {
		t.Errorf("an unknown part: %v", err)
	}
}

// TestPageNamesParts: docs/benchmark.md has every part, in its order, and every
// flag; and none that there is not.
func TestPageNamesParts(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/benchmark.md")
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		got = append(got, m[1])
	}
	for _, p := range parts {
		want = append(want, p.name)
	}
	if !slices.Equal(got, want) {
		t.Errorf("the page's tables have %v, want %v", got, want)
	}
	set := flag.NewFlagSet("", flag.PanicOnError)
	new(options).flags(set)
	for _, m := range regexp.MustCompile("`-([a-z]+)[` ]|bench -([a-z]+)").FindAllStringSubmatch(string(text), -1) {
		if name := m[1] + m[2]; !slices.Contains([]string{"only", "smoke", "h"}, name) && set.Lookup(name) == nil {
			t.Errorf("there is no flag -%s", name)
		}
	}
	set.VisitAll(func(f *flag.Flag) {
		if !strings.Contains(string(text), "`-"+f.Name) {
			t.Errorf("the page does not name -%s", f.Name)
		}
	})
}
