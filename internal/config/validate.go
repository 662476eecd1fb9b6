package config

import (
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-dev/penstock/internal/auth"
	"github.com/penstock-dev/penstock/internal/streams"
)

// Validate checks every setting against its bounds. The error joins all
// faults, each of which starts with its key, e.g. "dispatch.window: must be at
// least 1, got 0". URLs may be empty here; see RequirePostgres and RequireRedis.
func (c Orchestrator) Validate() error { return c.check().err() }

func (c Orchestrator) check() *faults {
	f := &faults{}
	f.rules(c)
	f.address("server.listen", c.Server.Listen)
	if c.Debug.Listen != "" {
		f.loopback("debug.listen", c.Debug.Listen)
	}
	f.serverTLS(c.Server.TLS)
	for _, name := range c.Server.AllowedHosts {
		if !hostPattern.MatchString(name) {
			f.addf("server.allowed_hosts", "must be names without a port, such as penstock.example.com, *.example.com or *, got %q", name)
		}
	}
	if _, err := auth.ParseRoles(c.Auth.AnonymousRoles); err != nil {
		f.addf("auth.anonymous_roles", "%v", err)
	}
	f.postgresURL(c.Postgres.URL)
	f.redis(c.Redis)
	f.wholeMillis("enqueue.default_timeout", c.Enqueue.DefaultTimeout)
	f.retry(c.Retry)
	f.types(c)
	f.guard(c)
	f.metrics(c.Metrics)
	if r := c.Retention; r.Tombstones <= r.TrimGrace {
		f.addf("retention.tombstones", "must be longer than retention.trim_grace (%s), got %s", r.TrimGrace, r.Tombstones)
	}
	return f
}

// hostPattern is a name as server.allowed_hosts has them.
var hostPattern = regexp.MustCompile(`^(\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)$`)

// RequirePostgres returns an error if no Postgres URL is configured.
func (c Orchestrator) RequirePostgres() error { return require("postgres.url", c.Postgres.URL) }

// RequireRedis returns an error if no Redis URL is configured.
func (c Orchestrator) RequireRedis() error { return require("redis.url", c.Redis.URL) }

// Validate checks every setting against its bounds, as Orchestrator.Validate
// does, and each handler's keys against its kind. The Redis URL may be empty
// here; see RequireRedis.
func (c Worker) Validate() error { return c.check().err() }

func (c Worker) check() *faults {
	f := &faults{}
	f.rules(c)
	f.redis(c.Redis)
	f.queues(c.Queues, c.Concurrency)
	if c.Orchestrator.URL != "" {
		for _, s := range strings.Split(c.Orchestrator.URL, ",") {
			f.httpURL("orchestrator.url", strings.TrimSpace(s))
		}
	}
	f.token("orchestrator.token", c.Orchestrator.Token)
	f.pair("orchestrator.tls", c.Orchestrator.TLS.CertFile, c.Orchestrator.TLS.KeyFile)
	if c.HealthListen != "" {
		f.address("health_listen", c.HealthListen)
	}
	f.allow(c.HTTP.Allow)
	f.handlers(c.Handlers)
	if len(c.HTTP.Allow) == 0 {
		for _, h := range c.Handlers {
			if h.Kind == kindHTTP {
				f.addf("http.allow", "is empty, so handlers of kind http can reach nothing; name the hosts of their URLs")
				break
			}
		}
	}
	return f
}

// RequireRedis returns an error if no Redis URL is configured.
func (c Worker) RequireRedis() error { return require("redis.url", c.Redis.URL) }

// Validate checks that the server is an http:// or https:// URL, and that the
// token can be one.
func (c Client) Validate() error { return c.check().err() }

func (c Client) check() *faults {
	f := &faults{}
	f.httpURL("server", c.Server)
	f.token("token", c.Token)
	f.pair("tls", c.TLS.CertFile, c.TLS.KeyFile)
	return f
}

// token checks one that may be empty. No message repeats it.
func (f *faults) token(key, token string) {
	if token == "" {
		return
	}
	if err := auth.CheckToken(token); err != nil {
		f.addf(key, "%v", err)
	}
}

func require(key, value string) error {
	if value != "" {
		return nil
	}
	return &fault{key: key, msg: "is required; set it with " + envName(key) +
		", or name a file that holds it with " + envName(key+"_file")}
}

// rules checks what the tags of cfg's fields say.
func (f *faults) rules(cfg any) {
	v := structOf(cfg)
	for _, k := range Keys(cfg) {
		if msg := k.rule.check(v.FieldByIndex(k.index)); msg != "" {
			f.addf(k.Name, "%s", msg)
		}
	}
}

