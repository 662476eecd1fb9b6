package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock-dev/penstock/internal/config"
)

func init() {
	cobra.AddTemplateFunc("own", func(fs *pflag.FlagSet) *pflag.FlagSet { return some(fs, false) })
	cobra.AddTemplateFunc("settings", func(fs *pflag.FlagSet) *pflag.FlagSet { return some(fs, true) })
}

// some returns the flags that are settings, or those that are not.
func some(fs *pflag.FlagSet, settings bool) *pflag.FlagSet {
	out := pflag.NewFlagSet("", pflag.ContinueOnError)
	out.SortFlags = fs.SortFlags
	fs.VisitAll(func(f *pflag.Flag) {
		if config.IsSetting(f) == settings {
			out.AddFlag(f)
		}
	})
	return out
}

// usageTemplate shows a command's own flags before the many with which settings
// can be set, so that they are found.
const usageTemplate = `Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Available Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{with (own .LocalFlags)}}{{if .HasAvailableFlags}}

Flags:
{{.FlagUsages | trimTrailingWhitespaces}}{{end}}{{end}}{{with (settings .LocalFlags)}}{{if .HasAvailableFlags}}

Settings, which a file or the environment can set as well (docs/configuration.md):
{{.FlagUsages | trimTrailingWhitespaces}}{{end}}{{end}}{{with (own .InheritedFlags)}}{{if .HasAvailableFlags}}

Global Flags:
{{.FlagUsages | trimTrailingWhitespaces}}{{end}}{{end}}{{with (settings .InheritedFlags)}}{{if .HasAvailableFlags}}

Global settings:
{{.FlagUsages | trimTrailingWhitespaces}}{{end}}{{end}}{{if .HasAvailableSubCommands}}

Use "{{.CommandPath}} [command] --help" for more information about a command.{{end}}
`
