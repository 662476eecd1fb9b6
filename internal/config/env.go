package config

import (
	"regexp"
	"slices"
	"strings"
)

const (
	// FileEnv is the environment variable that names the configuration file
	// where --config does not. The caller resolves it.
	FileEnv = "PENSTOCK_CONFIG"

	// taskEnvPrefix starts the variables that workers set for exec handlers;
	// testEnvPrefix starts those of the test suites. Neither are settings.
	taskEnvPrefix = "PENSTOCK_TASK_"
	testEnvPrefix = "PENSTOCK_TEST_"
)

// serviceEnv matches the variables that Kubernetes adds to every container for
// a Service whose name starts with "penstock".
var serviceEnv = regexp.MustCompile(`^PENSTOCK_([A-Z0-9_]+_)?(` +
	`SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=|` +
	`PORT(_[0-9]+_(TCP|UDP|SCTP))?=(tcp|udp|sctp)://|` +
	`PORT_[0-9]+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=)`)

// checkEnv faults variables in env (entries "NAME=value") that start with
// PENSTOCK_ and are no setting of any program: the programs of a deployment
// often share one environment. An empty variable counts as unset.
func checkEnv(env []string) *faults {
	known := []string{strings.TrimPrefix(FileEnv, envPrefix)}
	for _, p := range programs() {
		for _, k := range p.keys {
			if k.Env != "" {
				known = append(known, strings.TrimPrefix(k.Env, envPrefix))
			}
		}
	}
	f := &faults{}
	for _, entry := range slices.Sorted(slices.Values(env)) {
		name, value, _ := strings.Cut(entry, "=")
		rest, ours := strings.CutPrefix(name, envPrefix)
		switch {
		case !ours, value == "", slices.Contains(known, rest):
		case strings.HasPrefix(name, testEnvPrefix), strings.HasPrefix(name, taskEnvPrefix):
		case serviceEnv.MatchString(entry):
		case rest == "HANDLERS" || strings.HasPrefix(rest, "HANDLERS_"):
			f.addf(name, "unknown setting; handlers can be set in a file only")
		case rest == "TYPES" || strings.HasPrefix(rest, "TYPES_"):
			f.addf(name, "unknown setting; types can be set in a file only")
		default:
			f.addf(name, "unknown setting%s", hint(envPrefix, rest, known))
		}
	}
	return f
}
