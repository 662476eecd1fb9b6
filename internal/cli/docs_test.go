package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock-dev/penstock/internal/config"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

const repository = "../.."

// pages are the texts for users. Decisions and the changelog tell of what was.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil || len(names) < 10 {
		t.Fatalf("%d pages, %v", len(names), err)
	}
	names = append(names, filepath.Join(repository, "README.md"), filepath.Join(repository, "deploy", "README.md"))
	out := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(text)
	}
	return out
}

// sources is all program text: Go without tests, SQL, protobuf, YAML.
func sources(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); path != repository && strings.HasPrefix(n, ".") || n == "testdata" || n == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); strings.HasSuffix(path, "_test.go") || ext != ".go" && ext != ".sql" && ext != ".proto" && ext != ".yml" && ext != ".sh" && d.Name() != "Makefile" {
			return nil
		}
		text, err := os.ReadFile(path)
		b.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var (
	codeSpan    = regexp.MustCompile("`[^`\n]+`")
	settingName = regexp.MustCompile(`^[a-z][a-z0-9_]*(\.[a-z0-9_]+)+$`)
	envName     = regexp.MustCompile(`\bPENSTOCK_[A-Z][A-Z0-9_]*[A-Z0-9]\b`)
	metricName  = regexp.MustCompile(`\bpenstock_[a-z0-9_]*[a-z0-9]\b`)
	flagName    = regexp.MustCompile(`(?:^|[\s\[(])--([a-z][a-z0-9-]+)`)
	exported    = regexp.MustCompile(`^(?:[a-z]+\.)?([A-Z][a-z0-9]+(?:[A-Z][a-zA-Z0-9]*)+)(?:\.[A-Z]\w*)?(?:\(.*\))?$`)
)

func spans(text string) (out []string) {
	for _, s := range codeSpan.FindAllString(text, -1) {
		out = append(out, strings.Trim(s, "`"))
	}
	return out
}

// settings are the names of all settings of the programs.
func settings() (names map[string]bool, sections map[string]bool) {
	names, sections = map[string]bool{}, map[string]bool{}
	for _, cfg := range []any{config.DefaultOrchestrator(), config.DefaultWorker(), config.DefaultClient()} {
		for _, k := range config.Keys(cfg) {
			names[k.Name] = true
			for s, _, ok := strings.Cut(k.Name, "."); ok; ok = false {
				sections[s] = true
			}
		}
	}
	return names, sections
}

// TestDocumentedSettings: a page names no setting that no program has.
func TestDocumentedSettings(t *testing.T) {
	t.Parallel()
	names, sections := settings()
	known := func(s string) bool {
		for n := range names {
			if n == s || strings.HasPrefix(n, s+".") || strings.HasPrefix(s, n+".") {
				return true
			}
		}
		return false
	}
	// task.*, dlq.* and alert.* are events' names as well; files have names with dots.
	code := sources(t)
	for page, text := range pages(t) {
		for _, s := range spans(text) {
			section, _, _ := strings.Cut(s, ".")
			if settingName.MatchString(s) && sections[section] && !known(s) && !strings.Contains(code, s) && filepath.Ext(s) != ".yml" {
				t.Errorf("%s: there is no setting %s", page, s)
			}
		}
		for _, env := range envName.FindAllString(text, -1) {
			if strings.HasPrefix(env, "PENSTOCK_TASK_") || strings.HasPrefix(env, "PENSTOCK_TEST_") || strings.Contains(code, env) {
				continue // what a started program gets, what tests take, what is read by name
			}
			if env == "PENSTOCK_DISPATCH_WINDWO" {
				continue // the example of what is refused
			}
			ok := false
			for n := range names {
				name := "PENSTOCK_" + strings.ToUpper(strings.ReplaceAll(n, ".", "_"))
				ok = ok || env == name || strings.HasPrefix(name, env+"_")
			}
			if !ok {
				t.Errorf("%s: no program reads %s", page, env)
			}
		}
	}
}

// TestDocumentedMetrics: a page names no metric, role or function of SQL that
// nothing makes.
func TestDocumentedMetrics(t *testing.T) {
	t.Parallel()
	code := sources(t)
	for page, text := range pages(t) {
		for _, name := range metricName.FindAllString(text, -1) {
			if name == "penstock_postgres" || name == "penstock_rpc" {
				continue // the volume and the network that Compose makes
			}
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			if !strings.Contains(code, name) && !strings.Contains(code, base) {
				t.Errorf("%s: nothing is named %s", page, name)
			}
		}
	}
}

