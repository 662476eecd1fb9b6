package devstack

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roleEnv makes the test binary play the part of a supervisor that another test
// kills: it starts a stack in the directory named and reports on stdout.
const roleEnv = "DEVSTACK_TEST_SUPERVISE"

func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv(roleEnv); ok {
		superviseForever(dir)
	}
	goleak.VerifyTestMain(m)
}

// superviseForever starts a stack in dir, "" being a temporary directory, prints
// its process ids and directory, and waits to be killed.
func superviseForever(dir string) {
	s, err := Start(context.Background(), Options{Dir: dir, FsyncOff: dir == ""})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(s.PostgresPID(), s.RedisPID(), s.Dir, s.PostgresURL)
	// Blocks until killed: nothing is ever sent on a nil channel. A listener
	// keeps the runtime from calling that a deadlock.
	go func() { _ = http.ListenAndServe("127.0.0.1:0", http.NotFoundHandler()) }()
	var never chan struct{}
	<-never
}
