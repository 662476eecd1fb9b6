package streams

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestCheckPrefix(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", ":", "shop:", "shop:eu-1:", "A.b_c-9:", strings.Repeat("x", 63) + ":"} {
		if err := CheckPrefix(s); err != nil {
			t.Errorf("%q is refused: %v", s, err)
		}
	}
	for _, s := range []string{"shop", "{shop}:", "a*:", "a b:", "ä:", "a[b]:", "stream:task:", "penstock:", strings.Repeat("x", 64) + ":"} {
		if err := CheckPrefix(s); err == nil {
			t.Errorf("%q is taken", s)
		}
	}
}

// Every key gets the prefix and nothing else does; a command that is not known is
// refused, not sent as it is.
func TestPrefixer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for want, cmd := range map[string]redis.Cmder{
		"xreadgroup group g c count 2 streams p:a p:b > >":      redis.NewCmd(ctx, "xreadgroup", "group", "g", "c", "count", 2, "streams", "a", "b", ">", ">"),
		"XADD p:a nomkstream * a a":                             redis.NewCmd(ctx, "XADD", "a", "nomkstream", "*", "a", "a"),
		"xgroup create p:a a $ mkstream":                        redis.NewCmd(ctx, "xgroup", "create", "a", "a", "$", "mkstream"),
		"watch p:a p:b":                                         redis.NewCmd(ctx, "watch", "a", "b"),
		"scan 0 match p:stream:task* count 10 type stream":      redis.NewCmd(ctx, "scan", 0, "match", "stream:task*", "count", 10, "type", "stream"),
		"info server":                                           redis.NewCmd(ctx, "info", "server"),
		"xclaim p:stream:task cg:workers me 0 1-1 force justid": redis.NewCmd(ctx, "xclaim", "stream:task", "cg:workers", "me", 0, "1-1", "force", "justid"),
	} {
		if err := prefixer("p:").apply(cmd); err != nil {
			t.Errorf("%s: %v", want, err)
		}
		if got := strings.Trim(fmt.Sprint(cmd.Args()), "[]"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if err := prefixer("p:").apply(redis.NewCmd(ctx, "rename", "a", "b")); err == nil {
		t.Error("a command whose keys are not known was not refused")
	}
}
