package floors

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/penstock-dev/penstock"

// pkg is a package of the module.
type pkg struct {
	ImportPath string
	Imports    []string // of its files without tests
	Deps       []string // all below it, as far as the module's own files tell
}

// rule says what packages may import. Paths are below the module; a trailing
// slash means everything below it.
type rule struct {
	of     []string
	direct bool // look at the package's own imports only
	never  []string
	// only, if not nil, lists what may be imported besides the standard library.
	only []string
	why  string
}

var (
	upper = []string{"internal/pipeline/", "internal/api", "internal/app", "internal/cli", "internal/demo"}
	rules = []rule{
		{of: []string{"protocol"}, only: []string{}, why: "the contract depends on nothing"},
		{of: []string{"task"}, only: []string{}, why: "producers and workers share it; it carries nothing along"},
		{of: []string{"internal/batch"}, only: []string{}, why: "a generic component"},
		{of: []string{"internal/streams", "internal/store", "internal/store/"}, never: append([]string{"worker", "client", "task"}, upper...), why: "adapters know nothing of those who use them"},
		{of: []string{"internal/streams"}, never: []string{"internal/store"}, why: "the two stores do not know each other"},
		{of: []string{"internal/store", "internal/store/"}, never: []string{"internal/streams"}, why: "the two stores do not know each other"},
		{of: []string{"internal/pipeline/"}, never: []string{"internal/api", "internal/app", "internal/cli", "internal/demo", "internal/rpc", "worker", "client"}, why: "stages are below the API and the wiring"},
		{of: []string{"internal/api"}, never: []string{"internal/app", "internal/cli", "internal/demo", "worker"}, why: "the API is below the wiring"},
		{of: []string{"worker", "tasktest", "internal/execute", "internal/once"}, never: append([]string{"internal/store", "client", "internal/config"}, upper...), why: "a worker needs Redis only"},
		{of: []string{"inject"}, only: []string{"task", "protocol", "internal/execute"}, why: "it wraps handlers, wherever they run"},
		{of: []string{"client"}, direct: true, only: []string{"protocol", "protocol/penstock/v1", "protocol/penstock/v1/penstockv1connect", "internal/batch", "task"}, why: "a producer needs the RPC only"},
		{of: []string{"client"}, never: append([]string{"internal/store", "internal/streams", "worker"}, upper...), why: "a producer needs the RPC only"},
		{of: []string{"cmd/"}, direct: true, only: []string{"internal/cli"}, why: "main holds nothing that could be tested elsewhere"},
		{of: []string{""}, direct: true, never: []string{"internal/testkit", "internal/devstack/devtest", "internal/e2e", "internal/chaosproxy"}, why: "programs do not import what tests need"},
	}
	// testHelp may import the test helpers outside of _test.go files.
	testHelp = []string{"internal/testkit", "internal/devstack/devtest", "internal/devstack/with-servers", "internal/bench", "internal/chaos"}
)

// matches reports whether a path below the module is meant by a pattern.
func matches(path, pattern string) bool {
	return path == pattern || pattern == "" || strings.HasSuffix(pattern, "/") && strings.HasPrefix(path, pattern)
}

func matchesAny(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(path, p) })
}

// broken returns what the package imports against the rule.
func (r rule) broken(p pkg) (bad []string) {
	self := strings.TrimPrefix(p.ImportPath, module+"/")
	if !matchesAny(self, r.of) || matchesAny(self, testHelp) {
		return nil
	}
	imports := p.Deps
	if r.direct {
		imports = p.Imports
	}
	for _, i := range imports {
		inside, ours := strings.CutPrefix(i, module+"/")
		standard := !strings.Contains(strings.SplitN(i, "/", 2)[0], ".")
		switch {
		case ours && matchesAny(inside, r.never):
			bad = append(bad, inside)
		case r.only == nil || standard:
		case ours && slices.Contains(r.only, inside):
		case !ours && r.direct && !strings.HasPrefix(self, "cmd/"): // direct lists are about our own packages
		default:
			bad = append(bad, i)
		}
	}
	return bad
}

// list reads the imports of all packages from their files: `go list` would be
// invisible to the cache of test results.
func list(t *testing.T) (out []pkg) {
	t.Helper()
	const root = "../.."
	imports := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		p := module + "/" + filepath.ToSlash(dir)
		for _, i := range f.Imports {
			imports[p] = append(imports[p], strings.Trim(i.Path.Value, `"`))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for p, direct := range imports {
		out = append(out, pkg{p, direct, below(p, imports)})
	}
	return out
}

// below returns all that a package imports, directly or through others.
func below(p string, imports map[string][]string) (out []string) {
	seen := map[string]bool{p: true}
	for todo := []string{p}; len(todo) > 0; todo = todo[1:] {
		for _, i := range imports[todo[0]] {
			if !seen[i] {
				seen[i] = true
				out, todo = append(out, i), append(todo, i)
			}
		}
	}
	return out
}

func TestImportsGoDownOnly(t *testing.T) {
	t.Parallel()
	pkgs := list(t)
	for _, r := range rules {
		found := false
		for _, p := range pkgs {
			self := strings.TrimPrefix(p.ImportPath, module+"/")
			found = found || matchesAny(self, r.of)
			if bad := r.broken(p); len(bad) > 0 {
				t.Errorf("%s imports %s: %s", self, strings.Join(bad, ", "), r.why)
			}
		}
		if !found {
			t.Errorf("no package is meant by %v: the rule guards nothing", r.of)
		}
	}
	const stages = module + "/internal/pipeline/"
	n := 0
	for _, p := range pkgs {
		if !strings.HasPrefix(p.ImportPath, stages) {
			continue
		}
		n++
		for _, d := range p.Deps {
			if strings.HasPrefix(d, stages) && !strings.HasPrefix(d, p.ImportPath+"/") {
				t.Errorf("stage %s imports its sibling %s", strings.TrimPrefix(p.ImportPath, stages), strings.TrimPrefix(d, stages))
			}
		}
	}
	if n < 7 {
		t.Errorf("only %d stages were found", n)
	}
}

func TestARuleFindsWhatBreaksIt(t *testing.T) {
	t.Parallel()
	p := pkg{ImportPath: module + "/protocol", Imports: []string{"fmt"}, Deps: []string{"fmt", "github.com/x/y", module + "/internal/store"}}
	if bad := rules[0].broken(p); len(bad) != 2 {
		t.Errorf("protocol with two foreign imports: found %v", bad)
	}
	stage := pkg{ImportPath: module + "/internal/pipeline/x", Deps: []string{module + "/internal/api", "golang.org/x/sync/errgroup"}}
	var bad []string
	for _, r := range rules {
		bad = append(bad, r.broken(stage)...)
	}
	if !slices.Equal(bad, []string{"internal/api"}) {
		t.Errorf("a stage that imports the API: found %v", bad)
	}
	cmd := pkg{ImportPath: module + "/cmd/x", Imports: []string{"os", "github.com/spf13/cobra", module + "/internal/cli", module + "/internal/app"}}
	bad = nil
	for _, r := range rules {
		bad = append(bad, r.broken(cmd)...)
	}
	if len(bad) != 2 {
		t.Errorf("a program with two imports too many: found %v", bad)
	}
}
