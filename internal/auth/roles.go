package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// The roles of principals. The token file gives them; every RPC declares which
// of them it takes (option roles in protocol/penstock/v1/options.proto).
const (
	RoleProducer = "producer"
	RoleWorker   = "worker"
	RoleOperator = "operator"
	RoleApprover = "approver"
	RoleViewer   = "viewer"
	// RolePayloads may call nothing by itself: it adds the content of tasks
	// (payloads, results, progress) to what other roles read.
	RolePayloads = "payloads"
	// RoleAdmin may call everything.
	RoleAdmin = "admin"
)

// AllRoles lists every role.
func AllRoles() []string {
	return []string{RoleProducer, RoleWorker, RoleOperator, RoleApprover, RoleViewer, RolePayloads, RoleAdmin}
}

// seesContent reports whether a caller reads the content of tasks: producers and
// workers, who write it, and who has the right to.
func (c caller) seesContent() bool {
	return slices.ContainsFunc([]string{RoleProducer, RoleWorker, RolePayloads}, func(role string) bool { return hasRole(c.roles, role) })
}

// Roles returns the roles of who made the call of ctx, sorted and each once, as
// the token file gives them: those of an admin are only "admin", unless it
// lists more. Anonymous callers have those of auth.anonymous_roles, or all if
// there is no token file. The caller must not change the slice.
func Roles(ctx context.Context) []string { return callerOf(ctx).roles }

// HasRole reports whether who made the call of ctx has a role, or is an admin.
func HasRole(ctx context.Context, role string) bool { return hasRole(callerOf(ctx).roles, role) }

func hasRole(roles []string, role string) bool {
	return slices.Contains(roles, role) || slices.Contains(roles, RoleAdmin)
}

// ParseRoles checks the names of roles, sorts them and drops repetitions. The
// error does not repeat what it was given.
func ParseRoles(names []string) ([]string, error) {
	for i, name := range names {
		if !slices.Contains(AllRoles(), name) {
			return nil, fmt.Errorf("role %d of the list is none of %s", i+1, strings.Join(AllRoles(), ", "))
		}
	}
	roles := slices.Clone(names)
	slices.Sort(roles)
	return slices.Compact(roles), nil
}

// orNone writes roles for a message.
func orNone(roles []string) string {
	if len(roles) == 0 {
		return "none"
	}
	return strings.Join(roles, ", ")
}
