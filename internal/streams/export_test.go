package streams

import "context"

// DropConsumer removes a consumer as DropIdleConsumers does once it found it
// idle.
func DropConsumer(c *Client, ctx context.Context, stream, group, consumer string) (bool, error) {
	return c.dropConsumer(ctx, stream, group, consumer)
}
