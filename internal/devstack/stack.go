package devstack

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// initLimit bounds the creation of a Postgres data directory.
const initLimit = time.Minute

// portAttempts is how often a start draws another TCP port after losing one to
// another process.
const portAttempts = 5

// Stack is a running pair of servers, or one of them. Its fields do not change
// after Start. Its methods may be called from several goroutines; those that
// start and stop servers wait for one another.
type Stack struct {
	// PostgresURL addresses the database "penstock" as its owner, who is a
	// superuser, in a form for pgx.ParseConfig. Empty without Postgres.
	PostgresURL string

	// RedisURL addresses database 0 in a form for redis.ParseURL: a unix:// URL,
	// or a redis:// URL with TCP. Empty without Redis.
	RedisURL string

	// Dir is the absolute path of the data directory, free of symbolic links.
	Dir string

	postgres *postgresServer // nil without Postgres
	redis    *redisServer    // nil without Redis

	postgresProc, redisProc atomic.Pointer[process]

	life context.Context // ends when Stop begins, calling off starts
	halt context.CancelFunc

	mu       sync.Mutex // serialises starting and stopping
	stopped  bool
	stopErr  error
	cleanups []func() error // run in reverse once the servers are down
}

// Start starts the servers that o asks for, both at once, and returns when
// clients can connect to them. ctx bounds the start only; the servers run until
// Stop. Each server has 30 s to become ready, and creating a new Postgres data
// directory may take another minute.
//
// The servers are children of this process and die with it, however it ends.
// A data directory belongs to one stack at a time: Start refuses one that a
// live process uses, and picks up one whose process was killed.
//
// Start returns a *MissingError when a server program is not installed. After
// an error nothing is left running. When a server does not come up, the error
// holds the end of its log.
func Start(ctx context.Context, o Options) (*Stack, error) {
	return start(ctx, o, systemFinder())
}

func start(ctx context.Context, o Options, f finder) (_ *Stack, err error) {
	if o, err = o.withDefaults(); err != nil {
		return nil, err
	}
	// Looked for before anything is created; again once the data directory's
	// version of Postgres is known.
	if _, err := f.find(o.Postgres, o.Redis, ""); err != nil {
		return nil, err
	}
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	l, cleanup, err := openDir(o.Dir, o.TempDir, account)
	if err != nil {
		return nil, err
	}
	s := &Stack{Dir: l.dir, cleanups: []func() error{cleanup}}
	s.life, s.halt = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(ctx))
		}
	}()
	if err := s.prepare(ctx, o, l, account, f); err != nil {
		return nil, err
	}
	if err := s.startAll(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare readies the data directory and describes the servers.
func (s *Stack) prepare(ctx context.Context, o Options, l layout, a *account, f finder) error {
	if err := l.makeReachable(a); err != nil {
		return err
	}
	if err := l.awaitOrphans(ctx); err != nil {
		return err
	}
	progs, err := f.find(o.Postgres, o.Redis, l.postgres)
	if err != nil {
		return err
	}
	cleanup, err := l.openSockets(a)
	if err != nil {
		return err
	}
	s.cleanups = append(s.cleanups, cleanup)

	st := loadState(l.state)
	if o.Postgres {
		s.postgres = &postgresServer{Options: o, programs: progs, layout: l, account: a,
			port: socketPort, password: st.PostgresPassword}
		if o.TCP {
			s.postgres.port = st.PostgresPort
		}
	}
	if o.Redis {
		s.redis = &redisServer{Options: o, programs: progs, layout: l, account: a,
			port: st.RedisPort, password: st.RedisPassword}
	}
	return nil
}

// startAll starts the servers concurrently and remembers their addresses.
func (s *Stack) startAll(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	if pg := s.postgres; pg != nil {
		g.Go(func() error {
			ictx, cancel := context.WithTimeout(gctx, initLimit)
			defer cancel()
			if err := pg.initialise(ictx); err != nil {
				return err
			}
			return onFreePort(pg.TCP, &pg.port, func() error { return launch(gctx, &s.postgresProc, pg.start) })
		})
	}
	if rd := s.redis; rd != nil {
		g.Go(func() error {
			return onFreePort(rd.TCP, &rd.port, func() error { return launch(gctx, &s.redisProc, rd.start) })
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return s.remember()
}

// launch starts a server and files its process.
func launch(ctx context.Context, slot *atomic.Pointer[process], start func(context.Context) (*process, error)) error {
	p, err := start(ctx)
	if err == nil {
		slot.Store(p)
	}
	return err
}

// onFreePort runs start with a free port in *port, and again with another one
// when a process took the port first. Without TCP there is nothing to choose.
func onFreePort(tcp bool, port *int, start func() error) error {
	if !tcp {
		return start()
	}
	var err error
	for range portAttempts {
		if *port, err = pickPort(*port); err != nil {
			return err
		}
		err = start()
		if se, ok := errors.AsType[*serverError](err); !ok || !se.addressInUse() {
			return err
		}
		*port = 0
	}
	return err
}

// remember fills in the addresses and saves what the next start needs.
func (s *Stack) remember() error {
	var l layout
	if s.postgres != nil {
		l, s.PostgresURL = s.postgres.layout, s.postgres.url(ownerName)
	}
	if s.redis != nil {
		l, s.RedisURL = s.redis.layout, s.redis.url()
	}
	st := loadState(l.state) // keeps what belongs to a server that is not running
	if pg := s.postgres; pg != nil {
		st.PostgresPassword = pg.password
		if pg.TCP {
			st.PostgresPort = pg.port
		}
	}
	if rd := s.redis; rd != nil {
		st.RedisPassword = rd.password
		if rd.TCP {
			st.RedisPort = rd.port
		}
	}
	return st.save(l.state)
}
