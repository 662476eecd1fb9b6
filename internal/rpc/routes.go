package rpc

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// routes are the paths of the REST API by HTTP method.
type routes map[string][]route

// route is the path of one method, split at the slashes. A part in braces is a
// variable.
type route struct {
	parts  []string
	method protoreflect.MethodDescriptor
}

// repeated refuses a query parameter that is given more than once and is no list:
// the transcoder would take the last one in silence.
func (r *route) repeated(query url.Values) *problem {
	if r == nil {
		return nil
	}
	for name, values := range query {
		fd := r.method.Input().Fields().ByTextName(name)
		if fd == nil {
			fd = r.method.Input().Fields().ByJSONName(name)
		}
		if len(values) > 1 && fd != nil && !fd.IsList() {
			return badRequest(name, "the query parameter is given more than once")
		}
	}
	return nil
}

// procedure is the path of the method as an RPC.
func (r *route) procedure() string {
	return "/" + string(r.method.Parent().FullName()) + "/" + string(r.method.Name())
}

// routesOf reads the routes of the methods' google.api.http options.
func routesOf(all []service) (routes, error) {
	r := routes{}
	for _, s := range all {
		for i := range s.methods.Len() {
			if err := r.add(s.methods.Get(i)); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// add adds those of one method; one without the option has none. A call that is
// not GET or DELETE has to be described by its whole body: see refuseQuery.
func (r routes) add(md protoreflect.MethodDescriptor) error {
	rule, _ := proto.GetExtension(md.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule == nil {
		return nil
	}
	for _, rule := range append([]*annotations.HttpRule{rule}, rule.GetAdditionalBindings()...) {
		switch {
		case rule.GetGet() != "":
			r.insert(http.MethodGet, rule.GetGet(), md)
		case rule.GetDelete() != "" && rule.GetBody() == "":
			r.insert(http.MethodDelete, rule.GetDelete(), md)
		case rule.GetPost() != "" && rule.GetBody() == "*":
			r.insert(http.MethodPost, rule.GetPost(), md)
		case rule.GetPut() != "" && rule.GetBody() == "*":
			r.insert(http.MethodPut, rule.GetPut(), md)
		default:
			return fmt.Errorf("rpc: %s: its HTTP rule is neither get or delete nor post or put with body \"*\"", md.FullName())
		}
	}
	return nil
}

func (r routes) insert(method, template string, md protoreflect.MethodDescriptor) {
	r[method] = append(r[method], route{strings.Split(template, "/"), md})
}

// resolve returns the path under which the transcoder finds the route of a
// request. The transcoder looks at literals first and does not go back when one
// does not take the method: GET /api/v1/tasks/batch, where "batch" is a task id,
// would be refused because POST /api/v1/tasks/batch exists. So what is the value
// of a variable is escaped, which sets it apart from literals; the transcoder
// undoes it.
func (r *route) resolve(path string) string {
	if r == nil {
		return path
	}
	parts := strings.Split(path, "/")
	for i, part := range r.parts {
		if value := parts[i]; isVariable(part) && value != "" && value[0] != '%' {
			parts[i] = fmt.Sprintf("%%%02X%s", value[0], value[1:])
		}
	}
	return strings.Join(parts, "/")
}

// find returns the route that matches a path as it was sent, nil if none does. Of
// several it is the one with a literal where they differ first.
func (r routes) find(method, path string) (best *route) {
	parts := strings.Split(path, "/")
	for i := range r[method] {
		candidate := &r[method][i]
		if matches(candidate.parts, parts) && (best == nil || moreLiteral(candidate.parts, best.parts)) {
			best = candidate
		}
	}
	return best
}

func matches(route, parts []string) bool {
	if len(route) != len(parts) {
		return false
	}
	for i, part := range route {
		if part != parts[i] && !isVariable(part) {
			return false
		}
	}
	return true
}

func moreLiteral(a, b []string) bool {
	for i := range a {
		if isVariable(a[i]) != isVariable(b[i]) {
			return isVariable(b[i])
		}
	}
	return false
}

func isVariable(part string) bool { return strings.HasPrefix(part, "{") }
