package config

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// LoadOrchestrator reads the orchestrator's configuration: defaults, then file,
// then PENSTOCK_* environment variables, then flags that the user set, each
// overriding the one before. An empty file name means no file; a named file
// must exist. flags may be nil; see AddFlags.
//
// The error joins everything that is wrong: an unreadable file, unknown keys
// and variables, values of the wrong type, what Validate finds, files of schemas
// and tokens that can't be used. The results are filled as far as possible even
// then, but only a nil error makes them usable.
func LoadOrchestrator(file string, flags *pflag.FlagSet) (Orchestrator, *Origins, error) {
	c := DefaultOrchestrator()
	l := newLoader(orchestratorProgram, &c, file, flags)
	l.urlFile("postgres", &c.Postgres.URL, c.Postgres.URLFile)
	l.urlFile("redis", &c.Redis.URL, c.Redis.URLFile)
	l.schemas(c.Types, file)
	l.tokens(c.Auth.TokensFile)
	return c, l.origins, l.finish(c.check())
}

// LoadWorker reads the worker's configuration as LoadOrchestrator does.
// Handlers come from the file only.
func LoadWorker(file string, flags *pflag.FlagSet) (Worker, *Origins, error) {
	c := DefaultWorker()
	l := newLoader(workerProgram, &c, file, flags)
	l.urlFile("redis", &c.Redis.URL, c.Redis.URLFile)
	o := &c.Orchestrator
	l.secretFile("orchestrator.token", &o.Token, "orchestrator.token_file", o.TokenFile, "token", SourceTokenFile)
	return c, l.origins, l.finish(c.check())
}

// LoadClient reads the clients' configuration as LoadOrchestrator does.
func LoadClient(file string, flags *pflag.FlagSet) (Client, *Origins, error) {
	c := DefaultClient()
	l := newLoader(clientProgram, &c, file, flags)
	l.tokenFile(&c)
	return c, l.origins, l.finish(c.check())
}

// loader gathers one configuration.
type loader struct {
	keys    []Key
	origins *Origins
	faults  faults
	broken  map[string]bool // keys (see entryOf) whose value was refused
}

// newLoader fills cfg, a pointer to a struct that holds the defaults.
func newLoader(program string, cfg any, file string, flags *pflag.FlagSet) *loader {
	l := &loader{
		keys:    Keys(cfg),
		origins: &Origins{byKey: make(map[string]Origin)},
		broken:  make(map[string]bool),
	}
	var inFile map[string]any
	if file != "" {
		tree, err := readFile(file)
		l.faults.add(err)
		var unknown faults
		inFile = newSchema(program, l.keys).flatten(&unknown, tree)
		unknown.locate(func(string) Origin { return Origin{SourceFile, file} })
		l.faults.merge(&unknown)
	}
	l.faults.merge(checkEnv(os.Environ()))
	l.merge(cfg, file, inFile, flags)
	return l
}

// merge lets viper pick each value by precedence and stores it in cfg.
func (l *loader) merge(cfg any, file string, inFile map[string]any, flags *pflag.FlagSet) {
	v := viper.New()
	dst := structOf(cfg)
	tree := make(map[string]any)
	for _, k := range l.keys {
		value, ok := inFile[k.Name]
		if ok {
			l.origins.set(k.Name, Origin{SourceFile, file})
		}
		if k.Type == typeMap {
			l.store(k, func(f *faults) { setValue(f, k.Name, dst.FieldByIndex(k.index), value, k.Secret) })
			continue
		}
		if ok {
			insert(tree, strings.Split(k.Name, "."), value)
		}
		l.faults.add(v.BindEnv(k.Name, k.Env))
		if os.Getenv(k.Env) != "" {
			l.origins.set(k.Name, Origin{SourceEnv, k.Env})
		}
		if flag := lookup(flags, k); flag != nil && flag.Changed {
			l.faults.add(v.BindPFlag(k.Name, flag))
			l.origins.set(k.Name, Origin{SourceFlag, "--" + flag.Name})
		}
	}
	l.faults.add(v.MergeConfigMap(tree))
	for _, k := range l.keys {
		if k.Type == typeMap || l.origins.Of(k.Name).Source == SourceDefault {
			continue
		}
		l.store(k, func(f *faults) { setValue(f, k.Name, dst.FieldByIndex(k.index), v.Get(k.Name), k.Secret) })
	}
}

// store runs set, which stores the value of k, and notes what it faults.
func (l *loader) store(k Key, set func(f *faults)) {
	var f faults
	set(&f)
	for _, err := range f.all {
		if one, ok := errors.AsType[*fault](err); ok {
			l.broken[entryOf(one.key)] = true
		}
	}
	f.locate(func(string) Origin { return l.origins.Of(k.Name) })
	l.faults.merge(&f)
}

// finish adds what validation found and returns everything that is wrong.
// A key whose value was refused is not faulted a second time.
func (l *loader) finish(invalid *faults) error {
	for _, err := range invalid.all {
		if one, ok := errors.AsType[*fault](err); ok && l.broken[entryOf(one.key)] {
			continue
		}
		l.faults.add(err)
	}
	l.faults.locate(func(key string) Origin { return l.origins.Of(settingOf(key)) })
	return l.faults.err()
}

// settingOf maps `handlers["x"].url` to "handlers" and leaves other keys alone.
func settingOf(key string) string {
	name, _, _ := strings.Cut(key, "[")
	return name
}

// entryOf maps `handlers["x"].url` to `handlers["x"]` and leaves other keys
// alone.
func entryOf(key string) string {
	return key[:1+max(strings.IndexByte(key, ']'), len(settingOf(key))-1)]
}

// insert stores value in a tree of maps.
func insert(tree map[string]any, path []string, value any) {
	for _, name := range path[:len(path)-1] {
		below, ok := tree[name].(map[string]any)
		if !ok {
			below = make(map[string]any)
			tree[name] = below
		}
		tree = below
	}
	tree[path[len(path)-1]] = value
}
