package deploytest

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock-dev/penstock/internal/cli"
	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/handlers"
)

var trees = map[string]func() *cobra.Command{
	"orchestrator": cli.Orchestrator, "worker": cli.Worker, "dlq-replay": cli.DLQReplay,
}

// parse finds the command that words run in the programs' command trees, and
// parses its flags and arguments.
func parse(words []string) (*cobra.Command, error) {
	if len(words) == 0 {
		return nil, fmt.Errorf("no command")
	}
	tree := trees[words[0]]
	if tree == nil {
		return nil, fmt.Errorf("%q is no program in the image", words[0])
	}
	c, rest, err := tree().Find(words[1:])
	if err != nil {
		return nil, err
	}
	// A command that only holds others takes any word, to say that it is none
	// of them.
	if !c.Runnable() || c.HasSubCommands() && c.ValidateArgs([]string{"?"}) == nil {
		return nil, fmt.Errorf("%q names no command", words)
	}
	if err := c.ParseFlags(rest); err != nil {
		return nil, err
	}
	return c, c.ValidateArgs(c.Flags().Args())
}

// command returns what a service runs.
func command(t *testing.T, s types.ServiceConfig) *cobra.Command {
	t.Helper()
	c, err := parse(slices.Concat(s.Entrypoint, s.Command))
	if err != nil {
		t.Fatalf("%s: command: %v", s.Name, err)
	}
	return c
}

func TestParseHasTeeth(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{
		{}, {"sh"}, {"orchestrator"}, {"orchestrator", "serv"}, {"orchestrator", "serve", "now"},
		{"orchestrator", "serve", "--dispatch-windwo=1"}, {"worker", "run"}, {"dlq-replay", "show"},
	} {
		if _, err := parse(words); err == nil {
			t.Errorf("%q was accepted", words)
		}
	}
}

func TestCommands(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"orchestrator-1": "orchestrator serve", "orchestrator-2": "orchestrator serve", "migrate": "orchestrator migrate up",
		"worker": "worker", "dlq-replay": "dlq-replay list",
	}
	for _, s := range services(compose(t, nil)) {
		if !ours(s) {
			continue
		}
		if got := command(t, s).CommandPath(); got != want[s.Name] {
			t.Errorf("%s: runs %q, want %q", s.Name, got, want[s.Name])
		}
		if s.HealthCheck == nil {
			continue
		}
		c, err := parse(s.HealthCheck.Test[1:])
		if err != nil {
			t.Errorf("%s: health check: %v", s.Name, err)
		} else if c.Name() != "health" || c.Root().Name() != command(t, s).Root().Name() {
			t.Errorf("%s: health check runs %q, want the health command of its own program", s.Name, c.CommandPath())
		}
	}
}

// keys returns the settings of all programs by environment variable.
var keys = sync.OnceValue(func() map[string]config.Key {
	all := map[string]config.Key{}
	for _, cfg := range []any{config.DefaultOrchestrator(), config.DefaultWorker(), config.DefaultClient()} {
		for _, k := range config.Keys(cfg) {
			if k.Env != "" {
				all[k.Env] = k
			}
		}
	}
	return all
})

func TestEnvironment(t *testing.T) {
	t.Parallel()
	for _, s := range services(compose(t, nil)) {
		for _, name := range slices.Sorted(maps.Keys(s.Environment)) {
			value := s.Environment[name]
			if value == nil || *value == "" {
				t.Errorf("%s: %s has no value", s.Name, name)
				continue
			}
			if !strings.HasPrefix(name, "PENSTOCK_") || name == config.FileEnv && ours(s) {
				continue
			}
			k, known := keys()[name]
			switch {
			case !known:
				t.Errorf("%s: %s is no setting of any program", s.Name, name)
			case !ours(s):
				t.Errorf("%s: %s is set for a container that runs none of the programs", s.Name, name)
			case command(t, s).Flags().Lookup(k.Flag) == nil:
				t.Errorf("%s: %s is no setting of %q", s.Name, name, command(t, s).CommandPath())
			case k.Secret:
				for one := range strings.SplitSeq(*value, ",") {
					if u, err := url.Parse(one); err != nil || u.User != nil {
						t.Errorf("%s: %s has a user or password: it belongs into a secret, named by %s_FILE", s.Name, name, name)
					}
				}
			}
		}
	}
}

