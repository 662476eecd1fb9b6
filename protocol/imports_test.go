package protocol

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// The contract's parts may import protocol without anything else, and its
// decisions can be replayed: no I/O, no clock, no chance.
func TestImportsAndPurity(t *testing.T) {
	t.Parallel()
	pkg, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	forbidden := []string{"os", "net", "io/fs", "syscall", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "context", "database/sql", "unsafe"}
	for _, path := range pkg.Imports {
		if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") || first == "C" {
			t.Errorf("imports %s, which is not in the standard library", path)
		}
		if slices.Contains(forbidden, path) || strings.HasPrefix(path, "net/") || strings.HasPrefix(path, "os/") {
			t.Errorf("imports %s: no I/O and no chance here", path)
		}
	}
	for _, name := range pkg.GoFiles {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" &&
				slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}, sel.Sel.Name) {
				t.Errorf("%s reads the clock: time.%s", fset.Position(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}
