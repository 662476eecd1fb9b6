package devstack

import (
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
)

const (
	defaultRedisDatabases = 16
	maxRedisDatabases     = 65536
	defaultMaxConnections = 100
	maxMaxConnections     = 10000
)

// Options says which servers Start runs and how. The zero value runs both
// servers in a temporary directory, reachable over unix sockets only.
type Options struct {
	// Dir is the data directory. It is created when missing, and its contents
	// are kept when the stack stops, so a later Start on the same directory
	// finds the same data. Empty means a temporary directory that Stop
	// removes. When the caller is root the servers run as another user, so
	// every parent of Dir must be searchable by that user.
	Dir string

	// TempDir is where a temporary data directory is made; empty means the
	// system's directory for such.
	TempDir string

	// Postgres and Redis select the servers. Both false means both.
	Postgres, Redis bool

	// RedisDatabases is the number of logical Redis databases, 1 to 65536.
	// Zero means 16.
	RedisDatabases int

	// MaxConnections is the Postgres connection limit, 10 to 10000.
	// Zero means 100.
	MaxConnections int

	// Durable makes data survive a crash of the machine: Postgres syncs to
	// disk, and Redis keeps an append-only file synced once a second. Without
	// it Postgres still syncs (see FsyncOff) but Redis keeps data in memory
	// only, so a stopped Redis starts empty.
	Durable bool

	// FsyncOff switches off fsync, synchronous_commit and full_page_writes in
	// Postgres. A crash of the machine can then destroy the data, and a killed
	// Postgres (KillPostgres) loses what was committed in its last second or
	// so: tests that check what survives a crash leave it unset. It cannot be
	// combined with Durable.
	FsyncOff bool

	// Stock leaves Postgres the settings that initdb writes, but for addresses and
	// MaxConnections: what is measured is what others have. Without it Postgres
	// has more memory and less WAL.
	Stock bool

	// Preload is shared_preload_libraries of Postgres, such as pg_stat_statements,
	// whose files must be installed. Empty: none.
	Preload string

	// TCP makes both servers listen on 127.0.0.1, each on a free port and with
	// a generated password, so that containers in the host's network and other
	// users' processes can connect; PostgresURL and RedisURL then hold TCP
	// addresses. A data directory keeps its ports and passwords from one start
	// to the next; a port that another process has taken meanwhile is replaced.
	// Without TCP the servers listen on unix sockets only, which only the
	// caller's user and root can open.
	TCP bool

	// Log receives the supervisor's messages: servers started and stopped at
	// debug level, a server that exits unasked at error level. Nil discards
	// them. The servers' own logs are the files postgres.log and redis.log in
	// the data directory.
	Log *slog.Logger
}

// withDefaults returns o with the zero values filled in, or an error that
// names the first field out of bounds.
func (o Options) withDefaults() (Options, error) {
	if !o.Postgres && !o.Redis {
		o.Postgres, o.Redis = true, true
	}
	if o.RedisDatabases == 0 {
		o.RedisDatabases = defaultRedisDatabases
	}
	if o.RedisDatabases < 1 || o.RedisDatabases > maxRedisDatabases {
		return o, fmt.Errorf("devstack: RedisDatabases is %d; use 1 to %d, or 0 for %d",
			o.RedisDatabases, maxRedisDatabases, defaultRedisDatabases)
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultMaxConnections
	}
	if o.MaxConnections < 10 || o.MaxConnections > maxMaxConnections {
		return o, fmt.Errorf("devstack: MaxConnections is %d; use 10 to %d, or 0 for %d",
			o.MaxConnections, maxMaxConnections, defaultMaxConnections)
	}
	if o.Durable && o.FsyncOff {
		return o, fmt.Errorf("devstack: Durable and FsyncOff contradict each other; set one of them")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// DefaultDir returns the data directory that a developer's long-lived stack
// uses: /var/lib/penstock/dev for root, otherwise penstock/dev below
// $XDG_DATA_HOME, or below ~/.local/share when that is unset or relative. A
// user without a home directory gets a directory below the system's temporary
// directory. DefaultDir creates nothing.
func DefaultDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/penstock/dev"
	}
	if data := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(data) {
		return filepath.Join(data, "penstock", "dev")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		if u, lookupErr := user.Current(); lookupErr == nil {
			home = u.HomeDir
		}
	}
	if !filepath.IsAbs(home) {
		return filepath.Join(os.TempDir(), fmt.Sprintf("penstock-%d", os.Geteuid()), "dev")
	}
	return filepath.Join(home, ".local", "share", "penstock", "dev")
}
