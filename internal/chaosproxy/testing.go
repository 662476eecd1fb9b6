package chaosproxy

import "testing"

// Redis is NewRedis for a test, with which the proxy ends.
func Redis(t testing.TB, target string) *Proxy {
	t.Helper()
	return inTest(t, NewRedis, target)
}

// Postgres is NewPostgres for a test, with which the proxy ends.
func Postgres(t testing.TB, target string) *Proxy {
	t.Helper()
	return inTest(t, NewPostgres, target)
}

func inTest(t testing.TB, make1 func(string) (*Proxy, error), target string) *Proxy {
	t.Helper()
	p, err := make1(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
