package crashpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// calls returns where the module calls Here, by the name it gives.
func calls(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	files := token.NewFileSet()
	const root = "../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Here" {
				return true
			}
			if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "crashpoint" {
				return true
			}
			at := files.Position(call.Pos()).String()
			lit, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: the name is no literal: it can't be checked", at)
				return true
			}
			name, err := strconv.Unquote(lit.Value)
			if err != nil {
				t.Errorf("%s: %v", at, err)
			}
			out[name] = append(out[name], at)
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The list and the code agree, and a name means one place.
func TestEveryPointIsInTheCodeOnce(t *testing.T) {
	t.Parallel()
	found := calls(t)
	for _, p := range Points() {
		if at := found[p.Name]; len(at) != 1 {
			t.Errorf("%s is named at %v, want one place", p.Name, at)
		}
		if p.Between == "" {
			t.Errorf("%s does not say what it is between", p.Name)
		}
		delete(found, p.Name)
	}
	for name, at := range found {
		t.Errorf("%s at %v is not listed", name, at)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		value, name string
		nth         int64
		fault       string
	}{
		{"dispatch.added", "dispatch.added", 1, ""},
		{"dispatch.added:2", "dispatch.added", 2, ""},
		{"dispatch.aded", "", 0, `there is no point "dispatch.aded"; there are result.committed, `},
		{"", "", 0, `there is no point ""`},
		{"dispatch.added:", "", 0, `"" after dispatch.added is no number from 1 on`},
		{"dispatch.added:0", "", 0, `"0" after dispatch.added`},
		{"dispatch.added:-1", "", 0, `"-1" after dispatch.added`},
		{"dispatch.added:2:3", "", 0, `"2:3" after dispatch.added`},
		{"dispatch.added:99999999999", "", 0, "is no number"},
	} {
		p, nth, err := parse(tt.value)
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) || !strings.HasPrefix(err.Error(), Env) {
				t.Errorf("%q: %v, want %q", tt.value, err, tt.fault)
			}
			continue
		}
		if err != nil || p.Name != tt.name || nth != tt.nth {
			t.Errorf("%q: %s the %d. time, %v", tt.value, p.Name, nth, err)
		}
	}
}
