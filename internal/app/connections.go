package app

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// boundConnections closes connections that are too many, in all or from one
// address, as soon as they were accepted.
func boundConnections(l net.Listener, all, perAddress int, log *slog.Logger) net.Listener {
	return &boundListener{Listener: l, all: all, perAddress: perAddress, log: log, open: map[netip.Addr]int{}}
}

type boundListener struct {
	net.Listener

	all, perAddress int
	log             *slog.Logger

	mu    sync.Mutex
	total int
	open  map[netip.Addr]int // by address; none is 0
	told  time.Time
}

// tellEvery is the least time between two log records about closed connections.
const tellEvery = 10 * time.Second

// Accept implements net.Listener.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := addressOf(c)
		if l.enter(from) {
			return &boundConn{Conn: c, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = c.Close()
	}
}

func (l *boundListener) enter(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	why := ""
	switch {
	case l.total >= l.all:
		why = "server.max_connections"
	case !from.IsLoopback() && l.open[from] >= l.perAddress:
		why = "server.max_connections_per_address"
	}
	if why == "" {
		l.total++
		l.open[from]++
		return true
	}
	if now := time.Now(); now.Sub(l.told) > tellEvery {
		l.told = now
		l.log.Warn("connections are closed at once: there are as many as the setting allows", "setting", why, "address", from, "of_address", l.open[from], "in_all", l.total)
	}
	return false
}

func (l *boundListener) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.open[from]--; l.open[from] == 0 {
		delete(l.open, from)
	}
}

// addressOf is what counts as one address: of IPv6 the network, since a host has
// all addresses of its /64. It is the zero address if the peer has none.
func addressOf(c net.Conn) netip.Addr {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := a.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() && !addr.IsLoopback() {
		return netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}

type boundConn struct {
	net.Conn

	leave func()
}

// Close implements net.Conn.
func (c *boundConn) Close() error {
	c.leave()
	return c.Conn.Close()
}

// CloseWrite lets the server end a connection so that the last response arrives.
func (c *boundConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
