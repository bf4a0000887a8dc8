package etcd

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
)

// currentTLS are the credentials of a client that reads its TLS files for each connection: files that were replaced
// count without a restart.
type currentTLS struct {
	credentials.TransportCredentials
	config Config
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *currentTLS) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	config, err := c.config.tlsConfig()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, raw)
}

// Clone implements credentials.TransportCredentials.
func (c *currentTLS) Clone() credentials.TransportCredentials {
	return &currentTLS{c.TransportCredentials.Clone(), c.config}
}
