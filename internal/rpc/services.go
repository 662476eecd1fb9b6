package rpc

import (
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// Services implement what the RPC port serves. All are needed.
type Services struct {
	Tasks       penstockv1connect.TaskServiceHandler
	DeadLetters penstockv1connect.DeadLetterServiceHandler
	Workers     penstockv1connect.WorkerServiceHandler
	Approvals   penstockv1connect.ApprovalServiceHandler
	Schedules   penstockv1connect.ScheduleServiceHandler
	Effects     penstockv1connect.EffectServiceHandler
}

// service is one of them with its Connect handlers.
type service struct {
	prefix  string // of its procedures, with a slash at both ends
	handler http.Handler
	methods protoreflect.MethodDescriptors
}

// connect makes the Connect handlers. It fails if a service is missing, or if
// its messages cannot be mapped to JSON.
func (s Services) connect(opts ...connect.HandlerOption) ([]service, error) {
	switch {
	case s.Tasks == nil:
		return nil, fmt.Errorf("rpc: Services.Tasks is nil")
	case s.DeadLetters == nil:
		return nil, fmt.Errorf("rpc: Services.DeadLetters is nil")
	case s.Workers == nil:
		return nil, fmt.Errorf("rpc: Services.Workers is nil")
	case s.Approvals == nil:
		return nil, fmt.Errorf("rpc: Services.Approvals is nil")
	case s.Schedules == nil:
		return nil, fmt.Errorf("rpc: Services.Schedules is nil")
	case s.Effects == nil:
		return nil, fmt.Errorf("rpc: Services.Effects is nil")
	}
	var all []service
	add := func(prefix string, h http.Handler) { all = append(all, service{prefix: prefix, handler: h}) }
	add(penstockv1connect.NewTaskServiceHandler(s.Tasks, opts...))
	add(penstockv1connect.NewDeadLetterServiceHandler(s.DeadLetters, opts...))
	add(penstockv1connect.NewWorkerServiceHandler(s.Workers, opts...))
	add(penstockv1connect.NewApprovalServiceHandler(s.Approvals, opts...))
	add(penstockv1connect.NewScheduleServiceHandler(s.Schedules, opts...))
	add(penstockv1connect.NewEffectServiceHandler(s.Effects, opts...))
	for i := range all {
		if err := all[i].describe(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// describe finds the methods, each of which must say who may call it and how it
// keeps to tenants, and plans
// the JSON of every request and response.
func (s *service) describe() error {
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(s.name()))
	if err != nil {
		return fmt.Errorf("rpc: %s: %w", s.name(), err)
	}
	s.methods = d.(protoreflect.ServiceDescriptor).Methods()
	for i := range s.methods.Len() {
		if m := s.methods.Get(i); !proto.HasExtension(m.Options(), penstockv1.E_Roles) {
			return fmt.Errorf("rpc: %s declares no roles (option roles in its .proto), so nobody could call it", m.FullName())
		} else if !proto.HasExtension(m.Options(), penstockv1.E_Tenancy) {
			return fmt.Errorf("rpc: %s does not declare how it keeps to its caller's tenants (option tenancy in its .proto)", m.FullName())
		}
		for _, md := range []protoreflect.MessageDescriptor{s.methods.Get(i).Input(), s.methods.Get(i).Output()} {
			if _, err := planFor(md); err != nil {
				return err
			}
		}
	}
	return nil
}

// name is the full name, e.g. penstock.v1.TaskService.
func (s *service) name() string { return strings.Trim(s.prefix, "/") }

// procedures lists the paths of the RPCs.
func (s *service) procedures() []string {
	paths := make([]string, s.methods.Len())
	for i := range paths {
		paths[i] = s.prefix + string(s.methods.Get(i).Name())
	}
	return paths
}
