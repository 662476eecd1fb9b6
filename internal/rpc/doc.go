// Package rpc is the transport of the public RPC: it turns implementations of
// the services of penstock.v1 into one http.Handler that speaks gRPC, gRPC-Web,
// Connect and REST/JSON on one port, and serves the endpoints that operators
// expect beside it: health, readiness, reflection, metrics, the OpenAPI
// document and the event stream as server-sent events.
//
// The package holds no business rules. It decodes, bounds the size of what it
// reads, maps errors and encodes. In particular it checks that a raw JSON
// member (a payload) is one JSON value in valid UTF-8, and leaves everything
// else about it (size, depth, repeated names inside it) to the service, which
// has to check the same for callers that send protobuf.
//
// gRPC, gRPC-Web and Connect calls go straight to the Connect handlers. Only
// /api/v1/ passes through the transcoder, which maps a REST call to a Connect
// call with the JSON codec of this package, so that a body that needs no path
// or query parameters is decoded once.
package rpc
