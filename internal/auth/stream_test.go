package auth_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"

	penstockv1 "github.com/penstock-dev/penstock/protocol/penstock/v1"
	"github.com/penstock-dev/penstock/protocol/penstock/v1/penstockv1connect"
)

// endless is a stream that ends with its context.
type endless struct {
	penstockv1connect.UnimplementedTaskServiceHandler
}

func (endless) WatchEvents(ctx context.Context, _ *connect.Request[penstockv1.WatchEventsRequest], stream *connect.ServerStream[penstockv1.WatchEventsResponse]) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := stream.Send(&penstockv1.WatchEventsResponse{Position: "here"}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// An open stream ends once its token is taken away, has expired, or loses the
// role; those of others go on.
func TestOpenStreamsEndWithTheirToken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tokens")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const carolToken, daveToken = "carol-0123456789abcdef", "dave-0123456789abcdef"
	soon := time.Now().Add(4 * time.Second).Format(time.RFC3339Nano)
	carol := "carol " + carolToken + " roles=viewer\n"
	put("alice " + aliceToken + " roles=viewer\nbob bob-0123456789abcdef roles=viewer expires=" + soon + "\n" + carol + "dave " + daveToken + " roles=viewer\n")
	s, run := serveTasks(t, path, endless{})
	go func() { _ = run(t.Context()) }()
	streams := map[string]*connect.ServerStreamForClient[penstockv1.WatchEventsResponse]{}
	for name, token := range map[string]string{"alice": aliceToken, "bob": "bob-0123456789abcdef", "carol": carolToken, "dave": daveToken} {
		req := connect.NewRequest(&penstockv1.WatchEventsRequest{})
		req.Header().Set("Authorization", "Bearer "+token)
		stream, err := penstockv1connect.NewTaskServiceClient(s.h2c, s.url, connect.WithGRPC()).WatchEvents(t.Context(), req)
		if err != nil || !stream.Receive() {
			t.Fatalf("%s: %v, %v", name, err, stream.Err())
		}
		streams[name] = stream
	}
	put("bob bob-0123456789abcdef roles=viewer expires=" + soon + "\n" + carol + "dave " + daveToken + " roles=worker\n")
	for name, want := range map[string]connect.Code{"alice": connect.CodeUnauthenticated, "bob": connect.CodeUnauthenticated, "dave": connect.CodePermissionDenied} {
		for streams[name].Receive() {
		}
		if connect.CodeOf(streams[name].Err()) != want {
			t.Errorf("the stream of %s ended with %v, want %s", name, streams[name].Err(), want)
		}
	}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
		if !streams["carol"].Receive() {
			t.Fatalf("the stream of carol ended: %v", streams["carol"].Err())
		}
	}
	_ = streams["carol"].Close()
}