func (f *faults) wholeMillis(key string, d time.Duration) {
	if d > 0 && d%time.Millisecond != 0 {
		f.addf(key, "must be whole milliseconds, got %s", d)
	}
}

// address checks host:port. The host may be empty; the port is a number, 0 for
// any free one.
func (f *faults) address(key, addr string) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		f.addf(key, "must be host:port, got %q", addr)
		return
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		f.addf(key, "must end in a port from 0 to 65535, got %q", addr)
	} else if strconv.FormatUint(n, 10) != port {
		f.addf(key, "must end in a plain port number, got %q", addr)
	}
}

// loopback checks host:port of a listener that only this machine may reach. The
// host must say so: a name could be resolved to anything.
func (f *faults) loopback(key, addr string) {
	f.address(key, addr)
	host, _, err := net.SplitHostPort(addr)
	if err != nil || host == "localhost" {
		return
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		f.addf(key, "must be an address of this machine alone, such as 127.0.0.1:6060, got %q", addr)
	}
}

// postgresURL checks the scheme only: hosts may be a list, which is no URL by
// the book. The value is secret, so no message repeats it.
func (f *faults) postgresURL(s string) {
	if s == "" {
		return
	}
	if !hasScheme(s, "postgres", "postgresql") {
		f.addf("postgres.url", "must start with postgres:// or postgresql://")
	}
}

func (f *faults) redis(c Redis) {
	if err := streams.CheckPrefix(c.KeyPrefix); err != nil {
		f.addf("redis.key_prefix", "%v", err)
	}
	s := c.URL
	if s == "" {
		return
	}
	if !hasScheme(s, "redis", "rediss", "unix") {
		f.addf("redis.url", "must start with redis://, rediss:// or unix://")
		return
	}
	// The parser's own message may repeat a part of the password.
	u, err := url.Parse(s)
	if err != nil {
		f.addf("redis.url", "is not a URL; special characters in a password must be percent-encoded")
		return
	}
	if u.Scheme == "unix" && u.Path == "" {
		f.addf("redis.url", "names no socket; write unix:///path/to/socket")
	}
}

// httpURL checks an absolute http or https URL. The value may hold a password,
// so no message repeats it.
func (f *faults) httpURL(key, s string) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		f.addf(key, "is not a URL; special characters must be percent-encoded")
	case u.Scheme != "http" && u.Scheme != "https":
		f.addf(key, "must start with http:// or https://")
	case u.Hostname() == "":
		f.addf(key, "names no host")
	case u.Fragment != "":
		f.addf(key, "must not have a fragment (#)")
	}
}

// hasScheme reports whether s is one of the schemes, "://" and something more.
func hasScheme(s string, schemes ...string) bool {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || rest == "" {
		return false
	}
	for _, want := range schemes {
		if strings.EqualFold(scheme, want) {
			return true
		}
	}
	return false
}

// Bounds of what metrics name.
const (
	maxMetricQueues = 50
	maxMetricTypes  = 200
)

func (f *faults) metrics(m Metrics) {
	f.names("metrics.queues", m.Queues, maxMetricQueues, queueName, "queues of 1 to 64 of A-Z a-z 0-9 . _ -")
	f.names("metrics.types", m.Types, maxMetricTypes, taskType, "task types of 1 to 128 of A-Z a-z 0-9 . _ - : /")
}

// names checks a list that may be empty.
func (f *faults) names(key string, list []string, most int, pattern *regexp.Regexp, want string) {
	if len(list) > most {
		f.addf(key, "must be at most %d, got %d", most, len(list))
	}
	for _, n := range list {
		if !pattern.MatchString(n) {
			f.addf(key, "must be %s, got %q", want, n)
		}
	}
}

var queueName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func (f *faults) queues(queues []string, concurrency int) {
	const key = "queues"
	if len(queues) == 0 {
		f.addf(key, "must name at least one queue")
	}
	if len(queues) > concurrency {
		f.addf(key, "must be at most concurrency (%d) many, got %d", concurrency, len(queues))
	}
	seen := make(map[string]bool, len(queues))
	for _, q := range queues {
		switch {
		case !queueName.MatchString(q):
			f.addf(key, "must each be 1 to 64 of A-Z a-z 0-9 . _ -, got %q", q)
		case seen[q]:
			f.addf(key, "names %q twice", q)
		}
		seen[q] = true
	}
}
