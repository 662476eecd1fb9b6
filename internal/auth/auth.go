package auth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// header is where callers put their token.
const header = "Authorization"

// scheme comes before the token.
const scheme = "Bearer"

// What callers are told. No text tells more about a token than that it is wrong.
var (
	errNoFile    = errors.New("this orchestrator has no auth.tokens_file, so it knows no tokens; call it without one")
	errMalformed = errors.New(`the Authorization header is not of the form "Bearer TOKEN"`)
	errUnknown   = errors.New("the token is not known to this orchestrator")
)

// key is that of the caller in a context.
type key struct{}

// caller is who made a call. Name is "" for an anonymous one.
type caller struct {
	name  string
	roles []string // sorted
}

func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(key{}).(caller)
	return c
}

// Principal returns who made the call of ctx: a name in the token file, or ""
// for an anonymous caller.
func Principal(ctx context.Context) string { return callerOf(ctx).name }

// WithPrincipal returns ctx as the context of a call by name, who has the roles.
func WithPrincipal(ctx context.Context, name string, roles ...string) context.Context {
	sorted := slices.Clone(roles)
	slices.Sort(sorted)
	return context.WithValue(ctx, key{}, caller{name, sorted})
}

// authenticate returns the caller that a request's headers prove, an anonymous
// one if they name none. The error has the code Unauthenticated.
func (f *File) authenticate(h http.Header) (caller, error) {
	values := h.Values(header)
	tokens := f.tokens.Load()
	switch {
	case len(values) == 0 && tokens == nil:
		return caller{roles: everyRole}, nil
	case len(values) == 0:
		return caller{roles: f.anonymous}, nil
	case tokens == nil:
		return caller{}, connect.NewError(connect.CodeUnauthenticated, errNoFile)
	}
	word, token, _ := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	if len(values) > 1 || !strings.EqualFold(word, scheme) || token == "" || strings.ContainsAny(token, " \t") {
		return caller{}, connect.NewError(connect.CodeUnauthenticated, errMalformed)
	}
	e := tokens.find(token)
	if e == nil {
		return caller{}, connect.NewError(connect.CodeUnauthenticated, errUnknown)
	}
	if e.expired(time.Now()) {
		return caller{}, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("the token of %s expired at %s; ask for a new one",
			e.name, e.expires.Format(time.RFC3339)))
	}
	return caller{e.name, e.roles}, nil
}

// everyRole is what anonymous callers have where there are no tokens.
var everyRole = func() []string {
	roles := AllRoles()
	slices.Sort(roles)
	return roles
}()
