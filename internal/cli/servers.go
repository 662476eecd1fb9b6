package cli

import (
	"fmt"
	"strings"

	"github.com/penstock-dev/penstock/internal/config"
	"github.com/penstock-dev/penstock/internal/devstack"
)

// findServers completes the URLs of the stores that a command reads directly:
// where neither is set, they are those of an orchestrator dev that runs in dir.
// Where one is set, one that is needed and missing is an error: a system's
// Postgres with another's Redis tells of differences that there are not, and may
// do harm.
func findServers(cfg *config.Orchestrator, dir string, needPostgres, needRedis bool) error {
	set := func() (have, lack []string) {
		for _, s := range []struct {
			key, url string
			needed   bool
		}{{"postgres.url", cfg.Postgres.URL, needPostgres}, {"redis.url", cfg.Redis.URL, needRedis}} {
			switch {
			case s.url != "":
				have = append(have, s.key)
			case s.needed:
				lack = append(lack, s.key)
			}
		}
		return have, lack
	}
	have, lack := set()
	if len(lack) == 0 {
		return nil
	}
	if len(have) > 0 {
		return usage(fmt.Errorf("%s is set, but %s is not: set both, or neither to use the servers of an orchestrator dev that runs on this machine", have[0], lack[0]))
	}
	var ok bool
	if cfg.Postgres.URL, cfg.Redis.URL, ok = devstack.Running(dir); !ok {
		return usage(fmt.Errorf("neither postgres.url nor redis.url is set, and no orchestrator dev runs in %s", dir))
	}
	if _, lack = set(); len(lack) > 0 {
		return usage(fmt.Errorf("the orchestrator dev in %s does not run every server itself: set postgres.url and redis.url (missing: %s)", dir, strings.Join(lack, ", ")))
	}
	return nil
}
