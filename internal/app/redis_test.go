package app

import (
	"testing"

	"github.com/redis/go-redis/v9"
)

// setPolicy changes a private Redis' eviction policy.
func setPolicy(t *testing.T, url, policy string) {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	defer func() { _ = c.Close() }()
	if err := c.ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
		t.Fatal(err)
	}
}
