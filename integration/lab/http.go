package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/vishvananda/netns"
)

// httpGet reads a page of manxd's HTTP listener, which is on the loopback address of the node's namespace.
func (n *Node) httpGet(path string) (string, error) {
	client := &http.Client{
		Timeout: 5 * time.Second,
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

// dialIn connects from inside a namespace. The socket keeps to the namespace that it was made in; the thread that
// entered it is thrown away rather than trusted to have come back.
func dialIn(ns, network, address string) (conn net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		var h netns.NsHandle
		if h, err = netns.GetFromName(ns); err != nil {
			return
		}
		defer h.Close()
		if err = netns.Set(h); err != nil {
			return
		}
		conn, err = net.DialTimeout(network, address, 2*time.Second)
	}()
	<-done
	return conn, err
}

// Dial connects from inside the node's namespace, for instance to its gobgp port.
func (n *Node) Dial(network, address string) (net.Conn, error) {
	return dialIn(n.Namespace, network, address)
}
