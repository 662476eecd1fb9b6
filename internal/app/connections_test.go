package app

import (
	"io"
	"net"
	"testing"
)

// peer is a connection from an address.
type peer struct {
	net.Conn

	from string
}

func (p peer) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", p.from)
	if err != nil {
		panic(err)
	}
	return a
}
func (peer) Close() error { return nil }

// peers is a listener that accepts a list.
type peers struct {
	net.Listener

	from []string
}

func (p *peers) Accept() (net.Conn, error) {
	if len(p.from) == 0 {
		return nil, io.EOF
	}
	next := peer{from: p.from[0]}
	p.from = p.from[1:]
	return next, nil
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	in := &peers{from: []string{
		"192.0.2.1:1", "192.0.2.1:2", "192.0.2.1:3", // the third is one too many of this address
		"[2001:db8::1]:1", "[2001:db8::2]:1", "[2001:db8::3]:1", "[2001:db8:0:1::1]:1", // of a /64
		"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", // not counted by address
		"192.0.2.9:1", // one too many in all
	}}
	l := boundConnections(in, 8, 2, quiet)
	var open []net.Conn
	for {
		c, err := l.Accept()
		if err != nil {
			break
		}
		open = append(open, c)
	}
	if len(open) != 8 {
		t.Fatalf("%d connections, want 8", len(open))
	}
	_ = open[0].Close()
	_ = open[0].Close() // counts once
	in.from = []string{"192.0.2.1:4", "192.0.2.9:1"}
	if c, err := l.Accept(); err != nil || c.RemoteAddr().String() != "192.0.2.1:4" {
		t.Errorf("after one was closed: %v, %v", c, err)
	}
	if _, err := l.Accept(); err != io.EOF { //nolint:errorlint // it is the list's
		t.Errorf("one more than may be: %v", err)
	}
}
