package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-dev/penstock/protocol"
)

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/model.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// section returns the page from a heading to the next.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, "\n## "+heading+"\n")
	if !ok {
		t.Fatalf("docs/model.md has no section %q", heading)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	return rest
}

// TestPageNamesFlags: every flag that the page names is one of the command's, and
// every fault.
func TestPageNamesFlags(t *testing.T) {
	t.Parallel()
	set := flag.NewFlagSet("", flag.ContinueOnError)
	flags(set, &Config{}, new(string), new(string))
	for _, span := range regexp.MustCompile("`[^`]+`|(?m)^go run .*$").FindAllString(page(t), -1) {
		for _, m := range regexp.MustCompile("(?:^|[` ])-([a-z][a-z-]*)(?: ([a-z-]+))?").FindAllStringSubmatch(span, -1) {
			if m[1] != "h" && set.Lookup(m[1]) == nil {
				t.Errorf("%s: the command has no flag -%s", span, m[1])
			}
			if _, err := ParseFaults(m[2]); m[1] == "faults" && err != nil {
				t.Errorf("%s: %v", span, err)
			}
		}
	}
}

// TestPageNamesProtocol: what the page says is called is there.
func TestPageNamesProtocol(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	files, err := filepath.Glob("../../protocol/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				known[d.Name.Name] = true
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						known[s.Name.Name] = true
					}
				}
			}
		}
	}
	for _, m := range regexp.MustCompile("`protocol\\.(\\w+)`").FindAllStringSubmatch(page(t), -1) {
		if !known[m[1]] {
			t.Errorf("package protocol has no %s", m[1])
		}
	}
	for _, m := range regexp.MustCompile("`((?:internal|worker)[a-z/]*)`").FindAllStringSubmatch(page(t), -1) {
		if _, err := os.Stat("../../" + m[1]); err != nil {
			t.Errorf("there is no %s", m[1])
		}
	}
}

// TestPageListsRuns: the table of what was exhausted has the explorations of
// make model, in their order.
func TestPageListsRuns(t *testing.T) {
	t.Parallel()
	safe, rest := Crashes|LostReplies, AllFaults&^Failover
	names := map[Fault]string{
		safe: "safe", rest: "rest", AllFaults: "rest and failover", RedisLosses: "FLUSHALL, either group lost", safe | RedisLosses: "safe, FLUSHALL, either group lost",
	}
	var want []string
	for _, c := range Large() {
		var besides []string
		if c.Fine {
			besides = append(besides, "fine")
		}
		if c.Cancels > 0 {
			besides = append(besides, fmt.Sprintf("%d cancel", c.Cancels))
		}
		if c.Releases > 0 {
			besides = append(besides, fmt.Sprintf("%d hand-back", c.Releases))
		}
		want = append(want, fmt.Sprintf("%d, %d/%d | %s (%d) | %s", c.Tasks, c.Retries, c.Interruptions, names[c.Faults], c.Budget, strings.Join(besides, ", ")))
		if c.Workers != 2 {
			t.Errorf("%s: the page says 2 workers", &c)
		}
	}
	var got []string
	for _, l := range strings.Split(section(t, page(t), "What was exhausted"), "\n") {
		if cells := strings.Split(l, "|"); len(cells) == 7 && regexp.MustCompile(`^ \d,`).MatchString(cells[1]) && !strings.Contains(l, "not in "+"`make model`") {
			got = append(got, fmt.Sprintf("%s | %s | %s", strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the page has\n%s\nmake model explores\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestPageListsMutants: each wrong protocol that is switched on is named.
func TestPageListsMutants(t *testing.T) {
	t.Parallel()
	text := strings.Join(strings.Fields(section(t, page(t), "Wrong protocols")), " ")
	for _, m := range Mutants() {
		if !strings.Contains(text, "`"+string(m)+"`") {
			t.Errorf("the page does not name %s", m)
		}
	}
	for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(text, -1) {
		if m[1] != "-mutant" && !slices.Contains(Mutants(), Mutant(m[1])) {
			t.Errorf("there is no mutant %s", m[1])
		}
	}
}

// TestPageLeavesOutWhatThereIs: what is said not to be modelled is something that
// the system does.
func TestPageLeavesOutWhatThereIs(t *testing.T) {
	t.Parallel()
	there := map[string]any{
		"approvals": protocol.StateWaitingApproval, "snoozes": protocol.OutcomeSnoozed, "expiry": protocol.CodeExpired, "the delays of unknown types": protocol.CodeUnknownType,
		"dependencies": protocol.CodeDependencyFailed, "suspects that run alone": protocol.SoloAfter, "recurring schedules": (*protocol.Task).Dispatch,
	}
	list, _, ok := strings.Cut(section(t, page(t), "Not modelled"), ";")
	if !ok {
		t.Fatal("the section does not begin with a list of features")
	}
	for _, feature := range regexp.MustCompile(`, | and `).Split(regexp.MustCompile(`\([^)]*\)`).ReplaceAllString(list, ""), -1) {
		feature = strings.ToLower(strings.Join(strings.Fields(feature), " "))
		if _, ok := there[feature]; !ok {
			t.Errorf("is there %q?", feature)
		}
	}
}
