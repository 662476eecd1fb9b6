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

	"github.com/penstock-dev/penstock/internal/tenancy"
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
	name    string
	roles   []string // sorted
	tenants []string // sorted; nil: every tenant
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
	return caller{name: name, roles: sorted}.in(ctx)
}

// in returns ctx as that of a call by c.
func (c caller) in(ctx context.Context) context.Context {
	return tenancy.With(context.WithValue(ctx, key{}, c), c.tenants)
}

// authenticate returns the caller that a request's headers prove, or else the
// certificate of its connection; an anonymous one if neither names any. The error
// has the code Unauthenticated.
func (f *File) authenticate(ctx context.Context, h http.Header) (caller, error) {
	values := h.Values(header)
	tokens := f.tokens.Load()
	switch {
	case len(values) == 0 && tokens == nil:
		return caller{roles: everyRole}, nil
	case len(values) == 0:
		switch e, err := tokens.certified(ctx); {
		case err != nil:
			return caller{}, err
		case e != nil:
			return e.caller(time.Now())
		}
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
	return e.caller(time.Now())
}

// caller returns who a line of the token file stands for. The error, of the code
// Unauthenticated, tells that it has expired.
func (e *entry) caller(now time.Time) (caller, error) {
	if e.expired(now) {
		what := "token"
		if e.certificate != "" {
			what = "certificate's line in the tokens file"
		}
		return caller{}, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("the %s of %s expired at %s; ask for a new one",
			what, e.name, e.expires.Format(time.RFC3339)))
	}
	return caller{e.name, e.roles, e.tenants}, nil
}

// everyRole is what anonymous callers have where there are no tokens.
var everyRole = func() []string {
	roles := AllRoles()
	slices.Sort(roles)
	return roles
}()
