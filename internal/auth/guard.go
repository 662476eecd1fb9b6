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
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// Declared returns the roles that a method declares (option roles), sorted, as
// token files name them. Admins may call everything and need not be among them.
// It is nil if the method declares none: nobody may call it.
func Declared(m protoreflect.MethodDescriptor) []string {
	option, _ := proto.GetExtension(m.Options(), penstockv1.E_Roles).(*penstockv1.Roles)
	var roles []string
	for _, r := range option.GetAnyOf() {
		if r != penstockv1.Role_ROLE_UNSPECIFIED {
			roles = append(roles, strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")))
		}
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

// authorize tells whether a caller may do what, which takes one of the roles.
// The error has the code PermissionDenied, or Unauthenticated if a token might
// help.
func authorize(c caller, what string, need []string) error {
	if len(need) == 0 {
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s declares no roles, so nobody may call it", what))
	}
	if slices.ContainsFunc(need, func(role string) bool { return hasRole(c.roles, role) }) {
		return nil
	}
	list := need
	if !slices.Contains(need, RoleAdmin) {
		list = append(slices.Clone(need), RoleAdmin)
	}
	takes := fmt.Sprintf("%s takes one of the roles %s", what, strings.Join(list, ", "))
	switch {
	case c.name == "" && len(c.roles) == 0:
		return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("%s; send a token that has one", takes))
	case c.name == "":
		return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("%s, and callers without a token have %s; send a token that has one",
			takes, orNone(c.roles)))
	case len(c.roles) == 0:
		return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s, and this token of %s has none: add roles=%s, or another of them, to its line in the tokens file",
			takes, c.name, list[0]))
	}
	return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s, and this token of %s has %s", takes, c.name, orNone(c.roles)))
}

// Gate finds the principal of every call for Principal and Roles, by the tokens
// of f, and lets it through only if it has a role that the RPC declares. A call
// with a wrong token is refused by its headers alone (Unauthenticated), as is one
// of somebody who may not make it (PermissionDenied).
func Gate(f *File) connect.RequestGateFunc {
	return func(ctx context.Context, spec connect.Spec, _ connect.Peer, h http.Header) (context.Context, error) {
		return interceptor{f}.admit(ctx, spec, h)
	}
}

// Interceptor keeps calls to the tenants that their callers are bound to, takes the
// content of tasks out of answers to those who may not read it, and ends streams
// whose callers Gate would not let through any more.
func Interceptor(f *File) connect.Interceptor { return interceptor{f} }

type interceptor struct{ file *File }

// admit returns the context of an admitted call.
func (i interceptor) admit(ctx context.Context, spec connect.Spec, h http.Header) (context.Context, error) {
	c, err := i.file.authenticate(ctx, h)
	if err != nil {
		return nil, err
	}
	method, ok := spec.Schema.(protoreflect.MethodDescriptor)
	if !ok {
		return nil, authorize(c, spec.Procedure, nil)
	}
	if err := authorize(c, string(method.Name()), Declared(method)); err != nil {
		return nil, err
	}
	if c.tenants != nil && TenancyOf(method) == penstockv1.Tenancy_TENANCY_EVERY {
		return nil, connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s is about every tenant, and this token of %s is bound to %s",
			method.Name(), c.name, strings.Join(c.tenants, ", ")))
	}
	return c.in(ctx), nil
}

// WrapUnary implements connect.Interceptor.
func (i interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := received(ctx, req.Spec(), req.Any()); err != nil {
			return nil, err
		}
		res, err := next(ctx, req)
		if err == nil {
			answered(ctx, res.Any())
		}
		return res, err
	}
}

// received confines a request to its caller's tenants.
func received(ctx context.Context, spec connect.Spec, m any) error {
	method, ok := spec.Schema.(protoreflect.MethodDescriptor)
	message, isMessage := m.(proto.Message)
	if !ok || !isMessage {
		return nil
	}
	return confine(ctx, method, message)
}

// answered hides in an answer what its caller may not read.
func answered(ctx context.Context, m any) {
	if message, ok := m.(proto.Message); ok && !callerOf(ctx).seesContent() {
		hideContent(message.ProtoReflect())
	}
}

// guarded is the connection of a stream whose messages are treated as those of
// single calls.
type guarded struct {
	connect.StreamingHandlerConn
	ctx context.Context
}

// Receive implements connect.StreamingHandlerConn.
func (g guarded) Receive(m any) error {
	if err := g.StreamingHandlerConn.Receive(m); err != nil {
		return err
	}
	return received(g.ctx, g.Spec(), m)
}

// Send implements connect.StreamingHandlerConn.
func (g guarded) Send(m any) error {
	answered(g.ctx, m)
	return g.StreamingHandlerConn.Send(m)
}

// WrapStreamingClient implements connect.Interceptor; it changes nothing.
func (interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (i interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		go i.attend(ctx, cancel, conn)
		err := next(ctx, guarded{conn, ctx})
		if why, ok := errors.AsType[*connect.Error](context.Cause(ctx)); ok {
			return why
		}
		return err
	}
}

// attendEvery is how often the caller of an open stream is looked at.
const attendEvery = time.Second

// attend ends a stream once its caller would not be admitted any more: the token
// was taken away, has expired, or lost the role.
func (i interceptor) attend(ctx context.Context, cancel context.CancelCauseFunc, conn connect.StreamingHandlerConn) {
	tick := time.NewTicker(attendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := i.admit(ctx, conn.Spec(), conn.RequestHeader()); err != nil {
			cancel(err)
			return
		}
	}
}

// Middleware does what Interceptor does for a handler that is no RPC: it takes
// one of the roles need. refuse sends the error, a *connect.Error: e.g.
// rpc.WriteProblem.
func Middleware(f *File, refuse func(http.ResponseWriter, error), next http.Handler, need ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := f.authenticate(r.Context(), r.Header)
		if err == nil {
			err = authorize(c, r.Method+" "+r.URL.Path, need)
		}
		if err != nil {
			refuse(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(c.in(r.Context())))
	})
}
