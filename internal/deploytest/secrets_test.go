package deploytest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v3"

	"github.com/penstock-dev/penstock/internal/config"
)

var (
	secretFiles = []string{"postgres_owner_password", "postgres_owner_url", "postgres_password", "postgres_url", "redis_password", "redis_url"}
	secretPath  = regexp.MustCompile(secretsDir + `([A-Za-z0-9_.-]+)`)
)

// mentions returns the secrets that a service's command, health check,
// environment and mounted files name.
func mentions(t *testing.T, p *types.Project, s types.ServiceConfig) []string {
	t.Helper()
	texts := slices.Concat(s.Entrypoint, s.Command)
	if s.HealthCheck != nil {
		texts = append(texts, s.HealthCheck.Test...)
	}
	for _, v := range s.Environment {
		texts = append(texts, *v)
	}
	for _, c := range s.Configs {
		texts = append(texts, string(read(t, p.Configs[c.Source].File)))
	}
	found := map[string]bool{}
	for _, m := range secretPath.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		found[m[1]] = true
	}
	return slices.Sorted(maps.Keys(found))
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	p := compose(t, nil)
	used := map[string]bool{}
	for _, s := range services(p) {
		var has []string
		for _, secret := range s.Secrets {
			has = append(has, secret.Source)
			used[secret.Source] = true
		}
		slices.Sort(has)
		if named := mentions(t, p, s); !slices.Equal(has, named) {
			t.Errorf("%s: has secrets %q and reads %q", s.Name, has, named)
		}
	}
	dir := secrets(t)
	for name, secret := range p.Secrets {
		if !used[name] {
			t.Errorf("secret %s is of no use to any service", name)
		}
		if secret.Environment != "" || secret.Content != "" || filepath.Base(secret.File) != name {
			t.Errorf("secret %s: is %+v, want the file of that name", name, secret)
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("secret %s: init-secrets.sh does not make it", name)
		}
	}
}

func TestSecretsFromEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{}
	for _, name := range secretFiles {
		env[strings.ToUpper(name)] = "x"
	}
	p := compose(t, env, envSecrets)
	if got := slices.Sorted(maps.Keys(p.Secrets)); !slices.Equal(got, secretFiles) {
		t.Errorf("secrets are %q, want %q", got, secretFiles)
	}
	for name, s := range p.Secrets {
		if s.File != "" || s.Environment != strings.ToUpper(name) {
			t.Errorf("secret %s: is from file %q, variable %q; want variable %s only", name, s.File, s.Environment, strings.ToUpper(name))
		}
	}
	for _, s := range services(p) {
		// Compose copies such secrets, which a read-only root file system refuses.
		if s.ReadOnly == (len(s.Secrets) > 0) {
			t.Errorf("%s: read_only is %t with %d secrets", s.Name, s.ReadOnly, len(s.Secrets))
		}
	}
}

func TestInitSecrets(t *testing.T) {
	t.Parallel()
	dir := secrets(t)
	before := map[string]string{}
	for _, name := range secretFiles {
		path := filepath.Join(dir, name)
		before[name] = strings.TrimSpace(string(read(t, path)))
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o444 {
			t.Errorf("%s: mode %v, %v; want readable by the containers' users", name, st.Mode(), err)
		}
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("directory: mode %v, %v; want 0700", st.Mode(), err)
	}
	seen := map[string]bool{}
	for _, name := range secretFiles {
		if !strings.HasSuffix(name, "_password") {
			continue
		}
		if pw := before[name]; len(pw) != 64 || seen[pw] {
			t.Errorf("%s: %d characters, seen before: %t; want 64 of its own", name, len(pw), seen[pw])
		}
		seen[before[name]] = true
	}
	if out := initSecrets(t, dir); strings.Contains(out, "made") {
		t.Errorf("a second run made secrets again:\n%s", out)
	}
	for _, name := range secretFiles {
		if now := strings.TrimSpace(string(read(t, filepath.Join(dir, name)))); now != before[name] {
			t.Errorf("%s: changed by a second run", name)
		}
	}
}

