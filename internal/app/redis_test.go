package app

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// redisClient opens a plain client, closed with the test.
func redisClient(t *testing.T, url string) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// setPolicy sets a server's eviction policy.
func setPolicy(t *testing.T, url, policy string) {
	t.Helper()
	if err := redisClient(t, url).ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
		t.Fatal(err)
	}
}
