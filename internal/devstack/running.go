package devstack

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// dialLimit bounds how long Running waits for a port of this machine.
const dialLimit = time.Second

// Running finds the servers that a stack of another process runs with TCP in a
// data directory. ok is false if none does. The URLs are those of the stack's
// PostgresURL and RedisURL; one is empty if that server does not listen. It
// changes nothing and locks nothing.
func Running(dir string) (postgresURL, redisURL string, ok bool) {
	l := layoutOf(dir)
	if !holderAlive(filepath.Join(dir, lockName)) {
		return "", "", false
	}
	if _, err := os.Stat(l.state); err != nil { // loadState would make one up
		return "", "", false
	}
	st := loadState(l.state)
	if listens(st.PostgresPort) {
		postgresURL = (&postgresServer{Options: Options{TCP: true}, port: st.PostgresPort, password: st.PostgresPassword}).url(ownerName)
	}
	if listens(st.RedisPort) {
		redisURL = (&redisServer{Options: Options{TCP: true}, port: st.RedisPort, password: st.RedisPassword}).url()
	}
	return postgresURL, redisURL, postgresURL != "" || redisURL != ""
}

// holderAlive reports whether the process that a lock file names exists. The
// lock itself is left alone: whoever tried it would keep a stack from starting
// at that moment.
func holderAlive(path string) bool {
	b, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 0 {
		return false
	}
	err = syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// listens reports whether a port of the loopback address takes connections.
func listens(port int) bool {
	if port <= 0 {
		return false
	}
	c, err := net.DialTimeout("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), dialLimit)
	if err != nil {
		return false
	}
	return c.Close() == nil
}
