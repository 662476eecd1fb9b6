package devtest

import (
	"flag"
	"runtime"
	"strconv"
)

const (
	// perCore is how many tests of a package run at once for each processor: they
	// mostly wait, for a server or for a time to pass.
	perCore = 2
	// perTest is the memory, in bytes, that a test with its orchestrators, workers
	// and connections may need, and that of the other packages beside it.
	perTest = 1 << 30
)

// fit bounds how many of a package's tests run at once by the processors and the
// memory, unless -parallel was given.
func fit() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	n := perCore * runtime.GOMAXPROCS(0)
	if free := freeMemory(); free > 0 {
		n = min(n, int(free/perTest))
	}
	_ = flag.Set("test.parallel", strconv.Itoa(max(n, 1)))
}
