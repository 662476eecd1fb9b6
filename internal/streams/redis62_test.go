package streams_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// fakeRedis answers commands with fixed replies, for versions that are not
// installed. Keys are a command's name, or its name and last argument.
func fakeRedis(t *testing.T, replies map[string]string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveFake(c, replies)
		}
	}()
	return "redis://" + l.Addr().String()
}

func serveFake(c net.Conn, replies map[string]string) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	number := func() int {
		line, _ := r.ReadString('\n')
		if len(line) < 2 {
			return -1
		}
		n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
		return n
	}
	for {
		n := number()
		if n < 1 {
			return
		}
		args := make([]string, n)
		for i := range args {
			b := make([]byte, number()+2)
			if _, err := io.ReadFull(r, b); err != nil {
				return
			}
			args[i] = string(b[:len(b)-2])
		}
		name := strings.ToUpper(args[0])
		reply, ok := replies[name+" "+args[n-1]]
		if !ok {
			if reply, ok = replies[name]; !ok {
				reply = "-ERR unknown command '" + args[0] + "'\r\n"
			}
		}
		_, _ = io.WriteString(c, reply)
	}
}

// Redis 6.2 sends a nil in the place of an entry that was deleted while
// pending, without its id. The ghost is found all the same, and hides no other
// entry.
func TestClaimWithAGhostOfRedis62(t *testing.T) {
	t.Parallel()
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	entry := "*2\r\n" + bulk("1-1") + "*2\r\n" + bulk("n") + bulk("0")
	held := func(id string) string { return "*4\r\n" + bulk(id) + bulk("a") + ":3600000\r\n:1\r\n" }
	f := open(t, fakeRedis(t, map[string]string{
		"CLIENT":     "+OK\r\n",
		"XAUTOCLAIM": "*2\r\n" + bulk("0-0") + "*2\r\n" + entry + "*-1\r\n",
		"XPENDING":   "*2\r\n" + held("1-1") + held("2-2"),
		"XCLAIM":     "*2\r\n" + bulk("1-1") + bulk("2-2"),
		"XRANGE 1-1": "*1\r\n" + entry,
		"XRANGE 2-2": "*0\r\n",
	}))
	for range 3 { // a reply that was read only half would spoil the next one
		got, ghosts, next, err := f.Claim(t.Context(), stream, group, "b", "", time.Minute)
		if err != nil || next != "" {
			t.Fatalf("claim: next %q, %v", next, err)
		}
		equal(t, "claimed", ids(got), []string{"1-1"})
		equal(t, "ghosts", ghosts, []string{"2-2"})
	}
}
