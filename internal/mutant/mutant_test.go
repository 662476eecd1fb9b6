package mutant

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		if got, err := parse(name); err != nil || got != name {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := parse("fence"); err == nil || !strings.Contains(err.Error(), `no bug "fence"; there are client-retries, `) {
		t.Errorf("an unknown name: %v", err)
	}
}

// The test build has no bugs, whatever is asked.
func TestNoneByDefault(t *testing.T) {
	t.Parallel()
	if Built {
		t.Fatal("tests are built with -tags mutants")
	}
	for _, name := range Names() {
		if On(name) {
			t.Errorf("%s is on", name)
		}
	}
}

// Each bug is planted somewhere outside of this package, in code that is no test.
func TestEveryBugIsPlanted(t *testing.T) {
	t.Parallel()
	idents := map[string]string{
		ClientRetries: "ClientRetries", AckBeforeOutcome: "AckBeforeOutcome", GroupAtEnd: "GroupAtEnd", FenceIgnored: "FenceIgnored", ForceClaim: "ForceClaim",
		EffectDoubtIsFree: "EffectDoubtIsFree",
	}
	var code strings.Builder
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "../mutant") {
			return err
		}
		b, err := os.ReadFile(path)
		code.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range Names() {
		if !strings.Contains(code.String(), "mutant.On(mutant."+idents[name]+")") {
			t.Errorf("%s is planted nowhere", name)
		}
	}
}

// A program built with the tag has the bug that its environment names, and
// refuses names that there are not.
func TestBuiltWithTheTag(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	src := `package main

import (
	"fmt"
	"os"

	"github.com/penstock-dev/penstock/internal/mutant"
)

func main() { fmt.Print(mutant.On(mutant.FenceIgnored), mutant.On(mutant.ForceClaim), os.Getenv(mutant.Env)) }
`
	file, err := filepath.Abs(filepath.Join("probe", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	real, overlay, bin := filepath.Join(dir, "main.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "bin")
	if err := os.WriteFile(real, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	// Overlaid, because only what is inside the module may import the package.
	if err := os.WriteFile(overlay, fmt.Appendf(nil, `{"Replace":{%q:%q}}`, file, real), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-tags", "mutants", "-overlay", overlay, "-o", bin, "./probe").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for value, want := range map[string]string{"": "false false", FenceIgnored: "true false", "fence": "exit status 2"} {
		cmd := exec.Command(bin)
		cmd.Env = []string{Env + "=" + value}
		out, err := cmd.CombinedOutput()
		got := string(out)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s=%s: %q, want %q (%s)", Env, value, got, want, out)
		}
	}
}
