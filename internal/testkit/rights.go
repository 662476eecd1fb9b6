package testkit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// RightsPage is the text of docs/redis-rights.md.
var RightsPage = sync.OnceValues(func() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	b, err := os.ReadFile(filepath.Join(filepath.Dir(file), "..", "..", "docs", "redis-rights.md"))
	return string(b), err
})

// Blocks returns the fenced blocks of a page of one language.
func Blocks(page, language string) (out []string) {
	for {
		_, rest, found := strings.Cut(page, "\n```"+language+"\n")
		if !found {
			return out
		}
		block, after, _ := strings.Cut(rest, "\n```")
		out, page = append(out, block), after
	}
}

// Roles of users in Redis, as docs/redis-rights.md names them.
const (
	RoleOrchestrator = "penstock-orchestrator"
	RoleWorker       = "penstock-worker"
)

// user makes a user of the test's Redis that has exactly the rights that
// docs/redis-rights.md lists for the role, without a key prefix or with that of the
// stores in place of shop:.
func (s Stores) user(t testing.TB, role string) *url.Userinfo {
	t.Helper()
	page, err := RightsPage()
	if err != nil {
		t.Fatalf("read the rights: %v", err)
	}
	block := 0
	if s.Prefix != "" {
		block = 1
	}
	blocks := Blocks(page, "acl")
	if len(blocks) != 2 {
		t.Fatalf("docs/redis-rights.md has %d blocks of rights, want one without a prefix and one with", len(blocks))
	}
	for line := range strings.Lines(blocks[block]) {
		words := strings.Fields(strings.ReplaceAll(line, "shop:", s.Prefix))
		if len(words) < 4 || words[2] != role {
			continue
		}
		sum := sha256.Sum256([]byte(strings.Join(words, " ")))
		words[2] += "-" + hex.EncodeToString(sum[:4])
		s.makeUser(t, words)
		return url.UserPassword(words[2], "secret")
	}
	t.Fatalf("docs/redis-rights.md has no rights of %s", role)
	return nil
}

// makeUser makes a user of the shared server unless it is there: users are not
// those of one test, and to set one again would end its subscriptions.
func (s Stores) makeUser(t testing.TB, acl []string) {
	t.Helper()
	c, ctx := s.Redis(t), context.WithoutCancel(t.Context())
	if err := c.Do(ctx, "ACL", "GETUSER", acl[2]).Err(); err == nil {
		return
	} else if err != redis.Nil { //nolint:errorlint // it is never wrapped
		t.Fatalf("look for Redis user %s: %v", acl[2], err)
	}
	args := make([]any, len(acl))
	for i, w := range acl {
		args[i] = w
	}
	if err := c.Do(ctx, args...).Err(); err != nil {
		t.Fatalf("%s: %v", strings.Join(acl, " "), err)
	}
}
