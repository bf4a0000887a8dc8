package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/manxnet/manx/integration/namespace"
)

// Get reads a page of manxd's HTTP listener, which is on the loopback address of the node's namespace, for instance
// /metrics. The page comes with the error, too.
func (n *Node) Get(path string) (string, error) {
	client := &http.Client{
		Timeout: 30 * time.Second,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
				return dialIn(n.Namespace, network, address)
			},
		},
	}
	resp, err := client.Get("http://127.0.0.1:9099" + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return string(body), err
}

// dialIn connects from inside a namespace.
func dialIn(ns, network, address string) (conn net.Conn, err error) {
	inErr := namespace.Inside(ns, func() { conn, err = net.DialTimeout(network, address, 2*time.Second) })
	return conn, errors.Join(inErr, err)
}

// Dial connects from inside the node's namespace, for instance to its gobgp port.
func (n *Node) Dial(network, address string) (net.Conn, error) {
	return dialIn(n.Namespace, network, address)
}

// Listen opens a port inside the node's namespace.
func (n *Node) Listen(network, address string) (l net.Listener, err error) {
	inside := func() { l, err = net.Listen(network, address) }
	if outer := namespace.Inside(n.Namespace, inside); outer != nil {
		return nil, outer
	}
	return l, err
}
