package rpc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
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
//   - penstock.v1.TaskService as gRPC, gRPC-Web and Connect, in protobuf and
//     JSON, and as REST/JSON under /api/v1/;
//   - GET /api/v1/events/watch: WatchEvents as server-sent events;
//   - grpc.health.v1.Health, GET /livez (200 as long as the process serves) and
//     GET /readyz (200 or 503);
//   - server reflection, v1 and v1alpha;
//   - GET /openapi.json, and GET /metrics if there is a handler for it.
//
// Any other path is a problem+json 404. gRPC needs HTTP/2: see NewServer. It
// fails if the options are out of bounds or the service's messages cannot be
// mapped to JSON.
func NewHandler(svc penstockv1connect.TaskServiceHandler, o Options) (http.Handler, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := checkMessages(); err != nil {
		return nil, err
	}
	prefix, tasks := penstockv1connect.NewTaskServiceHandler(svc, handlerOptions(o)...)
	transcoder, err := newTranscoder(prefix, tasks, o)
	if err != nil {
		return nil, fmt.Errorf("rpc: transcoder: %w", err)
	}
	r := &router{exact: map[string]http.Handler{}, prefixes: map[string]http.Handler{}}
	for _, procedure := range procedures() {
		r.exact[procedure] = tasks
	}
	r.prefixes[restPrefix] = &restHandler{
		transcoder:      transcoder,
		log:             o.Logger,
		maxBatchBytes:   int64(o.MaxBatchBytes),
		maxMessageBytes: int64(o.MaxMessageBytes),
	}
	get := func(path string, h http.Handler, methods ...string) {
		r.exact[path] = allowOnly(h, append([]string{http.MethodGet}, methods...)...)
	}
	get(watchPath, &watchHandler{rpc: tasks, keepAlive: o.WatchKeepAlive})
	ready := readiness{ready: o.Ready}
	get("/readyz", ready, http.MethodHead)
	get("/livez", http.HandlerFunc(livez), http.MethodHead)
	get("/openapi.json", openAPIHandler(), http.MethodHead)
	if o.Metrics != nil {
		get("/metrics", o.Metrics, http.MethodHead)
	}
	r.probes(ready)
	return r, nil
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
	return nil
}

// handlerOptions are those of the TaskService handlers.
func handlerOptions(o Options) []connect.HandlerOption {
	interceptors := append(append([]connect.Interceptor(nil), o.Interceptors...), &interceptor{log: o.Logger})
	return []connect.HandlerOption{
		codecOptions(o.Logger),
		connect.WithInterceptors(interceptors...),
		connect.WithCompressMinBytes(compressMinBytes),
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			limit := o.MaxMessageBytes
			if spec.Procedure == penstockv1connect.TaskServiceEnqueueBatchProcedure {
				limit = o.MaxBatchBytes
			}
			return []connect.HandlerOption{connect.WithReadMaxBytes(limit)}
		}),
	}
}

// newTranscoder maps REST calls to Connect calls in JSON. The handlers behind
// it bound what they read; its own bound is for responses, which carry a batch
// back with a task around each payload.
func newTranscoder(path string, tasks http.Handler, o Options) (*vanguard.Transcoder, error) {
	limit := uint32(2*max(o.MaxBatchBytes, o.MaxMessageBytes) + DefaultMaxBatchBytes) //nolint:gosec // at most 2 GiB + 64 MiB
	service := vanguard.NewService(path, tasks,
		vanguard.WithTargetProtocols(vanguard.ProtocolConnect),
		vanguard.WithTargetCodecs(vanguard.CodecJSON),
		vanguard.WithMaxMessageBufferBytes(limit),
	)
	return vanguard.NewTranscoder([]*vanguard.Service{service},
		vanguard.WithCodec(func(vanguard.TypeResolver) vanguard.Codec { return restCodec{} }),
		vanguard.WithUnknownHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			notFound().write(w)
		})),
	)
}

// taskMethods are the methods of TaskService.
func taskMethods() protoreflect.MethodDescriptors {
	return penstockv1.File_penstock_v1_tasks_proto.Services().ByName("TaskService").Methods()
}

// procedures lists the paths of the RPCs.
func procedures() []string {
	methods := taskMethods()
	paths := make([]string, methods.Len())
	for i := range paths {
		paths[i] = "/" + penstockv1connect.TaskServiceName + "/" + string(methods.Get(i).Name())
	}
	return paths
}

// checkMessages plans the JSON of every request and response.
func checkMessages() error {
	methods := taskMethods()
	for i := range methods.Len() {
		for _, md := range []protoreflect.MessageDescriptor{methods.Get(i).Input(), methods.Get(i).Output()} {
			if _, err := planFor(md); err != nil {
				return err
			}
		}
	}
	return nil
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

// router finds the handler of a path. It is not an http.ServeMux because that
// redirects paths with dots or repeated slashes, which may occur in task ids.
type router struct {
	exact    map[string]http.Handler
	prefixes map[string]http.Handler // up to and with a slash
}

// probes adds health and reflection.
func (r *router) probes(ready grpchealth.Checker) {
	limit := connect.WithReadMaxBytes(maxProbeBytes)
	add := func(prefix string, h http.Handler) { r.prefixes[prefix] = h }
	add(grpchealth.NewHandler(ready, limit))
	reflector := grpcreflect.NewStaticReflector(
		penstockv1connect.TaskServiceName,
		grpchealth.HealthV1ServiceName,
		grpcreflect.ReflectV1ServiceName,
		grpcreflect.ReflectV1AlphaServiceName,
	)
	add(grpcreflect.NewHandlerV1(reflector, limit))
	add(grpcreflect.NewHandlerV1Alpha(reflector, limit))
}

// ServeHTTP implements http.Handler.
func (r *router) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := req.URL.Path
	if h, ok := r.exact[path]; ok {
		h.ServeHTTP(w, req)
		return
	}
	if strings.HasPrefix(path, restPrefix) {
		r.prefixes[restPrefix].ServeHTTP(w, req)
		return
	}
	if i := strings.LastIndexByte(path, '/'); i > 0 {
		if h, ok := r.prefixes[path[:i+1]]; ok {
			h.ServeHTTP(w, req)
			return
		}
	}
	notFound().write(w)
}
