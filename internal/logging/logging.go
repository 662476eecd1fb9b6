// Package logging makes the process log: lines for people on a terminal, JSON
// elsewhere. Passwords in Postgres and Redis URLs never reach it.
package logging

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/lmittmann/tint"
	"github.com/mattn/go-isatty"

	"github.com/penstock-dev/penstock/internal/config"
)

// Formats of config.Log.
const (
	formatAuto = "auto"
	formatText = "text"
	formatJSON = "json"
)

// timeFormat is the time of a text line; JSON has RFC 3339.
const timeFormat = "2006-01-02 15:04:05.000"

// New returns a logger that writes records of cfg.Level and above to w. The
// format is text if cfg.Format is "text", or "auto" and w is a terminal, and
// JSON otherwise. Text has colours on a terminal unless NO_COLOR is set (to
// anything but an empty string) or TERM is "dumb". An empty level is info, an
// empty format auto; any other value that config.Log does not know is an error.
//
// The passwords of Postgres and Redis URLs are replaced by xxxxx in messages,
// in string values, in errors and in *url.URL values. The fields of other
// structs are not searched.
func New(w io.Writer, cfg config.Log) (*slog.Logger, error) {
	level, err := parseLevel(cfg.Level)
	if err != nil {
		return nil, err
	}
	terminal := isTerminal(w)
	colour := terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	h, err := newHandler(w, cfg.Format, level, terminal, colour)
	if err != nil {
		return nil, err
	}
	return slog.New(h), nil
}

func newHandler(w io.Writer, format string, level slog.Level, terminal, colour bool) (slog.Handler, error) {
	switch format {
	case formatText, formatJSON:
	case "", formatAuto:
		format = formatJSON
		if terminal {
			format = formatText
		}
	default:
		return nil, fmt.Errorf("log.format: must be auto, text or json, got %q", format)
	}
	if format == formatText {
		return tint.NewTextHandler(w, &tint.Options{
			Level:       level,
			ReplaceAttr: redact,
			TimeFormat:  timeFormat,
			NoColor:     !colour,
		}), nil
	}
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: redact}), nil
}

func parseLevel(name string) (slog.Level, error) {
	switch name {
	case "debug":
		return slog.LevelDebug, nil
	case "", "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log.level: must be debug, info, warn or error, got %q", name)
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}
