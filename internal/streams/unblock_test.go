package streams_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
)

// A read that waits for entries ends with its context, and no other client's
// does.
func TestUnblockAt(t *testing.T) {
	t.Parallel()
	url := devtest.Redis(t)
	f, other := open(t, url), open(t, url)
	if _, err := f.CreateGroup(t.Context(), "s", group); err != nil {
		t.Fatal(err)
	}
	waiting := regexp.MustCompile(` flags=\w*b`)
	type ended struct {
		who string
		at  time.Time
	}
	ends := make(chan ended, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read := func(who string, c *streams.Client, stop func()) {
		defer stop()
		if es, err := c.Read(t.Context(), "s", group, who, streams.Fresh, 1); err != nil || len(es) > 0 {
			t.Errorf("%s: %v, %v", who, es, err)
		}
		ends <- ended{who, time.Now()}
	}
	go read("stays", other.Client, func() {})
	go read("ends", f.Client, f.UnblockAt(ctx))
	testkit.Eventually(t, "both reads are blocked", func() (bool, string) {
		n, db := 0, fmt.Sprintf(" db=%d ", f.raw.Options().DB)
		for line := range strings.Lines(f.raw.ClientList(t.Context()).Val()) {
			if strings.Contains(line, db) && strings.Contains(line, " cmd=xreadgroup ") && waiting.MatchString(line) {
				n++
			}
		}
		return n == 2, fmt.Sprint(n)
	})
	cancel()
	if first, second := <-ends, <-ends; first.who != "ends" || !first.at.Before(second.at) {
		t.Errorf("%v ended before %v", first, second)
	}
}
