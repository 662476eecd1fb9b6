package deploytest

import (
	"bytes"
	"go/version"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// instruction is one of a Dockerfile, its continuation lines joined.
type instruction struct{ name, args string }

// dockerfile splits a Dockerfile into its stages, each beginning with FROM.
func dockerfile(t *testing.T) [][]instruction {
	t.Helper()
	var stages [][]instruction
	var open string
	for line := range strings.Lines(string(read(t, deploy+"/Dockerfile"))) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if head, more := strings.CutSuffix(line, `\`); more {
			open += head
			continue
		}
		name, args, _ := strings.Cut(open+line, " ")
		open = ""
		if name == "FROM" {
			stages = append(stages, nil)
		}
		if len(stages) == 0 {
			t.Fatalf("Dockerfile: %s stands before FROM", name)
		}
		last := len(stages) - 1
		stages[last] = append(stages[last], instruction{name, strings.Join(strings.Fields(args), " ")})
	}
	return stages
}

// all returns the arguments of a stage's instructions of one name.
func all(stage []instruction, name string) []string {
	var list []string
	for _, i := range stage {
		if i.name == name {
			list = append(list, i.args)
		}
	}
	return list
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	stages := dockerfile(t)
	if len(stages) < 2 {
		t.Fatalf("%d stages, want several", len(stages))
	}
	from := regexp.MustCompile(`^(?:--platform=\S+ )?(\S+)(?: AS (\S+))?$`)
	names := map[string]bool{}
	for _, s := range stages {
		m := from.FindStringSubmatch(s[0].args)
		if m == nil {
			t.Fatalf("FROM %s: not understood", s[0].args)
		}
		if m[1] != "scratch" && !names[m[1]] && !pinned.MatchString(m[1]) {
			t.Errorf("FROM %s: has no tag such as 1.26.8-bookworm", m[1])
		}
		names[m[2]] = true
	}
	build, last := stages[0], stages[len(stages)-1]
	run := strings.Join(all(build, "RUN"), "\n")
	for _, want := range []string{
		"CGO_ENABLED=0", "-trimpath", "--mount=type=cache,target=/go/pkg/mod", "--mount=type=cache,target=/root/.cache/go-build",
		"./cmd/orchestrator ./cmd/worker ./cmd/dlq-replay",
	} {
		if !strings.Contains(run, want) {
			t.Errorf("the build lacks %q", want)
		}
	}
	if user := all(last, "USER"); len(user) != 1 || !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user[0]) {
		t.Errorf("last stage: USER %q, want one numeric user and group, not root", user)
	}
	var programs []string
	for _, c := range all(last, "COPY") {
		words := strings.Fields(c)
		if words[0] != "--from=build" {
			t.Errorf("last stage: COPY %s: copies from the context", c)
		}
		if words[len(words)-1] == "/usr/local/bin/" {
			programs = append(programs, words[1:len(words)-1]...)
		}
	}
	if want := []string{"/out/orchestrator", "/out/worker", "/out/dlq-replay"}; !slices.Equal(programs, want) {
		t.Errorf("last stage: copies the programs %q, want %q", programs, want)
	}
	for name, want := range map[string][]string{
		"STOPSIGNAL": {"SIGTERM"}, "ENTRYPOINT": nil, "HEALTHCHECK": nil, "RUN": nil, "EXPOSE": {"8080"},
		"ENV": {"PATH=/usr/local/bin"}, "CMD": {`["orchestrator", "--help"]`},
	} {
		if got := all(last, name); !slices.Equal(got, want) {
			t.Errorf("last stage: %s %q, want %q", name, got, want)
		}
	}
	for _, label := range []string{"title", "description", "source", "licenses", "version", "revision"} {
		if !strings.Contains(strings.Join(all(last, "LABEL"), " "), "org.opencontainers.image."+label+"=") {
			t.Errorf("last stage: no label org.opencontainers.image.%s", label)
		}
	}
}

func TestGoVersion(t *testing.T) {
	t.Parallel()
	image := regexp.MustCompile(`golang:(\d+\.\d+\.\d+)-`).FindStringSubmatch(dockerfile(t)[0][0].args)
	mod := regexp.MustCompile(`(?m)^go (\S+)$`).FindSubmatch(read(t, root+"/go.mod"))
	if image == nil || mod == nil {
		t.Fatalf("no version of Go found: image %q, go.mod %q", image, mod)
	}
	if version.Compare("go"+image[1], "go"+string(mod[1])) < 0 {
		t.Errorf("the image builds with Go %s, go.mod wants %s", image[1], mod[1])
	}
}

// The context must have every directory that the programs are made of, and
// nothing that could be secret.
func TestDockerignore(t *testing.T) {
	t.Parallel()
	var admitted []string
	lines := strings.Fields(string(bytes.TrimSpace(regexp.MustCompile(`(?m)^#.*$`).ReplaceAll(read(t, root+"/.dockerignore"), nil))))
	if len(lines) == 0 || lines[0] != "*" {
		t.Fatalf("the first pattern is not *: everything is admitted that is not named: %q", lines)
	}
	for _, l := range lines[1:] {
		if name, ok := strings.CutPrefix(l, "!"); ok {
			admitted = append(admitted, name)
		}
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{end}}{{end}}",
		root+"/cmd/orchestrator", root+"/cmd/worker", root+"/cmd/dlq-replay").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	want := map[string]bool{"LICENSE": true, "go.mod": true, "go.sum": true}
	for _, path := range strings.Fields(string(out)) {
		dir, _, _ := strings.Cut(strings.TrimPrefix(path, "github.com/penstock-dev/penstock/"), "/")
		want[dir] = true
	}
	slices.Sort(admitted)
	if got := slices.Sorted(maps.Keys(want)); !slices.Equal(admitted, got) {
		t.Errorf(".dockerignore admits %q, the image is made of %q", admitted, got)
	}
}
