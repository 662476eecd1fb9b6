package acceptance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// REST calls the RPC's REST form and returns the reply.
type REST func(ctx context.Context, method, path string, body []byte) (status int, reply []byte, err error)

// maxReply bounds a reply, in bytes.
const maxReply = 16 << 20

// NewREST calls the first of the servers at the given base URLs
// (comma-separated). An empty token is none.
func NewREST(c *http.Client, servers, token string) REST {
	base, _, _ := strings.Cut(servers, ",")
	base = strings.TrimSuffix(strings.TrimSpace(base), "/")
	return func(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
		req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
		if err != nil {
			return 0, nil, err
		}
		req.Header.Set("Content-Type", "application/json")
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := c.Do(req)
		if err != nil {
			return 0, nil, err
		}
		defer func() { _ = res.Body.Close() }() // it was only read
		reply, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
		if err != nil {
			return 0, nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		return res.StatusCode, reply, nil
	}
}
