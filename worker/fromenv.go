package worker

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/internal/tlsfiles"
)

// FromEnv reads PENSTOCK_REDIS_URL, PENSTOCK_REDIS_KEY_PREFIX, PENSTOCK_QUEUES (comma-separated),
// PENSTOCK_CONCURRENCY, PENSTOCK_VISIBILITY_TIMEOUT, PENSTOCK_SHUTDOWN_GRACE,
// PENSTOCK_START_DEADLINE, PENSTOCK_ORCHESTRATOR_URL,
// PENSTOCK_ORCHESTRATOR_TOKEN, PENSTOCK_HEARTBEAT_INTERVAL, PENSTOCK_HEALTH_LISTEN, and
// PENSTOCK_ORCHESTRATOR_TLS_CA_FILE, …_CERT_FILE and …_KEY_FILE, PEM files for
// OrchestratorTLS. PENSTOCK_REDIS_URL_FILE and PENSTOCK_ORCHESTRATOR_TOKEN_FILE
// name files that hold the value instead, e.g. mounted secrets; space around it is
// ignored. New returns the error of a value that does not parse, or of a file that
// can't be used.
func FromEnv() Options {
	var o Options
	var secrets []error
	for name, to := range map[string]*string{"PENSTOCK_REDIS_URL": &o.RedisURL, "PENSTOCK_ORCHESTRATOR_TOKEN": &o.OrchestratorToken} {
		value, err := secretEnv(name)
		*to, secrets = value, append(secrets, err)
	}
	o.HealthListen = os.Getenv("PENSTOCK_HEALTH_LISTEN")
	o.RedisKeyPrefix = os.Getenv("PENSTOCK_REDIS_KEY_PREFIX")
	o.OrchestratorURL = os.Getenv("PENSTOCK_ORCHESTRATOR_URL")
	o.OrchestratorTLS, o.err = tlsfiles.Client{
		CAFile: os.Getenv("PENSTOCK_ORCHESTRATOR_TLS_CA_FILE"), CertFile: os.Getenv("PENSTOCK_ORCHESTRATOR_TLS_CERT_FILE"),
		KeyFile: os.Getenv("PENSTOCK_ORCHESTRATOR_TLS_KEY_FILE"),
	}.Config()
	if qs := os.Getenv("PENSTOCK_QUEUES"); qs != "" {
		for _, q := range strings.Split(qs, ",") {
			o.Queues = append(o.Queues, strings.TrimSpace(q))
		}
	}
	if c := os.Getenv("PENSTOCK_CONCURRENCY"); c != "" {
		n, err := strconv.Atoi(c)
		if err != nil {
			o.err = fmt.Errorf("PENSTOCK_CONCURRENCY: %q is not a whole number", c)
		}
		o.Concurrency = n
	}
	for name, d := range map[string]*time.Duration{
		"PENSTOCK_VISIBILITY_TIMEOUT": &o.VisibilityTimeout,
		"PENSTOCK_SHUTDOWN_GRACE":     &o.ShutdownGrace,
		"PENSTOCK_START_DEADLINE":     &o.StartDeadline,
		"PENSTOCK_HEARTBEAT_INTERVAL": &o.HeartbeatInterval,
	} {
		if s := os.Getenv(name); s != "" {
			v, err := time.ParseDuration(s)
			if err != nil {
				o.err = fmt.Errorf("%s: %q is not a duration such as 30s", name, s)
			}
			*d = v
		}
	}
	o.err = errors.Join(append(secrets, o.err)...)
	return o
}

// maxSecretBytes bounds a file that holds a secret.
const maxSecretBytes = 64 << 10

// secretEnv reads a variable, or the file that the one with _FILE after its name
// names.
func secretEnv(name string) (string, error) {
	value, path := os.Getenv(name), os.Getenv(name+"_FILE")
	if path == "" {
		return value, nil
	}
	if value != "" {
		return "", fmt.Errorf("%s and %s_FILE are both set; set only one of them", name, name)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s_FILE: %w", name, err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes))
	if err != nil {
		return "", fmt.Errorf("%s_FILE: %w", name, err)
	}
	secret := strings.TrimSpace(string(b))
	if secret == "" || strings.ContainsAny(secret, "\r\n") {
		return "", fmt.Errorf("%s_FILE: %s must hold one line, the value", name, path)
	}
	return secret, nil
}