// TestDocumentedNames: a page names no RPC, message, or name of Go that is not
// there.
func TestDocumentedNames(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, file := range []protoreflect.FileDescriptor{
		penstockv1.File_penstock_v1_tasks_proto, penstockv1.File_penstock_v1_deadletters_proto, penstockv1.File_penstock_v1_schedules_proto,
		penstockv1.File_penstock_v1_approvals_proto, penstockv1.File_penstock_v1_effects_proto, penstockv1.File_penstock_v1_workers_proto,
	} {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			known[string(s.Name())] = true
			for j := range s.Methods().Len() {
				known[string(s.Methods().Get(j).Name())] = true
			}
		}
	}
	code := sources(t)
	for page, text := range pages(t) {
		for _, s := range spans(text) {
			m := exported.FindStringSubmatch(s)
			if m == nil || known[m[1]] {
				continue
			}
			if !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(code) {
				t.Errorf("%s: nothing is named %s", page, s)
			}
		}
	}
}

// foreign are flags of other programs' that pages name: of Go's tools, Docker,
// curl, Postgres and Debian's.
var foreign = []string{
	"detach", "wait", "volumes", "rm", "no-deps", "entrypoint", "no-recreate", "force-recreate", "scale", "no-install-recommends", "from",
	"cacert", "cert", "data", "username", "pgdata", "wal-method", "checkpoint", "gzip",
	"help", "tag", "quiet", "width", // every program's, and of programs that handlers start
}

// TestDocumentedFlags: a page shows no flag that the command it stands with does
// not have, and names none that no command has.
func TestDocumentedFlags(t *testing.T) {
	t.Parallel()
	programs := map[string]*cobra.Command{"orchestrator": Orchestrator(), "dlq-replay": DLQReplay(), "worker": Worker()}
	all := map[string]bool{}
	for _, root := range programs {
		each(root, func(c *cobra.Command) {
			note := func(f *pflag.Flag) { all[f.Name] = true }
			c.LocalFlags().VisitAll(note)
			c.InheritedFlags().VisitAll(note)
		})
	}
	call := regexp.MustCompile(`(?:^|[\s/;|(])(orchestrator|dlq-replay|worker)((?: +(?:"[^"]*"|'[^']*'|[^\s|;&#"'` + "`" + `]+))+)`)
	for page, text := range pages(t) {
		for _, l := range strings.Split(strings.ReplaceAll(text, "\\\n", " "), "\n") {
			for _, m := range flagName.FindAllStringSubmatch(strings.Join(append(spans(l), l), " "), -1) {
				if !all[m[1]] && !slices.Contains(foreign, m[1]) && !strings.Contains(l, "go ") && !strings.Contains(l, "redis-server") {
					t.Errorf("%s: no command has --%s: %s", page, m[1], l)
				}
			}
			if strings.Contains(l, "--entrypoint") {
				continue
			}
			for _, m := range call.FindAllStringSubmatch(l, -1) {
				checkCall(t, page, programs[m[1]], m[1], strings.Fields(m[2]))
			}
		}
	}
}

// checkCall checks a command line that a page shows. Words that are no command's
// name are prose or arguments.
func checkCall(t *testing.T, page string, c *cobra.Command, program string, words []string) {
	t.Helper()
	for len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		sub, _, err := c.Find(words[:1])
		if err != nil || sub == c {
			break
		}
		c, words = sub, words[1:]
	}
	for _, w := range words {
		name, _, _ := strings.Cut(strings.TrimPrefix(w, "--"), "=")
		if !strings.HasPrefix(w, "--") || !regexp.MustCompile(`^[a-z][a-z0-9-]+$`).MatchString(name) {
			continue
		}
		if c.Flags().Lookup(name) == nil && c.InheritedFlags().Lookup(name) == nil && name != "help" && name != "version" {
			t.Errorf("%s: %s has no flag --%s (in: %s %s)", page, c.CommandPath(), name, program, strings.Join(words, " "))
		}
	}
}
