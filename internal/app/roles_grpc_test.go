package app

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/penstock-dev/penstock/internal/auth"
	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
)

// TestEveryRPCByEveryRoleByGRPC calls each RPC as everybody, as gRPC's clients do.
func TestEveryRPCByEveryRoleByGRPC(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, nil)
	g.http = newH2C(t)
	g.ask(t, auth.RoleProducer, http.MethodPost, "/api/v1/tasks", "application/json", []byte(`{"type":"t","payload":{}}`)) // something to watch
	for _, m := range methods(t) {
		t.Run(rowOf(m), func(t *testing.T) {
			t.Parallel()
			for _, caller := range callers {
				err := g.callGRPC(t, m, caller)
				code, status, message := connect.CodeOf(err), http.StatusOK, ""
				switch {
				case err == nil:
				case code == connect.CodeUnauthenticated:
					status = http.StatusUnauthorized
				case code == connect.CodePermissionDenied:
					status = http.StatusForbidden
				case code != connect.CodeInvalidArgument && code != connect.CodeNotFound:
					t.Errorf("%s by %q is not served: %v", rowOf(m), caller, err)
				}
				if e, ok := errors.AsType[*connect.Error](err); ok {
					message = e.Message() // without the code, which the judge has as the status
				}
				judge(t, rowOf(m)+" by gRPC", caller, may[rowOf(m)], status, message)
			}
		})
	}
}

// callGRPC calls a procedure with an empty request, and a stream until something
// comes. Replies are not looked at: all are fields that an empty message does not
// know.
func (g *guarded) callGRPC(t *testing.T, m protoreflect.MethodDescriptor, caller string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := connect.NewClient[emptypb.Empty, emptypb.Empty](g.http, g.url+procedureOf(m), connect.WithGRPC())
	req := connect.NewRequest(&emptypb.Empty{})
	if caller != "" {
		req.Header().Set("Authorization", "Bearer "+tokenOf(caller))
	}
	if !m.IsStreamingServer() {
		_, err := c.CallUnary(ctx, req)
		return err
	}
	raw, err := proto.Marshal(&penstockv1.WatchEventsRequest{Position: "earliest"})
	if err != nil {
		t.Fatal(err)
	}
	req.Msg.ProtoReflect().SetUnknown(raw)
	stream, err := c.CallServerStream(ctx, req)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	if !stream.Receive() && stream.Err() == nil {
		t.Errorf("%s by %q ends at once", rowOf(m), caller)
	}
	return stream.Err()
}

// newH2C makes a client that speaks unencrypted HTTP/2, whose connections end with
// the test.
func newH2C(t *testing.T) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
