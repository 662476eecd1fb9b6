package auth

import (
	"encoding/hex"
	"log/slog"
	"strings"
	"time"
)

var discard = slog.New(slog.DiscardHandler)

// lineOf writes an entry as a line.
func lineOf(e *entry) string {
	line := e.name + " " + hashPrefix + hex.EncodeToString(e.hash[:])
	if len(e.roles) > 0 {
		line += " " + rolesPrefix + strings.Join(e.roles, ",")
	}
	if !e.expires.IsZero() {
		line += " " + expiresPrefix + e.expires.Format(time.RFC3339Nano)
	}
	return line + "\n"
}
