// Command gendoc writes docs/configuration.md from the configuration structs.
package main

import (
	"embed"
	"flag"
	"fmt"
	"os"
	"path"
	"strings"
	"text/template"

	"github.com/penstock-dev/penstock/internal/config"
)

//go:embed configuration.md.tmpl example
var files embed.FS

func main() {
	out := flag.String("o", "docs/configuration.md", "file to write")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "gendoc:", err)
		os.Exit(1)
	}
}

func run(out string) error {
	text, err := render()
	if err != nil {
		return err
	}
	return os.WriteFile(out, []byte(text), 0o644)
}

// render returns the whole document.
func render() (string, error) {
	const name = "configuration.md.tmpl"
	t, err := template.New(name).Funcs(template.FuncMap{
		"example": example,
		"cell":    cell,
		"code":    code,
	}).ParseFS(files, name)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, map[string]any{
		"Orchestrator": config.Keys(config.DefaultOrchestrator()),
		"Worker":       config.Keys(config.DefaultWorker()),
		"Client":       config.Keys(config.DefaultClient()),
		"Handler":      config.HandlerKeys(),
		"Type":         config.TypeKeys(),
		"GuardRule":    config.GuardRuleKeys(),
	})
	return b.String(), err
}

// example returns an example file without the line break at its end.
func example(name string) (string, error) {
	b, err := files.ReadFile(path.Join("example", name))
	return strings.TrimRight(string(b), "\n"), err
}

// cell escapes what Markdown would take for markup in a table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", "&lt;").Replace(s)
}

// code sets s as code; an empty string stays empty.
func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(s, "|", `\|`) + "`"
}
