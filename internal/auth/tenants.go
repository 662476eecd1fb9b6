package auth

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/penstock-dev/penstock/internal/tenancy"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// TenancyOf returns what a method declares of tenants (option tenancy).
func TenancyOf(m protoreflect.MethodDescriptor) penstockv1.Tenancy {
	t, _ := proto.GetExtension(m.Options(), penstockv1.E_Tenancy).(penstockv1.Tenancy)
	return t
}

// tenantField is the name of the fields of requests that name a tenant.
const tenantField = "tenant"

// confine makes each tenant that a request of the method names one of the
// caller's. What a request names by an id is left to the services: see tenancy.May.
func confine(ctx context.Context, m protoreflect.MethodDescriptor, request proto.Message) error {
	tenants := tenancy.Of(ctx)
	if tenants == nil || TenancyOf(m) != penstockv1.Tenancy_TENANCY_OWN {
		return nil
	}
	return confineMessage(Principal(ctx), tenants, request.ProtoReflect(), "")
}

func confineMessage(who string, tenants []string, m protoreflect.Message, path string) (err error) {
	if f := m.Descriptor().Fields().ByName(tenantField); f != nil && f.Kind() == protoreflect.StringKind {
		tenant := m.Get(f).String()
		switch {
		case tenant == "" && len(tenants) == 1:
			m.Set(f, protoreflect.ValueOfString(tenants[0]))
		case tenant == "":
			return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("%s%s is needed: %s is bound to the tenants %s; name one of them",
				path, tenantField, who, strings.Join(tenants, ", ")))
		case !slices.Contains(tenants, tenant):
			return connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s%s is %q: %s is bound to %s",
				path, tenantField, tenant, who, strings.Join(tenants, ", ")))
		}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				if err = confineMessage(who, tenants, v.List().Get(i).Message(), fmt.Sprintf("%s%s[%d].", path, f.Name(), i)); err != nil {
					return false
				}
			}
		default:
			err = confineMessage(who, tenants, v.Message(), path+string(f.Name())+".")
		}
		return err == nil
	})
	return err
}