func TestInitSecretsKeepsAGivenPassword(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		password string
		ok       bool
	}{{"own-Password_1.2~3", true}, {"p@ss/word", false}} {
		dir := filepath.Dir(write(t, "redis_password", c.password+"\n"))
		out, err := exec.Command("sh", deploy+"/init-secrets.sh", dir).CombinedOutput()
		if (err == nil) != c.ok {
			t.Errorf("password %q: %v\n%s", c.password, err, out)
			continue
		}
		if !c.ok {
			if !bytes.Contains(out, []byte("redis_url yourself")) {
				t.Errorf("password %q: the message does not say what to do:\n%s", c.password, out)
			}
			continue
		}
		if got, want := string(read(t, filepath.Join(dir, "redis_url"))), "redis://:"+c.password+"@redis:6379/0\n"; got != want {
			t.Errorf("redis_url is %q, want %q", got, want)
		}
	}
}

// The URLs must fit the stores that the Compose file starts.
func TestURLs(t *testing.T) {
	t.Parallel()
	p := compose(t, nil)
	pg := p.Services["postgres"].Environment
	roles := string(read(t, deploy+"/postgres-roles.sql"))
	for _, c := range []struct{ name, user, path string }{
		{"postgres_owner_url", *pg["POSTGRES_USER"], "/" + *pg["POSTGRES_DB"]},
		{"postgres_url", "penstock", "/" + *pg["POSTGRES_DB"]},
		{"redis_url", "", "/0"},
	} {
		dir := secrets(t)
		u, err := url.Parse(strings.TrimSpace(string(read(t, filepath.Join(dir, c.name)))))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		password := strings.TrimSpace(string(read(t, filepath.Join(dir, strings.TrimSuffix(c.name, "url")+"password"))))
		if got, _ := u.User.Password(); got != password || u.User.Username() != c.user || u.Path != c.path {
			t.Errorf("%s: user %q, path %q, password as in its file: %t; want %q and %q", c.name, u.User.Username(), u.Path, got == password, c.user, c.path)
		}
		if _, ok := p.Services[u.Hostname()]; !ok {
			t.Errorf("%s: host %q is no service", c.name, u.Hostname())
		}
	}
	for _, want := range []string{
		"CREATE ROLE " + config.DefaultOrchestrator().Postgres.Role + " NOLOGIN;",
		"CREATE ROLE penstock LOGIN PASSWORD :'password' IN ROLE " + config.DefaultOrchestrator().Postgres.Role + ";",
	} {
		if !strings.Contains(roles, want) {
			t.Errorf("postgres-roles.sql lacks %q", want)
		}
	}
}

func TestRedisConf(t *testing.T) {
	t.Parallel()
	got := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(read(t, deploy+"/redis.conf")))
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), " "); ok && key != "#" {
			got[key] = value
		}
	}
	for key, want := range map[string]string{
		"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "maxmemory": "512mb", "dir": "/data",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	if got["requirepass"] != "" {
		t.Error("redis.conf holds a password")
	}
	// Rewriting the append-only file can copy every page.
	if limit := int64(compose(t, nil).Services["redis"].Deploy.Resources.Limits.MemoryBytes); limit < 2*512<<20 {
		t.Errorf("redis: limit of memory is %d MiB, want at least twice maxmemory", limit>>20)
	}
}

// .env.example has every variable of the Compose file, with its default.
func TestEnvExample(t *testing.T) {
	t.Parallel()
	example := map[string]string{}
	for line := range strings.Lines(string(read(t, deploy+"/.env.example"))) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || value == "" {
			t.Errorf("line %q is not NAME=VALUE", line)
		}
		example[name] = value
	}
	var dict map[string]any
	if err := yaml.Unmarshal(read(t, composeFile), &dict); err != nil {
		t.Fatal(err)
	}
	vars := template.ExtractVariables(dict, template.DefaultPattern)
	if got, want := slices.Sorted(maps.Keys(example)), slices.Sorted(maps.Keys(vars)); !slices.Equal(got, want) {
		t.Errorf(".env.example has %q, docker-compose.yml uses %q", got, want)
	}
	for name, v := range vars {
		if v.DefaultValue == "" {
			t.Errorf("%s: has no default", name)
		}
		// The programs refuse variables of that prefix that they don't know.
		if strings.HasPrefix(name, "PENSTOCK_") {
			t.Errorf("%s: the prefix is for settings of the programs", name)
		}
	}
	plain, err := json.Marshal(compose(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	filled, err := json.Marshal(compose(t, example))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(plain, filled) {
		t.Errorf("the values in .env.example are not the defaults:\n%s\n%s", filled, plain)
	}
}
