// Package version says which build this is.
package version

import "runtime/debug"

// build is set by release builds (-ldflags -X).
var build string

// String is what the build was told, else the module's version as Go recorded
// it.
func String() string {
	if build != "" {
		return build
	}
	if i, ok := debug.ReadBuildInfo(); ok && i.Main.Version != "" {
		return i.Main.Version
	}
	return "(devel)"
}
