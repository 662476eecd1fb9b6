package cli

import "runtime/debug"

// buildVersion is set by release builds (-ldflags -X).
var buildVersion string

// version is what the build was told, else the module's version as Go
// recorded it.
func version() string {
	if buildVersion != "" {
		return buildVersion
	}
	if i, ok := debug.ReadBuildInfo(); ok && i.Main.Version != "" {
		return i.Main.Version
	}
	return "(devel)"
}
