package store

import (
	"context"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// peerTimeout is how long what was sent to Postgres may stay unacknowledged by
// its host before the connection counts as broken. A host that vanishes sends no
// sign, and Linux would go on sending for 15 minutes.
const peerTimeout = 20 * time.Second

// attentive makes connections that notice a host that vanished, whether the
// connection is waiting for something (keepalive probes) or has something to send.
func attentive(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if t, ok := c.(*net.TCPConn); ok {
			err = t.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 2})
			if err == nil {
				err = setPeerTimeout(t, peerTimeout)
			}
			if err != nil {
				_ = c.Close()
				return nil, err
			}
		}
		return c, nil
	}
}
