package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kinds of handlers.
const (
	kindHTTP   = "http"
	kindExec   = "exec"
	kindInject = "inject"
)

var (
	taskType   = regexp.MustCompile(`^[A-Za-z0-9._:/-]{1,128}$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
	hostName   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)
)

// handlerKey is how messages name an entry of handlers: types may have dots.
func handlerKey(typ string) string { return fmt.Sprintf("handlers[%q]", typ) }

func (f *faults) handlers(handlers map[string]Handler) {
	for _, typ := range slices.Sorted(maps.Keys(handlers)) {
		key := handlerKey(typ)
		if !taskType.MatchString(typ) {
			f.addf(key, "a task type must be 1 to 128 of A-Z a-z 0-9 . _ - : /")
		}
		f.handler(key, handlers[typ])
	}
}

func (f *faults) handler(key string, h Handler) {
	v := structOf(h)
	for _, k := range Keys(h) {
		if msg := k.rule.check(v.FieldByIndex(k.index)); msg != "" {
			f.addf(key+"."+k.Name, "%s", msg)
		}
	}
	f.otherKinds(key, h)
	switch h.Kind {
	case kindHTTP:
		f.httpURL(key+".url", h.URL)
		f.headers(key+".headers", h.Headers)
	case kindExec:
		f.command(key, h)
	}
}

// otherKinds faults keys that are set but belong to another kind.
func (f *faults) otherKinds(key string, h Handler) {
	for _, k := range []struct {
		name  string
		set   bool
		kinds []string
	}{
		{"url", h.URL != "", []string{kindHTTP}},
		{"headers", len(h.Headers) > 0, []string{kindHTTP}},
		{"effects", h.Effects != "", []string{kindHTTP}},
		{"in_doubt", h.InDoubt != "", []string{kindHTTP}},
		{"key_form", h.KeyForm != "", []string{kindHTTP}},
		{"command", len(h.Command) > 0, []string{kindExec}},
		{"env", len(h.Env) > 0, []string{kindExec}},
		{"dir", h.Dir != "", []string{kindExec}},
		{"simulate_restart", h.SimulateRestart, []string{kindInject}},
		{"max_output_bytes", h.MaxOutputBytes != 0, []string{kindHTTP, kindExec}},
	} {
		if k.set && !slices.Contains(k.kinds, h.Kind) {
			f.addf(key+"."+k.name, "is for kind %s only", strings.Join(k.kinds, " or "))
		}
	}
}

func (f *faults) headers(key string, headers map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		if !headerName.MatchString(name) {
			f.addf(key, "%q is no header name", name)
		}
		if strings.ContainsFunc(headers[name], func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			f.addf(key, "the value of %q has control characters", name)
		}
	}
}

func (f *faults) command(key string, h Handler) {
	if len(h.Command) == 0 || h.Command[0] == "" {
		f.addf(key+".command", "must name a program")
	}
	for _, arg := range h.Command {
		if strings.ContainsRune(arg, 0) {
			f.addf(key+".command", "has an argument with a NUL character")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(h.Env)) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			f.addf(key+".env", "%q is no name of an environment variable", name)
		case strings.HasPrefix(name, taskEnvPrefix):
			f.addf(key+".env", "%s is set by the worker: names must not start with %s", name, taskEnvPrefix)
		case strings.ContainsRune(h.Env[name], 0):
			f.addf(key+".env", "the value of %s has a NUL character", name)
		}
	}
}

// allow checks the form of http.allow: a host or *.domain, with or without a
// port, or a CIDR.
func (f *faults) allow(entries []string) {
	for _, entry := range entries {
		if !allowEntry(entry) {
			f.addf("http.allow", "must each be a host or *.domain, with or without :port, or a CIDR, got %q", entry)
		}
	}
}

func allowEntry(entry string) bool {
	if strings.Contains(entry, "/") {
		_, err := netip.ParsePrefix(entry)
		return err == nil
	}
	if _, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
		return true
	}
	host := entry
	if strings.Contains(entry, ":") {
		h, port, err := net.SplitHostPort(entry)
		if err != nil {
			return false
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return false
		}
		if _, err := netip.ParseAddr(h); err == nil {
			return true
		}
		host = h
	}
	return hostName.MatchString(strings.TrimPrefix(host, "*."))
}
