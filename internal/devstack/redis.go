package devstack

import (
	"bufio"
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
)

// redisServer is what it takes to start Redis again and again.
type redisServer struct {
	Options
	layout
	programs programs
	account  *account
	port     int
	password string
}

// url returns the address for clients of database 0.
func (s *redisServer) url() string {
	if !s.TCP {
		return (&url.URL{Scheme: "unix", Path: s.socket()}).String()
	}
	u := url.URL{
		Scheme: "redis", User: url.UserPassword("default", s.password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)), Path: "/0",
	}
	return u.String()
}

// data returns the Redis data directory.
func (s *redisServer) data() string { return s.layout.redis }

func (s *redisServer) socket() string { return filepath.Join(s.sockets, redisSocket) }

// start runs the server and returns once it has loaded its data and answers.
func (s *redisServer) start(ctx context.Context) (*process, error) {
	if err := s.account.privateDir(s.data()); err != nil {
		return nil, err
	}
	if err := s.writeConf(); err != nil {
		return nil, err
	}
	p, err := startProcess(command{
		name: "redis", path: s.programs.redis, args: []string{s.redisConf}, dir: s.data(),
		logPath: s.redisLog, account: s.account, deathSig: syscall.SIGKILL,
	}, s.Log)
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, s.ping); err != nil {
		return nil, errors.Join(err, p.stop(ctx))
	}
	p.watch()
	s.Log.Debug("development Redis is ready", "pid", p.pid(), "dir", s.data())
	return p, nil
}

// Redis saves what it has to and exits on SIGTERM.
var orderlyStop = []step{{syscall.SIGTERM, 10 * time.Second}}

// writeConf writes the configuration, which keeps the password off the command
// line and so out of the list of processes.
func (s *redisServer) writeConf() error {
	port, appendOnly := 0, "no"
	if s.TCP {
		port = s.port
	}
	if s.Durable {
		appendOnly = "yes"
	}
	var b strings.Builder
	for _, line := range [][2]string{
		{"bind", "127.0.0.1"},
		{"port", strconv.Itoa(port)},
		{"unixsocket", quoteConf(s.socket())},
		{"unixsocketperm", "700"},
		{"dir", quoteConf(s.data())},
		{"databases", strconv.Itoa(s.RedisDatabases)},
		{"save", `""`},
		{"appendonly", appendOnly},
		{"appendfsync", "everysec"},
		{"maxmemory-policy", "noeviction"},
		{"tcp-backlog", "128"},
		{"daemonize", "no"},
		{"logfile", `""`},
	} {
		fmt.Fprintf(&b, "%s %s\n", line[0], line[1])
	}
	if s.TCP {
		fmt.Fprintf(&b, "requirepass %s\n", s.password)
	}
	if err := os.RemoveAll(s.redisConf); err != nil {
		return fmt.Errorf("devstack: replacing the Redis configuration: %w", err)
	}
	if err := os.WriteFile(s.redisConf, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("devstack: writing the Redis configuration: %w", err)
	}
	return s.account.own(s.redisConf)
}

// quoteConf quotes a value for a Redis configuration file.
func quoteConf(v string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(v) + `"`
}

// ping succeeds once the server answers over its socket. It speaks the protocol
// itself: a client library would log every refused attempt.
func (s *redisServer) ping(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", s.socket())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	request, want := "PING\r\n", []string{"+PONG"}
	if s.TCP {
		request, want = "AUTH "+s.password+"\r\n"+request, []string{"+OK", "+PONG"}
	}
	if _, err := conn.Write([]byte(request)); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	for _, w := range want {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(line); got != w {
			return fmt.Errorf("it answered %q", got)
		}
	}
	return nil
}
