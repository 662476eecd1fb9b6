package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// ownerName is both the database and the superuser that owns it.
	ownerName = "penstock"
	// socketPort is the number in the name of the socket when there is no TCP.
	socketPort = 5432
)

// postgresServer is what it takes to start Postgres again and again.
type postgresServer struct {
	Options
	layout
	programs programs
	account  *account
	port     int
	password string
}

// data returns the Postgres data directory.
func (s *postgresServer) data() string { return s.layout.postgres }

// url returns the address for clients of database db.
func (s *postgresServer) url(db string) string {
	if !s.TCP {
		return s.socketURL(db)
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(ownerName, s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: "/" + db,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// socketURL returns the address over the unix socket, which asks no password.
func (s *postgresServer) socketURL(db string) string {
	q := url.Values{"host": {s.sockets}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User(ownerName), Path: "/" + db, RawQuery: q.Encode()}
	return u.String()
}

// initialise creates the data directory unless it exists. It appears under its
// final name complete, so an interrupted attempt is repeated from scratch.
func (s *postgresServer) initialise(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); err == nil {
		return s.account.own(s.data())
	}
	if err := os.RemoveAll(s.postgresInit); err != nil {
		return fmt.Errorf("devstack: removing an unfinished Postgres data directory: %w", err)
	}
	if err := s.account.privateDir(s.postgresInit); err != nil {
		return err
	}
	args := []string{
		"--pgdata=" + s.postgresInit, "--username=" + ownerName,
		"--encoding=UTF8", "--locale=C.UTF-8", "--text-search-config=simple",
		"--auth-local=trust", "--auth-host=scram-sha-256", "--no-instructions",
	}
	if !s.Durable {
		args = append(args, "--no-sync")
	}
	p, err := startProcess(command{
		name: "initdb", path: s.programs.initdb, args: args, dir: s.postgresInit,
		logPath: s.initdbLog, account: s.account, deathSig: syscall.SIGKILL,
	}, s.Log)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return errors.Join(p.failure("was called off", context.Cause(ctx)), p.stop(ctx))
	}
	if p.err != nil {
		return p.failure("failed", p.err)
	}
	if err := os.Rename(s.postgresInit, s.data()); err != nil {
		return fmt.Errorf("devstack: finishing the Postgres data directory: %w", err)
	}
	return nil
}

// start runs the server on the initialised data directory and returns once
// clients can connect to its database.
func (s *postgresServer) start(ctx context.Context) (*process, error) {
	if err := s.dropStalePid(); err != nil {
		return nil, err
	}
	p, err := startProcess(command{
		name: "postgres", path: s.programs.postgres, args: s.args(), dir: s.data(),
		logPath: s.postgresLog, account: s.account, deathSig: syscall.SIGQUIT,
	}, s.Log)
	if err != nil {
		return nil, err
	}
	err = p.await(ctx, func(ctx context.Context) error {
		return withConn(ctx, s.socketURL("postgres"), s.bootstrap)
	})
	if err == nil && s.TCP {
		err = p.await(ctx, func(ctx context.Context) error {
			return withConn(ctx, s.url(ownerName), func(context.Context, *pgx.Conn) error { return nil })
		})
	}
	if err != nil {
		return nil, errors.Join(err, p.stop(ctx, immediateStop...))
	}
	p.watch()
	s.Log.Debug("development Postgres is ready", "pid", p.pid(), "dir", s.data())
	return p, nil
}

// Postgres stops fast on SIGINT, rolling back what clients are doing; SIGTERM
// would wait for them. SIGQUIT stops without a checkpoint, so that the next
// start recovers from the log.
var (
	fastStop = []step{
		{syscall.SIGINT, 20 * time.Second}, {syscall.SIGQUIT, 7 * time.Second},
	}
	immediateStop = []step{{syscall.SIGQUIT, 7 * time.Second}}
)

// args returns the command line, which overrides what is configured in the data
// directory.
func (s *postgresServer) args() []string {
	listen := ""
	if s.TCP {
		listen = "127.0.0.1"
	}
	settings := []string{
		"listen_addresses=" + listen,
		"port=" + strconv.Itoa(s.port),
		"unix_socket_permissions=0700",
		"max_connections=" + strconv.Itoa(s.MaxConnections),
	}
	if !s.Stock {
		settings = append(settings,
			"shared_buffers=256MB",
			"wal_compression=on",
			"max_wal_size=2GB",
			"timezone=UTC",
			"log_timezone=UTC",
			"log_destination=stderr",
			"logging_collector=off",
			"log_line_prefix=%m [%p] %q%u@%d ",
		)
	}
	if s.Preload != "" {
		settings = append(settings, "shared_preload_libraries="+s.Preload)
	}
	if s.FsyncOff {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
	}
	args := []string{"-D", s.data(), "-k", s.sockets}
	for _, set := range settings {
		args = append(args, "-c", set)
	}
	return args
}

// dropStalePid removes a postmaster.pid whose process id now belongs to a
// process with other business, which Postgres could not tell from a running
// server. Postgres replaces other stale files by itself.
func (s *postgresServer) dropStalePid() error {
	path := filepath.Join(s.data(), "postmaster.pid")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil // there is none, which is the normal case
	}
	first, _, _ := strings.Cut(string(data), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || pid <= 0 {
		return nil
	}
	cwd, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "cwd"))
	if err != nil || cwd == s.data() {
		return nil
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("devstack: removing a stale Postgres lock file: %w", err)
	}
	return nil
}

// bootstrap makes sure of the database and, for TCP, of the password.
func (s *postgresServer) bootstrap(ctx context.Context, conn *pgx.Conn) error {
	var exists bool
	err := conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", ownerName).Scan(&exists)
	if err == nil && !exists {
		_, err = conn.Exec(ctx, "create database "+ownerName)
	}
	if err == nil && s.TCP {
		// The password is alphanumeric, so that it needs no quoting.
		_, err = conn.Exec(ctx, "alter role "+ownerName+" password '"+s.password+"'")
	}
	return err
}

// withConn runs f on a connection to url. An error from the server that waiting
// cannot mend is marked permanent.
func withConn(ctx context.Context, url string, f func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, url)
	if err == nil {
		err = f(ctx, conn)
		_ = conn.Close(ctx)
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && !strings.HasPrefix(pgErr.Code, "57P") && !strings.HasPrefix(pgErr.Code, "53") {
		return permanentError{err}
	}
	return err
}
