package devstack

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// postgresDirs is where Debian and Ubuntu keep each major version of Postgres.
const postgresDirs = "/usr/lib/postgresql/*/bin"

// finder locates server programs.
type finder struct {
	path     string // a list of directories in the form of $PATH
	postgres string // a glob for further directories with Postgres programs
}

// programs holds the absolute paths of the programs found. A server that is
// not wanted has empty paths.
type programs struct {
	initdb, postgres, redis string
}

func systemFinder() finder {
	return finder{path: os.Getenv("PATH"), postgres: postgresDirs}
}

// find locates the programs of the wanted servers, or returns a *MissingError.
// An existing Postgres data directory, given as pgData, narrows the choice to
// the major version that created it.
func (f finder) find(postgres, redis bool, pgData string) (programs, error) {
	var found programs
	var missing []string
	if postgres {
		dirs := f.postgresBins()
		if len(dirs) == 0 {
			missing = append(missing, "postgres")
		} else {
			dir, err := matchingVersion(dirs, pgData)
			if err != nil {
				return found, err
			}
			found.postgres = filepath.Join(dir, "postgres")
			found.initdb = filepath.Join(dir, "initdb")
		}
	}
	if redis {
		for _, name := range []string{"redis-server", "valkey-server"} {
			for _, dir := range filepath.SplitList(f.path) {
				if p := filepath.Join(dir, name); found.redis == "" && filepath.IsAbs(p) && executable(p) {
					found.redis = p
				}
			}
		}
		if found.redis == "" {
			missing = append(missing, "redis-server")
		}
	}
	if len(missing) > 0 {
		return programs{}, &MissingError{What: missing}
	}
	return found, nil
}

// postgresBins returns the directories with both initdb and postgres: those on
// the path in order, then the versioned ones from the newest to the oldest.
func (f finder) postgresBins() []string {
	versioned, _ := filepath.Glob(f.postgres) // a malformed pattern finds nothing
	sort.SliceStable(versioned, func(i, j int) bool {
		return pathVersion(versioned[i]) > pathVersion(versioned[j])
	})
	var bins []string
	seen := map[string]bool{}
	for _, dir := range append(filepath.SplitList(f.path), versioned...) {
		program, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
		if err != nil || !filepath.IsAbs(program) {
			continue
		}
		bin := filepath.Dir(program)
		if !seen[bin] && executable(program) && executable(filepath.Join(bin, "initdb")) {
			seen[bin] = true
			bins = append(bins, bin)
		}
	}
	return bins
}

// pathVersion returns the major version in a path like /usr/lib/postgresql/15/bin.
func pathVersion(dir string) float64 {
	v, err := strconv.ParseFloat(filepath.Base(filepath.Dir(dir)), 64)
	if err != nil {
		return 0
	}
	return v
}

// matchingVersion picks the first of dirs whose Postgres can open pgData. Any
// will do while pgData does not exist.
func matchingVersion(dirs []string, pgData string) (string, error) {
	want, err := os.ReadFile(filepath.Join(pgData, "PG_VERSION"))
	if pgData == "" || os.IsNotExist(err) {
		return dirs[0], nil
	}
	if err != nil {
		return "", fmt.Errorf("devstack: reading the version of the Postgres data: %w", err)
	}
	major := string(bytes.TrimSpace(want))
	var have []string
	for _, dir := range dirs {
		v := majorVersion(dir)
		if v == major {
			return dir, nil
		}
		have = append(have, v)
	}
	return "", fmt.Errorf("devstack: the Postgres data in %s needs Postgres %s but only %s is installed; install postgresql-%s, or remove the directory to start afresh",
		pgData, major, strings.Join(have, ", "), major)
}

// majorVersion returns the major version of the Postgres installed in dir. The
// server's share directory tells it without running anything on Debian; other
// installations are asked.
func majorVersion(dir string) string {
	if v := pathVersion(dir); v > 0 {
		return filepath.Base(filepath.Dir(dir))
	}
	return askVersion(filepath.Join(dir, "postgres"))
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}
