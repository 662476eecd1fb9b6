// Package handlers holds the task handlers that cmd/worker offers without
// writing Go. A handler is declared in the worker's configuration file, under
// the name of the task type it runs:
//
//	handlers:
//	  email.send: {kind: http, url: "https://mail.example.com/send"}
//	  report.build: {kind: exec, command: ["report", "--id={{task_id}}"]}
//
// The kinds are echo, sleep, inject, http and exec. A declaration is checked whole when
// the worker starts; what can be known then is never left to the first task.
//
// A result is a JSON value that the store accepts: valid UTF-8, without the
// escape \u0000 and without half a surrogate pair. See New for the bounds.
package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/protocol"
	"github.com/penstock-dev/penstock/task"
)

const (
	// defaultMaxOutput is the bound on a response body or standard output, in
	// bytes, of a declaration that names none.
	defaultMaxOutput = 256 << 10
	// largestMaxOutput is the largest bound that may be declared, in bytes: a
	// result is held in memory several times on its way to the record.
	largestMaxOutput = protocol.MaxContent
	// maxTypeLen is the longest name of a task type, in bytes.
	maxTypeLen = 128
)

// New makes the handler that h declares for tasks of type typ. net limits what
// an http handler may reach; the other kinds ignore it, but it is checked in
// any case. A nil log discards.
//
// An http or exec handler keeps at most h.MaxOutputBytes bytes of output (0:
// 262144; at most 8 MiB); a longer output is a permanent failure.
//
// The error joins everything that is wrong with the declaration, each with the
// type and the key: "handlers.email.send.url: …". It never contains the value
// of a header or environment variable, nor the path or query of a URL.
func New(typ string, h config.Handler, net config.HTTPClient, log *slog.Logger) (task.Handler, error) {
	rules, err := parseAllow(net)
	th, buildErr := build(typ, h, rules, log)
	if err := errors.Join(err, buildErr); err != nil {
		return nil, err
	}
	return th, nil
}

// All makes the handlers of all declared types, keyed by type. The error joins
// what is wrong with any of the declarations, in the order of their types; see
// New for its form. If it is not nil there are no handlers.
func All(hs map[string]config.Handler, net config.HTTPClient, log *slog.Logger) (map[string]task.Handler, error) {
	rules, err := parseAllow(net)
	errs := []error{err}
	out := make(map[string]task.Handler, len(hs))
	for _, typ := range slices.Sorted(maps.Keys(hs)) {
		th, err := build(typ, hs[typ], rules, log)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out[typ] = th
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// build is New after the allow-list has been parsed.
func build(typ string, h config.Handler, rules allowList, log *slog.Logger) (task.Handler, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	log = log.With(slog.String("task_type", typ), slog.String("handler", h.Kind))
	d := &declaration{typ: typ, Handler: h}
	if !validType(typ) {
		d.errs = append(d.errs, fmt.Errorf(
			"handlers: %q is no task type: it is 1 to %d bytes of A-Z a-z 0-9 . _ - : and /", typ, maxTypeLen))
	}
	if d.MaxOutputBytes < 0 || d.MaxOutputBytes > largestMaxOutput {
		d.fail("max_output_bytes", "%d is not between 0 and %d", d.MaxOutputBytes, largestMaxOutput)
	}
	var th task.Handler
	switch h.Kind {
	case "echo":
		d.refuseOthers(false, false)
		th = echo
	case "sleep":
		d.refuseOthers(false, false)
		th = sleep
	case "inject":
		d.refuseOthers(false, false)
		th = newInject(d.SimulateRestart, log).run
	case "http":
		d.refuseOthers(true, false)
		th = newHTTP(d, rules, log).run
	case "exec":
		d.refuseOthers(false, true)
		th = newExec(d, log).run
	case "":
		d.fail("kind", "missing: it is http, exec, echo, sleep or inject")
	default:
		d.fail("kind", "%q is not http, exec, echo, sleep or inject", h.Kind)
	}
	if err := errors.Join(d.errs...); err != nil {
		return nil, err
	}
	return th, nil
}

// declaration is a config.Handler under validation; it collects what is wrong.
type declaration struct {
	typ string
	config.Handler
	errs []error
}

// fail records that the value of key can't be used.
func (d *declaration) fail(key, format string, args ...any) {
	d.errs = append(d.errs, fmt.Errorf("handlers.%s.%s: %w", d.typ, key, fmt.Errorf(format, args...)))
}

// refuseOthers records the keys that are set though the kind has no use for
// them: they are a mistake that would otherwise pass unnoticed.
func (d *declaration) refuseOthers(http, exec bool) {
	for _, k := range []struct {
		key     string
		set, ok bool
	}{
		{"url", d.URL != "", http},
		{"headers", len(d.Headers) > 0, http},
		{"effects", d.Effects != "", http},
		{"in_doubt", d.InDoubt != "", http},
		{"key_form", d.KeyForm != "", http},
		{"command", len(d.Command) > 0, exec},
		{"env", len(d.Env) > 0, exec},
		{"dir", d.Dir != "", exec},
		{"simulate_restart", d.SimulateRestart, d.Kind == "inject"},
		{"max_output_bytes", d.MaxOutputBytes != 0, http || exec},
	} {
		if k.set && !k.ok {
			d.fail(k.key, "does not apply to kind %s", d.Kind)
		}
	}
}

// maxOutput returns the bound on the output in bytes.
func (d *declaration) maxOutput() int {
	if d.MaxOutputBytes == 0 {
		return defaultMaxOutput
	}
	return d.MaxOutputBytes
}

// validType reports whether typ is a task type by the server's rule.
func validType(typ string) bool {
	if typ == "" || len(typ) > maxTypeLen {
		return false
	}
	for _, c := range []byte(typ) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.', c == '_', c == '-', c == ':', c == '/':
		default:
			return false
		}
	}
	return true
}

// payloadOf returns the payload, which is null if none came with the task.
func payloadOf(r *task.Raw) json.RawMessage {
	if len(r.Payload) == 0 {
		return json.RawMessage("null")
	}
	return r.Payload
}

// echo returns the payload as the result.
func echo(_ context.Context, r *task.Raw) (json.RawMessage, error) {
	return resultOf("payload", payloadOf(r))
}

// logAttrs names the execution in a log line.
func logAttrs(r *task.Raw) slog.Attr {
	return slog.Group("", slog.String("task_id", r.TaskID), slog.Int("attempt", r.Attempt),
		slog.Int64("delivery", r.Delivery), slog.String("trace_id", r.TraceID))
}
