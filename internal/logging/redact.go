package logging

import (
	"log/slog"
	"net/url"
	"time"

	"github.com/penstock-dev/penstock/internal/config"
)

// redact hides passwords in one attribute, and gives durations their unit, which
// JSON would leave out. Handlers call it for the message as well, and for the
// parts of a group one by one.
func redact(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindDuration:
		return slog.String(a.Key, a.Value.Duration().String())
	case slog.KindString:
		s := a.Value.String()
		if clean := config.RedactText(s); clean != s {
			return slog.String(a.Key, clean)
		}
	case slog.KindAny:
		return redactAny(a)
	}
	return a
}

func redactAny(a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case error:
		// Always as a string: other ways to print an error may show more.
		if s, ok := errorText(v); ok {
			return slog.String(a.Key, config.RedactText(s))
		}
	case *url.URL:
		if v != nil {
			return slog.String(a.Key, config.RedactURL(v.String()))
		}
	case *time.Duration:
		if v != nil {
			return slog.String(a.Key, v.String())
		}
	case []time.Duration:
		texts := make([]string, len(v))
		for i, d := range v {
			texts[i] = d.String()
		}
		return slog.Any(a.Key, texts)
	case []string:
		clean := make([]string, len(v))
		for i, s := range v {
			clean[i] = config.RedactText(s)
		}
		return slog.Any(a.Key, clean)
	}
	return a
}

// errorText returns err.Error(). It is not ok if that panics, as methods of a
// nil pointer in an error may; handlers know how to show those.
func errorText(err error) (s string, ok bool) {
	defer func() {
		if recover() != nil {
			s, ok = "", false
		}
	}()
	return err.Error(), true
}
