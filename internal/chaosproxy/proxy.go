// Package chaosproxy puts a small proxy between a test and its Redis or
// Postgres, which loses what the test wants lost: connections before a command,
// in the middle of a pipeline, or after a command was carried out and before
// its reply arrived.
package chaosproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// protocol splits a client's bytes into commands and can tell when the server
// has carried out all that were sent.
type protocol interface {
	// next returns the length of the first whole command of b, 0 if there is
	// none yet.
	next(b []byte, first bool) int
	// probe is sent to the server after the commands whose replies are to be
	// lost; nil if the end of the replies shows without one.
	probe() []byte
	// ended reports whether the replies so far show that all was carried out.
	ended(replies []byte) bool
}

// Rule says what is lost, and when.
type Rule struct {
	// Match selects commands, by their bytes.
	Match func(command []byte) bool
	// Forward is how many matching commands reach the server; the connection is
	// cut before the next one. A negative number: all that the client sends
	// before it waits for replies.
	Forward int
	// Times is how many connections the rule applies to, one after the other;
	// 0 means one.
	Times int
}

// Proxy forwards connections to one server. Its methods may be called at any
// time.
type Proxy struct {
	// URL is the server's, with the proxy's address.
	URL string

	t             testing.TB
	network, addr string
	protocol      func() protocol
	listener      net.Listener

	mu    sync.Mutex
	conns map[*conn]bool
	down  bool
	hung  chan struct{} // closed while replies flow
	delay time.Duration
	rule  *Rule
	hit   chan struct{}
}

// Redis starts a proxy to the Redis of a redis:// or unix:// URL. It ends with
// the test.
func Redis(t testing.TB, target string) *Proxy {
	t.Helper()
	o, err := redis.ParseURL(target)
	if err != nil {
		t.Fatalf("chaosproxy: %v", err)
	}
	p := start(t, o.Network, o.Addr, func() protocol { return resp{} })
	u := url.URL{Scheme: "redis", Host: p.listener.Addr().String(), Path: "/" + strconv.Itoa(o.DB)}
	if o.Password != "" {
		u.User = url.UserPassword(o.Username, o.Password)
	}
	p.URL = u.String()
	return p
}

// Postgres starts a proxy to the Postgres of a postgres:// URL. It ends with
// the test.
func Postgres(t testing.TB, target string) *Proxy {
	t.Helper()
	c, err := pgx.ParseConfig(target)
	if err != nil {
		t.Fatalf("chaosproxy: %v", err)
	}
	network, addr := "tcp", net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if len(c.Host) > 0 && c.Host[0] == '/' {
		network, addr = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", c.Host, c.Port)
	}
	p := start(t, network, addr, func() protocol { return postgres{} })
	u := url.URL{Scheme: "postgres", Host: p.listener.Addr().String(), Path: "/" + c.Database, RawQuery: "sslmode=disable"}
	u.User = url.UserPassword(c.User, c.Password)
	p.URL = u.String()
	return p
}

func start(t testing.TB, network, addr string, newProtocol func() protocol) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("chaosproxy: %v", err)
	}
	p := &Proxy{
		t: t, network: network, addr: addr, protocol: newProtocol, listener: l,
		conns: map[*conn]bool{}, hung: make(chan struct{}),
	}
	close(p.hung)
	t.Cleanup(func() {
		_ = l.Close()
		p.Hang(false)
		p.Cut()
	})
	go p.accept()
	return p
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		down := p.down
		p.mu.Unlock()
		if down {
			_ = client.Close()
			continue
		}
		server, err := net.Dial(p.network, p.addr)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &conn{proxy: p, client: client, server: server, protocol: p.protocol()}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		go c.requests()
		go c.replies()
	}
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
}

// Down makes the server unreachable, or reachable again.
func (p *Proxy) Down(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	if down {
		p.Cut()
	}
}

// Delay holds back every reply.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Hang stops all replies, without closing anything, or lets them flow again.
func (p *Proxy) Hang(hang bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.hung:
		if hang {
			p.hung = make(chan struct{})
		}
	default:
		if !hang {
			close(p.hung)
		}
	}
}

// Lose applies the rule from now on, instead of an earlier one. The channel is
// closed after it has been applied as often as it says.
func (p *Proxy) Lose(r Rule) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Times = max(r.Times, 1)
	p.rule, p.hit = &r, make(chan struct{})
	return p.hit
}

// applied counts an application of the rule.
func (p *Proxy) applied(r *Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Times--; r.Times == 0 {
		close(p.hit)
	}
}

// current returns the rule in force, nil if there is none left.
func (p *Proxy) current() *Rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rule == nil || p.rule.Times <= 0 {
		return nil
	}
	return p.rule
}

// Has returns a Match for commands that contain all the given parts.
func Has(parts ...string) func([]byte) bool {
	return func(command []byte) bool {
		for _, p := range parts {
			if !bytes.Contains(command, []byte(p)) {
				return false
			}
		}
		return true
	}
}

var errCut = errors.New("cut")
