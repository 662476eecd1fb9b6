package rpc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	"connectrpc.com/vanguard"
	"google.golang.org/protobuf/reflect/protoreflect"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

const (
	// compressMinBytes is the size below which compressing costs more than it
	// saves.
	compressMinBytes = 1 << 10
	// maxProbeBytes bounds requests for health and reflection.
	maxProbeBytes = 64 << 10
)

// NewHandler returns the handler of the RPC port:
//
//   - the services as gRPC, gRPC-Web and Connect, in protobuf and JSON, and as
//     REST/JSON under /api/v1/;
//   - GET /api/v1/events/watch: WatchEvents as server-sent events;
//   - grpc.health.v1.Health, GET /livez (200 as long as the process serves) and
//     GET /readyz (200 or 503);
//   - server reflection, v1 and v1alpha;
//   - GET /openapi.json, and GET /metrics if there is a handler for it.
//
// Options.Handlers go before all of these. Any other path is a problem+json 404.
// gRPC needs HTTP/2: see NewServer. It fails if a service is missing, the options
// are out of bounds or the services' messages cannot be mapped to JSON.
func NewHandler(s Services, o Options) (*Router, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	services, err := s.connect(handlerOptions(o)...)
	if err != nil {
		return nil, err
	}
	rest, err := newRESTHandler(services, o)
	if err != nil {
		return nil, err
	}
	r := &Router{own: o.Handlers, exact: map[string]http.Handler{}, prefixes: map[string]http.Handler{restPrefix: rest}}
	names := make([]string, len(services))
	for i, service := range services {
		names[i] = service.name()
		for _, procedure := range service.procedures() {
			r.exact[procedure] = service.handler
		}
	}
	get := func(path string, h http.Handler, methods ...string) {
		r.exact[path] = allowOnly(h, append([]string{http.MethodGet}, methods...)...)
	}
	get(watchPath, &watchHandler{rpc: r.exact[penstockv1connect.TaskServiceWatchEventsProcedure], keepAlive: o.WatchKeepAlive})
	ready := readiness{ready: o.Ready, services: names}
	get("/readyz", ready, http.MethodHead)
	get("/livez", http.HandlerFunc(livez), http.MethodHead)
	get("/openapi.json", openAPIHandler(), http.MethodHead)
	if o.Metrics != nil {
		get("/metrics", o.Metrics, http.MethodHead)
	}
	r.probes(ready)
	r.browsers = newBrowsers(o)
	return r, nil
}

// newRESTHandler makes the handler of everything under /api/v1/ that is an RPC.
func newRESTHandler(services []service, o Options) (http.Handler, error) {
	routes, err := routesOf(services)
	if err != nil {
		return nil, err
	}
	transcoder, err := newTranscoder(services, o)
	if err != nil {
		return nil, fmt.Errorf("rpc: transcoder: %w", err)
	}
	return &restHandler{transcoder: transcoder, routes: routes, log: o.Logger, limits: o.limits(), gate: o.Gate}, nil
}

// check reports options out of bounds.
func (o Options) check() error {
	for name, limit := range map[string]int{"MaxBatchBytes": o.MaxBatchBytes, "MaxMessageBytes": o.MaxMessageBytes} {
		if limit < 0 || limit > maxLimit {
			return fmt.Errorf("rpc: %s is %d; it must be 1 to %d", name, limit, maxLimit)
		}
	}
	if o.WatchKeepAlive < 0 {
		return fmt.Errorf("rpc: WatchKeepAlive is negative")
	}
	for prefix := range o.Handlers {
		if len(prefix) < 2 || prefix[0] != '/' || prefix[len(prefix)-1] != '/' {
			return fmt.Errorf("rpc: Handlers: the prefix %q must begin and end with a slash", prefix)
		}
		for other := range o.Handlers {
			if other != prefix && strings.HasPrefix(other, prefix) {
				return fmt.Errorf("rpc: Handlers: both %q and %q are for the second one's paths", prefix, other)
			}
		}
	}
	return nil
}

