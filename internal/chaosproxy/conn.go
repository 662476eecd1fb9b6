package chaosproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"time"
)

// conn is one connection of a client, with its own one to the server.
type conn struct {
	proxy          *Proxy
	client, server net.Conn
	protocol       protocol
	once           sync.Once
	// out are commands that are not forwarded yet; only requests uses it.
	out []byte

	mu      sync.Mutex
	rule    *active // applies to this connection: its replies are lost
	matched int
	waits   bool   // the client sent fewer commands than the rule forwards
	lost    []byte // replies that were lost
	probes  int    // probes under way
}

func (c *conn) close() {
	c.once.Do(func() {
		_ = c.client.Close()
		_ = c.server.Close()
		go func() {
			c.proxy.mu.Lock()
			delete(c.proxy.conns, c)
			c.proxy.mu.Unlock()
		}()
	})
}

// requests forwards commands. Those that come at once go on at once, unless a rule
// applies to one of them.
func (c *conn) requests() {
	defer c.close()
	var buf []byte
	chunk := make([]byte, 64<<10)
	first := true
	for {
		n, err := c.read(chunk)
		buf = append(buf, chunk[:n]...)
		for {
			l := c.protocol.next(buf, first)
			if l == 0 {
				break
			}
			first = false
			if c.command(buf[:l]) != nil {
				return
			}
			buf = buf[l:]
		}
		if c.flush() != nil || err != nil || c.sent() != nil {
			return
		}
	}
}

// flush forwards what command left.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.server.Write(c.out)
	c.out = c.out[:0]
	return err
}

// patience is how long a client that a rule applies to may take between two
// commands of a pipeline; after it the client waits for replies.
const patience = 100 * time.Millisecond

// read reads from the client; it notes if that waits for replies while the rule
// expects more commands.
func (c *conn) read(chunk []byte) (int, error) {
	c.mu.Lock()
	more := c.rule != nil && !c.rule.Silent && !c.whole()
	c.mu.Unlock()
	if !more {
		return c.client.Read(chunk)
	}
	_ = c.client.SetReadDeadline(time.Now().Add(patience))
	n, err := c.client.Read(chunk)
	_ = c.client.SetReadDeadline(time.Time{})
	if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = true
	c.end()
	return 0, nil
}

// whole reports whether all commands are sent whose replies are to be lost. With
// one more than these the connection is cut.
func (c *conn) whole() bool {
	return c.rule.Forward < 0 || c.matched == c.rule.Forward || c.waits && c.matched < c.rule.Forward
}

// end ends the connection if all is sent and carried out.
func (c *conn) end() {
	if c.whole() && c.protocol.ended(c.lost) && c.probes <= bytes.Count(c.lost, []byte(token)) {
		c.close()
		c.proxy.applied(c.rule)
	}
}

// command takes one command to be forwarded, or cuts the connection before it.
func (c *conn) command(b []byte) error {
	inForce, rewrite := c.proxy.current()
	c.mu.Lock()
	rule := c.rule
	if rule == nil {
		rule = inForce
	}
	cut, matches := false, rule != nil && rule.Match(b)
	if matches {
		if c.rule == nil && rule.Silent {
			defer c.proxy.applied(rule)
		}
		c.rule = rule
		c.matched++
		cut = !rule.Silent && rule.Forward >= 0 && c.matched > rule.Forward
	}
	c.mu.Unlock()
	if cut {
		_ = c.flush()
		c.finish()
		return errCut
	}
	if rewrite != nil {
		b = rewrite(b)
	}
	if c.out = append(c.out, b...); matches {
		return c.flush()
	}
	return nil
}

// sent asks the server, after all that the client has sent, for a sign that it
// has carried it out.
func (c *conn) sent() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rule == nil || c.rule.Silent || !c.whole() {
		return nil
	}
	if p := c.protocol.probe(); p != nil {
		c.probes++
		_, err := c.server.Write(p)
		return err
	}
	return nil
}

// finish waits until the server has carried out what was forwarded, and ends
// the connection.
func (c *conn) finish() {
	c.mu.Lock()
	rule := c.rule
	forwarded := c.matched - 1
	c.mu.Unlock()
	if forwarded > 0 && c.protocol.probe() != nil {
		_, _ = c.server.Write(c.protocol.probe())
		for !c.settled() {
			time.Sleep(time.Millisecond)
		}
	}
	c.close()
	c.proxy.applied(rule)
}

func (c *conn) settled() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.protocol.ended(c.lost)
}

// replies forwards replies, or loses them.
func (c *conn) replies() {
	defer c.close()
	chunk := make([]byte, 64<<10)
	for {
		n, err := c.server.Read(chunk)
		if n > 0 && !c.lose(chunk[:n]) {
			c.proxy.mu.Lock()
			delay, hung := c.proxy.delay, c.proxy.hung
			c.proxy.mu.Unlock()
			<-hung
			if delay > 0 {
				time.Sleep(delay)
			}
			if _, err := c.client.Write(chunk[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// lose reports whether a reply is lost. After the last one it ends the
// connection.
func (c *conn) lose(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rule == nil {
		return false
	}
	if c.rule.Silent {
		return true
	}
	c.lost = append(c.lost, b...)
	// With a bound the connection ends at the next command, or here if there
	// is none; without one it ends when nothing more comes.
	c.end()
	return true
}

// token marks the reply to a probe.
const token = "chaosproxy-probe-7f3a"

// resp is the Redis protocol.
type resp struct{}

// next expects arrays of bulk strings, which is what clients send.
func (resp) next(b []byte, _ bool) int {
	n, at, ok := number(b, 0, '*')
	if !ok {
		return 0
	}
	for range n {
		l, next, ok := number(b, at, '$')
		if !ok {
			return 0
		}
		if at = next + l + 2; at > len(b) {
			return 0
		}
	}
	return at
}

// number reads a line such as "$12\r\n" at an offset.
func number(b []byte, at int, kind byte) (n, next int, ok bool) {
	if at >= len(b) || b[at] != kind {
		return 0, 0, false
	}
	end := bytes.Index(b[at:], []byte("\r\n"))
	if end < 0 {
		return 0, 0, false
	}
	n, err := strconv.Atoi(string(b[at+1 : at+end]))
	return n, at + end + 2, err == nil
}

func (resp) probe() []byte {
	return []byte("*2\r\n$4\r\nPING\r\n$" + strconv.Itoa(len(token)) + "\r\n" + token + "\r\n")
}

func (resp) ended(replies []byte) bool { return bytes.Contains(replies, []byte(token)) }

// postgres is the Postgres protocol without encryption.
type postgres struct{}

func (postgres) next(b []byte, first bool) int {
	at := 1 // the type; the very first message has none
	if first {
		at = 0
	}
	if len(b) < at+4 {
		return 0
	}
	if l := at + int(binary.BigEndian.Uint32(b[at:])); l <= len(b) {
		return l
	}
	return 0
}

func (postgres) probe() []byte { return nil }

// ended: the server says that it is ready for the next query.
func (postgres) ended(replies []byte) bool {
	for len(replies) >= 5 {
		l := 1 + int(binary.BigEndian.Uint32(replies[1:]))
		if replies[0] == 'Z' {
			return true
		}
		if l > len(replies) {
			return false
		}
		replies = replies[l:]
	}
	return false
}

// opaque is a protocol of which nothing is known.
type opaque struct{}

func (opaque) next(b []byte, _ bool) int { return len(b) }

func (opaque) probe() []byte { return nil }

func (opaque) ended(replies []byte) bool { return len(replies) > 0 }
