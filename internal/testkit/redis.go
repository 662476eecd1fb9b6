package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// StartRedis runs a private redis-server with more settings, given as
// arguments, until the test ends, and returns its URL.
func StartRedis(t testing.TB, settings ...string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "r.sock")
	cmd := exec.Command("redis-server", append([]string{"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no"}, settings...)...)
	if err := cmd.Start(); err != nil {
		t.Fatalf("redis-server: %v", err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	url := "unix://" + socket
	Eventually(t, "redis-server listens", func() (bool, string) {
		_, err := os.Stat(socket)
		return err == nil, fmt.Sprint(err)
	})
	c := Stores{RedisURL: url}.Streams(t)
	Eventually(t, "redis-server answers", func() (bool, string) {
		err := c.Ping(t.Context())
		return err == nil, fmt.Sprint(err)
	})
	return url
}

// NoXAutoClaim makes StartRedis start a server without XAUTOCLAIM, as some are.
var NoXAutoClaim = []string{"--rename-command", "XAUTOCLAIM", ""}