// handlerOptions are those of the services' Connect handlers.
func handlerOptions(o Options) []connect.HandlerOption {
	inner := &interceptor{log: o.Logger}
	interceptors := append([]connect.Interceptor{mapper{inner}}, o.Interceptors...)
	return []connect.HandlerOption{
		codecOptions(o.Logger, o.limits()),
		connect.WithRequestGate(inner.gate(o.Gate)),
		connect.WithInterceptors(append(interceptors, inner)...),
		connect.WithCompressMinBytes(compressMinBytes),
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			method := spec.Schema.(protoreflect.MethodDescriptor) // generated code gives it
			return []connect.HandlerOption{connect.WithReadMaxBytes(o.limits().of(method.Input()))}
		}),
	}
}

// newTranscoder maps REST calls to Connect calls in JSON. The handlers behind
// it bound what they read; its own bound is for responses, which carry a batch
// back with a task around each payload.
func newTranscoder(services []service, o Options) (*vanguard.Transcoder, error) {
	limit := uint32(2*max(o.MaxBatchBytes, o.MaxMessageBytes) + DefaultMaxBatchBytes) //nolint:gosec // at most 2 GiB + 64 MiB
	targets := make([]*vanguard.Service, len(services))
	for i, s := range services {
		targets[i] = vanguard.NewService(s.prefix, s.handler,
			vanguard.WithTargetProtocols(vanguard.ProtocolConnect),
			vanguard.WithTargetCodecs(vanguard.CodecJSON),
			vanguard.WithMaxMessageBufferBytes(limit),
		)
	}
	return vanguard.NewTranscoder(targets,
		vanguard.WithCodec(func(vanguard.TypeResolver) vanguard.Codec { return restCodec{o.limits()} }),
		vanguard.WithUnknownHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			notFound().write(w)
		})),
	)
}

// openAPIHandler serves the OpenAPI document.
func openAPIHandler() http.Handler {
	document := penstockv1.OpenAPI()
	sum := sha256.Sum256([]byte(document))
	etag := `"` + hex.EncodeToString(sum[:16]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("ETag", etag)
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(document))
	})
}

// Router is what NewHandler returns: it finds the handler of a path. It is not an
// http.ServeMux because that redirects paths with dots or repeated slashes, which
// may occur in task ids.
type Router struct {
	own      map[string]http.Handler // by prefix; see Options.Handlers
	exact    map[string]http.Handler
	prefixes map[string]http.Handler // up to and with a slash
	browsers *browsers
}

// probes adds health and reflection.
func (r *Router) probes(ready readiness) {
	limit := connect.WithReadMaxBytes(maxProbeBytes)
	add := func(prefix string, h http.Handler) { r.prefixes[prefix] = h }
	add(grpchealth.NewHandler(ready, limit))
	reflector := grpcreflect.NewStaticReflector(append(slices.Clone(ready.services),
		grpchealth.HealthV1ServiceName,
		grpcreflect.ReflectV1ServiceName,
		grpcreflect.ReflectV1AlphaServiceName,
	)...)
	add(grpcreflect.NewHandlerV1(reflector, limit))
	add(grpcreflect.NewHandlerV1Alpha(reflector, limit))
}

// Patterns lists all that is served, sorted: paths, and beginnings of paths, which
// end with a slash.
func (r *Router) Patterns() []string {
	var all []string
	for _, by := range []map[string]http.Handler{r.own, r.exact, r.prefixes} {
		all = slices.AppendSeq(all, maps.Keys(by))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Pattern returns the one of Patterns that serves a path, "" if none does.
func (r *Router) Pattern(path string) string {
	pattern, _ := r.find(path)
	return pattern
}

// find returns the pattern that serves a path, and its handler; nil if none does.
func (r *Router) find(path string) (string, http.Handler) {
	for prefix, h := range r.own {
		if strings.HasPrefix(path, prefix) {
			return prefix, h
		}
	}
	if h, ok := r.exact[path]; ok {
		return path, h
	}
	if strings.HasPrefix(path, restPrefix) {
		return restPrefix, r.prefixes[restPrefix]
	}
	prefix := path[:strings.LastIndexByte(path, '/')+1]
	if h, ok := r.prefixes[prefix]; ok {
		return prefix, h
	}
	return "", nil
}

// ServeHTTP implements http.Handler.
func (r *Router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if pattern, h := r.find(req.URL.Path); h != nil {
		if p := r.browsers.refuse(req, pattern); p != nil {
			p.write(w)
			return
		}
		h.ServeHTTP(w, req)
		return
	}
	notFound().write(w)
}
