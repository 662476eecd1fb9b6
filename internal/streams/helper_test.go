package streams_test

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/penstock-dev/penstock/internal/devstack/devtest"
	"github.com/penstock-dev/penstock/internal/streams"
	"github.com/penstock-dev/penstock/internal/testkit"
)

func TestMain(m *testing.M) { devtest.Main(m) }

const (
	stream = "s"
	group  = "g"
)

// fixture is a client with a stream and its group, and a plain client besides.
type fixture struct {
	*streams.Client
	raw *redis.Client
	url string
}

func open(t *testing.T, url string) *fixture {
	t.Helper()
	s := testkit.Stores{RedisURL: url}
	return &fixture{Client: s.Streams(t), raw: s.Redis(t), url: url}
}

// setUp makes the group and adds n entries {n: 0}, {n: 1}, …
func setUp(t *testing.T, url string, n int) (*fixture, []string) {
	t.Helper()
	f := open(t, url)
	if _, err := f.CreateTaskGroup(t.Context(), stream, group); err != nil {
		t.Fatal(err)
	}
	return f, f.add(t, n)
}

func (f *fixture) add(t *testing.T, n int) []string {
	t.Helper()
	values := make([][]any, n)
	for i := range values {
		values[i] = []any{"n", i}
	}
	ids := make([]string, n)
	for i, a := range f.Add(t.Context(), stream, values) {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		ids[i] = a.ID
	}
	return ids
}

// take has a consumer read count new entries.
func (f *fixture) take(t *testing.T, consumer string, count int) []string {
	t.Helper()
	es, err := f.ReadNow(t.Context(), stream, group, consumer, count)
	if err != nil {
		t.Fatal(err)
	}
	if len(es) != count {
		t.Fatalf("%s read %d entries, want %d", consumer, len(es), count)
	}
	return ids(es)
}

func (f *fixture) ack(t *testing.T, ids ...string) {
	t.Helper()
	if err := f.Ack(t.Context(), stream, group, ids); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) info(t *testing.T) streams.GroupInfo {
	t.Helper()
	i, err := f.Info(t.Context(), stream, group)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func ids(es []streams.Entry) []string {
	out := make([]string, len(es))
	for i, e := range es {
		out[i] = e.ID
	}
	return out
}

func equal(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %d %v, want %d %v", what, len(got), got, len(want), want)
	}
}

// startRedis runs a private redis-server with more settings and returns its URL.
func startRedis(t *testing.T, settings ...string) string {
	t.Helper()
	return testkit.StartRedis(t, settings...)
}
