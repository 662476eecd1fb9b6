// Package chaosproxy puts a small proxy between a program and its Redis,
// Postgres or HTTP server, which loses what is to be lost: connections before a
// command, in the middle of a pipeline, or after a command was carried out and
// before its reply arrived.
package chaosproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
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
	// cut before the next one, or when the client has sent fewer and waits for
	// replies. A negative number: all that the client sends before it waits.
	Forward int
	// Silent keeps the connection open, as a network does that drops its packets:
	// all commands arrive, and no reply ever comes back. The client has to notice.
	Silent bool
	// Times is how many connections the rule applies to, one after the other;
	// 0 means one.
	Times int
}

// Proxy forwards connections to one server. Its methods may be called at any
// time.
type Proxy struct {
	// URL is the server's, with the proxy's address; that of TCP has the scheme
	// http.
	URL string

	network, addr string
	protocol      func() protocol
	listener      net.Listener

	mu    sync.Mutex
	conns map[*conn]bool
	down  bool
	hung  chan struct{} // closed while replies flow
	delay time.Duration
	rule  *active
	// rewrite changes commands on their way; nil: none.
	rewrite func(command []byte) []byte
}

// active is a rule in force.
type active struct {
	Rule
	hit chan struct{}
}

// NewRedis starts a proxy to the Redis of a redis:// or unix:// URL. The error
// is about the URL, or the proxy's own port.
func NewRedis(target string) (*Proxy, error) {
	o, err := redis.ParseURL(target)
	if err != nil {
		return nil, fmt.Errorf("chaosproxy: %w", err)
	}
	p, err := start(o.Network, o.Addr, func() protocol { return resp{} })
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "redis", Host: p.listener.Addr().String(), Path: "/" + strconv.Itoa(o.DB)}
	if o.Password != "" {
		u.User = url.UserPassword(o.Username, o.Password)
	}
	p.URL = u.String()
	return p, nil
}

// NewPostgres starts a proxy to the Postgres of a postgres:// URL, without
// encryption. The error is about the URL, or the proxy's own port.
func NewPostgres(target string) (*Proxy, error) {
	c, err := pgx.ParseConfig(target)
	if err != nil {
		return nil, fmt.Errorf("chaosproxy: %w", err)
	}
	network, addr := "tcp", net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	if len(c.Host) > 0 && c.Host[0] == '/' {
		network, addr = "unix", fmt.Sprintf("%s/.s.PGSQL.%d", c.Host, c.Port)
	}
	p, err := start(network, addr, func() protocol { return postgres{} })
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "postgres", Host: p.listener.Addr().String(), Path: "/" + c.Database, RawQuery: "sslmode=disable"}
	u.User = url.UserPassword(c.User, c.Password)
	p.URL = u.String()
	return p, nil
}

// NewTCP starts a proxy to an address (host:port) of which nothing is known but
// that it answers: what the client sends in one piece is one command, and the
// first bytes that come back are its whole reply.
func NewTCP(addr string) (*Proxy, error) {
	p, err := start("tcp", addr, func() protocol { return opaque{} })
	if err != nil {
		return nil, err
	}
	p.URL = "http://" + p.listener.Addr().String()
	return p, nil
}

func start(network, addr string, newProtocol func() protocol) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("chaosproxy: %w", err)
	}
	p := &Proxy{
		network: network, addr: addr, protocol: newProtocol, listener: l, conns: map[*conn]bool{}, hung: make(chan struct{}),
	}
	close(p.hung)
	go p.accept()
	return p, nil
}

// Close ends the proxy and all connections.
func (p *Proxy) Close() {
	_ = p.listener.Close()
	p.Hang(false)
	p.Cut()
}

// Conns is the number of open connections.
func (p *Proxy) Conns() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
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
	p.rule = &active{r, make(chan struct{})}
	return p.rule.hit
}

// Spare takes back what Lose asked for, as far as it was not applied yet.
func (p *Proxy) Spare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rule = nil
}

// Rewrite has fn change every command from now on; nil: none. What fn returns
// must be a whole command, too.
func (p *Proxy) Rewrite(fn func(command []byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rewrite = fn
}

// applied counts an application of the rule.
func (p *Proxy) applied(r *active) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Times--; r.Times == 0 {
		close(r.hit)
	}
}

// current returns the rule in force, nil if there is none left, and what
// changes commands.
func (p *Proxy) current() (*active, func([]byte) []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rule == nil || p.rule.Times <= 0 {
		return nil, p.rewrite
	}
	return p.rule, p.rewrite
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