// settings returns a service's environment as flags that were set, with files
// from init-secrets.sh where it names secrets: the loaders read flags as they
// do variables, and tests that run at the same time share the environment.
func settings(t *testing.T, s types.ServiceConfig, cfg any) *pflag.FlagSet {
	t.Helper()
	dir := secrets(t)
	fs := pflag.NewFlagSet(s.Name, pflag.ContinueOnError)
	config.AddFlags(fs, cfg)
	for name, value := range s.Environment {
		k, known := keys()[name]
		if !known {
			continue
		}
		v := *value
		if secret, found := strings.CutPrefix(v, secretsDir); found {
			v = filepath.Join(dir, secret)
		}
		if err := fs.Set(k.Flag, v); err != nil {
			t.Fatalf("%s: %s: %v", s.Name, name, err)
		}
	}
	return fs
}

// orchestratorConfig is the configuration that an orchestrator or migrate has.
func orchestratorConfig(t *testing.T, s types.ServiceConfig) config.Orchestrator {
	t.Helper()
	cfg, _, err := config.LoadOrchestrator("", settings(t, s, config.DefaultOrchestrator()))
	if err != nil {
		t.Fatalf("%s: %v", s.Name, err)
	}
	return cfg
}

// workerConfig is the configuration that a worker has.
func workerConfig(t *testing.T, p *types.Project) config.Worker {
	t.Helper()
	s := p.Services["worker"]
	file := ""
	for _, c := range s.Configs {
		if v := s.Environment[config.FileEnv]; v != nil && c.Target == *v {
			file = p.Configs[c.Source].File
		}
	}
	if file == "" {
		t.Fatalf("worker: no configuration file is mounted where %s says", config.FileEnv)
	}
	cfg, _, err := config.LoadWorker(file, settings(t, s, config.DefaultWorker()))
	if err != nil {
		t.Fatalf("worker: %v", err)
	}
	return cfg
}

