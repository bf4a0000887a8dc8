package main

import (
	"context"
	"net"
	"strings"
)

// dialUnix connects to "unix:PATH". gRPC's own resolver would take a relative path for a host name.
func dialUnix(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix:"))
}
