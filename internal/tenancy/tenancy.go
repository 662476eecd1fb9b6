// Package tenancy carries which tenants the caller of an RPC may reach.
package tenancy

import (
	"context"
	"slices"
)

type key struct{}

// With returns ctx as that of a call by a principal who is bound to tenants. Nil
// tenants leave ctx as it is: who is not bound may reach every tenant.
func With(ctx context.Context, tenants []string) context.Context {
	if tenants == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, tenants)
}

// Of returns the tenants that the caller of ctx is bound to, sorted; nil if the
// caller may reach every tenant. The caller must not change the slice.
func Of(ctx context.Context) []string {
	tenants, _ := ctx.Value(key{}).([]string)
	return tenants
}

// Bound reports whether the caller of ctx may not reach every tenant.
func Bound(ctx context.Context) bool { return Of(ctx) != nil }

// May reports whether the caller of ctx may reach a tenant.
func May(ctx context.Context, tenant string) bool {
	tenants := Of(ctx)
	return tenants == nil || slices.Contains(tenants, tenant)
}
