package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock-dev/penstock/internal/config"
)

// each calls fn for a command and all below it.
func each(c *cobra.Command, fn func(*cobra.Command)) {
	fn(c)
	for _, sub := range c.Commands() {
		each(sub, fn)
	}
}

// TestOwnFlagsFirst: what a command alone has is not hidden among a hundred
// settings, and nothing is left out.
func TestOwnFlagsFirst(t *testing.T) {
	t.Parallel()
	for _, root := range []*cobra.Command{Orchestrator(), Worker(), DLQReplay()} {
		each(root, func(c *cobra.Command) {
			text := c.UsageString()
			lastOwn, firstSetting := -1, len(text)
			c.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if f.Hidden {
					return
				}
				at := strings.Index(text, "--"+f.Name+" ")
				switch {
				case at < 0:
					t.Errorf("%s: --%s is missing", c.CommandPath(), f.Name)
				case config.IsSetting(f):
					firstSetting = min(firstSetting, strings.LastIndex(text, "      --"+f.Name+" "))
				default:
					lastOwn = max(lastOwn, at)
				}
			})
			if lastOwn > firstSetting {
				t.Errorf("%s: settings come before its own flags:\n%s", c.CommandPath(), text)
			}
		})
	}
	text := run(t, Orchestrator(), "", "verify", "--help").out
	since, setting := strings.Index(text, "--since"), strings.Index(text, "--alerts-interval")
	if since < 0 || setting < since || !strings.Contains(text, "\nSettings, which") {
		t.Errorf("verify --help: %s", text)
	}
}
