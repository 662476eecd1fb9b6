package devstack

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"os"
	"strconv"
)

// Ports are drawn from below the range that Linux gives to outgoing
// connections, so that a stopped server finds its port free again.
const (
	lowestPort  = 20000
	highestPort = 32767
	portTries   = 50
)

// state is what a data directory remembers from one start to the next. Every
// start applies the passwords anew, so a lost state file does no harm.
type state struct {
	PostgresPassword string `json:"postgres_password"`
	RedisPassword    string `json:"redis_password"`
	PostgresPort     int    `json:"postgres_port,omitempty"`
	RedisPort        int    `json:"redis_port,omitempty"`
}

// loadState reads the state at path and generates the passwords it lacks. An
// unreadable state starts afresh.
func loadState(path string) state {
	var st state
	if data, err := os.ReadFile(path); err != nil || json.Unmarshal(data, &st) != nil {
		st = state{}
	}
	if st.PostgresPassword == "" {
		st.PostgresPassword = rand.Text()
	}
	if st.RedisPassword == "" {
		st.RedisPassword = rand.Text()
	}
	return st
}

// save writes the state to path in one step, readable by its owner only.
func (st state) save(path string) error {
	data, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("devstack: encoding the state of the data directory: %w", err)
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("devstack: saving the state of the data directory: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("devstack: saving the state of the data directory: %w", err)
	}
	return nil
}

// pickPort returns want when that TCP port is free on loopback, otherwise a
// random free one. Another process may still take it before it is used.
func pickPort(want int) (int, error) {
	if want > 0 && portFree(want) {
		return want, nil
	}
	for range portTries {
		n, err := rand.Int(rand.Reader, big.NewInt(highestPort-lowestPort+1))
		if err != nil {
			return 0, fmt.Errorf("devstack: drawing a port: %w", err)
		}
		if port := lowestPort + int(n.Int64()); portFree(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("devstack: found no free TCP port on 127.0.0.1 between %d and %d in %d tries",
		lowestPort, highestPort, portTries)
}

func portFree(port int) bool {
	ln, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return ln.Close() == nil
}