func TestConfigurations(t *testing.T) {
	t.Parallel()
	p := compose(t, map[string]string{"VISIBILITY_TIMEOUT": "90s"})
	w := workerConfig(t, p)
	if err := w.RequireRedis(); err != nil {
		t.Errorf("worker: %v", err)
	}
	if w.HealthListen == "" {
		t.Error("worker: health_listen is not set, so its health check fails")
	}
	for _, s := range services(p) {
		if !isOrchestrator(s) && s.Name != "migrate" {
			continue
		}
		o := orchestratorConfig(t, s)
		if err := o.RequirePostgres(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if s.Name == "migrate" {
			continue
		}
		if err := o.RequireRedis(); err != nil {
			t.Errorf("%s: %v", s.Name, err)
		}
		if o.Postgres.AutoMigrate {
			t.Errorf("%s: postgres.auto_migrate is on, but its login may not change the schema", s.Name)
		}
		if a, b := o.Recovery.VisibilityTimeout, w.VisibilityTimeout; a != 90*time.Second || a != b {
			t.Errorf("%s: visibility timeout is %s, that of workers %s, want 90s for both", s.Name, a, b)
		}
	}
	base, override := p.Services["orchestrator-1"].Environment, p.Services["orchestrator-2"].Environment
	if !maps.EqualFunc(base, override, func(a, b *string) bool { return *a == *b }) {
		t.Error("the two orchestrators differ in their environment")
	}
}

func TestHandlers(t *testing.T) {
	t.Parallel()
	w := workerConfig(t, compose(t, nil))
	hs, err := handlers.All(w.Handlers, w.HTTP, nil)
	if err != nil {
		t.Fatalf("worker.yaml: %v", err)
	}
	for _, typ := range []string{"echo", "sleep", "webhook.post"} {
		if hs[typ] == nil {
			t.Errorf("worker.yaml: no handler for %s", typ)
		}
	}
	for typ, h := range w.Handlers {
		if h.Kind == "exec" {
			t.Errorf("worker.yaml: handler %s starts a program, and the image has none", typ)
		}
	}
}

// A stopped container is killed only after its program has had its time.
func TestGracePeriods(t *testing.T) {
	t.Parallel()
	const margin = 5 * time.Second
	p := compose(t, nil)
	for _, s := range services(p) {
		var needs time.Duration
		switch {
		case isOrchestrator(s):
			needs = orchestratorConfig(t, s).Server.ShutdownGrace + margin
		case s.Name == "worker":
			needs = workerConfig(t, p).ShutdownGrace + margin
		case isStore(s):
			needs = 30 * time.Second
		default:
			continue
		}
		if s.StopGracePeriod == nil {
			t.Errorf("%s: has no stop_grace_period, want at least %s", s.Name, needs)
		} else if got := time.Duration(*s.StopGracePeriod); got < needs {
			t.Errorf("%s: stop_grace_period is %s, want at least %s", s.Name, got, needs)
		}
	}
}

// The Go runtime must know less memory than the container has.
func TestMemoryLimits(t *testing.T) {
	t.Parallel()
	for _, s := range services(compose(t, nil)) {
		v := s.Environment["GOMEMLIMIT"]
		if v == nil {
			if isOrchestrator(s) || s.Name == "worker" {
				t.Errorf("%s: has no GOMEMLIMIT", s.Name)
			}
			continue
		}
		var mib int64
		if _, err := fmt.Sscanf(*v, "%dMiB", &mib); err != nil {
			t.Errorf("%s: GOMEMLIMIT is %q, want a number of MiB", s.Name, *v)
		} else if limit := int64(s.Deploy.Resources.Limits.MemoryBytes); mib<<20 >= limit {
			t.Errorf("%s: GOMEMLIMIT is %s, the container's limit %d MiB", s.Name, *v, limit>>20)
		}
	}
}

// The README's calls of our programs must be valid.
func TestREADMECommands(t *testing.T) {
	t.Parallel()
	calls := regexp.MustCompile(`(?m)docker compose (?:exec orchestrator-1|run --rm) ((?:orchestrator|dlq-replay) .*)$`)
	found := calls.FindAllSubmatch(read(t, deploy+"/README.md"), -1)
	if len(found) < 4 {
		t.Errorf("README.md: %d calls found, want more", len(found))
	}
	for _, m := range found {
		words := strings.Fields(string(m[1]))
		if words[len(words)-1] == "--help" {
			continue
		}
		if _, err := parse(words); err != nil {
			t.Errorf("README.md: %s: %v", m[1], err)
		}
	}
}

var codeBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// What the README shows of worker.yaml must be accepted.
func TestREADMEHandlers(t *testing.T) {
	t.Parallel()
	blocks := codeBlock.FindAllSubmatch(read(t, deploy+"/README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("README.md: no yaml block found")
	}
	for _, b := range blocks {
		w, _, err := config.LoadWorker(write(t, "worker.yaml", string(b[1])), nil)
		if err == nil {
			_, err = handlers.All(w.Handlers, w.HTTP, nil)
		}
		if err != nil {
			t.Errorf("README.md: %s%v", b[1], err)
		}
	}
}

// secrets runs init-secrets.sh and returns the directory that it filled.
func secrets(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "secrets")
	initSecrets(t, dir)
	return dir
}

func initSecrets(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command("sh", deploy+"/init-secrets.sh", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("init-secrets.sh: %v\n%s", err, out)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatal(err)
	}
	return string(out)
}
