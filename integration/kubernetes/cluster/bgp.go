package cluster

import (
	"fmt"
	"net"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// Peer makes the router of the rack a peer of each node, under the addresses that it has on the node's link. Hosts
// outside the cluster then reach its pods, also the API server, which is no node.
func Peer(c *lab.Cluster, i Installation) error { return i.Store(c, strings.Join(peers(c), "---")) }

func peers(c *lab.Cluster) []string {
	var docs []string
	for _, n := range c.Workers {
		peer := func(name, address string) {
			docs = append(docs, fmt.Sprintf(`
apiVersion: projectcalico.org/v3
kind: BGPPeer
metadata: {name: %s-%s}
spec: {node: %s, peerIP: %q, asNumber: 65000}
`, name, n.Name, n.Name, address))
		}
		if c.Spec.Families.Has4() {
			peer("tor", n.Gateway())
		}
		if c.Spec.Families.Has6() {
			peer("tor6", n.Gateway6())
		}
	}
	return docs
}

func (w *World) peerWithRouter() error {
	// With graceful restart the router keeps the routes of a node whose manxd is being updated.
	docs := append(peers(w.Cluster), `
apiVersion: projectcalico.org/v3
kind: BGPConfiguration
metadata: {name: default}
spec: {asNumber: 64512, nodeToNodeMeshEnabled: true, serviceClusterIPs: [{cidr: `+lab.ServiceCIDR+`}]}
`)
	if err := w.install.Store(w.Cluster, strings.Join(docs, "---")); err != nil {
		return err
	}
	if err := w.showAllSessions(); err != nil {
		return err
	}
	out, err := w.ToRs[0].Birdc("show", "protocols")
	if err == nil {
		w.show("on the router: birdc show protocols", out)
	}
	return err
}

// showSessions waits for the sessions of all nodes, if they have any.
func (w *World) showAllSessions() error {
	for _, n := range w.Workers {
		if err := w.showSessions(n.Name); err != nil {
			return err
		}
	}
	return nil
}

// showSessions waits for the sessions of a node, with the two others and the router, and prints them.
func (w *World) showSessions(node string) error {
	if !w.hasBGP() {
		return nil
	}
	var out string
	err := eventually(func() (err error) {
		out, err = w.manxd(node, "/gobgp", "neighbor")
		if err == nil && strings.Count(out, "Establ") != len(w.Workers) {
			err = fmt.Errorf("%s: want %d established sessions, have:\n%s", node, len(w.Workers), out)
		}
		return err
	})
	if err == nil {
		w.show("kubectl exec (manxd on "+node+") -- gobgp neighbor", out)
	}
	return err
}

func (w *World) service() error {
	ips, err := w.Kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIPs[*]}")
	if err != nil {
		return err
	}
	for _, ip := range strings.Fields(ips) {
		if err := w.reached(net.JoinHostPort(ip, "80")); err != nil {
			return err
		}
	}
	// The kubelet is an example of a Service whose pods use their node's network.
	own := w.Worker("node1").IP4.String() + ":10250"
	if err := eventually(func() error { return connect(w.from("client", own)) }); err != nil {
		return fmt.Errorf("a pod does not reach its own node: %w", err)
	}
	for _, name := range []string{"web", "web.default", "web.default.svc.cluster.local"} {
		if err := eventually(func() error { return connect(w.from("client", name+":80")) }); err != nil {
			return fmt.Errorf("a pod does not reach the Service by a name that the cluster's DNS knows: %w", err)
		}
	}
	if !w.hasBGP() {
		return w.nodePort()
	}
	return w.announced(strings.Fields(ips)[0])
}

// reached checks that all nodes and a pod reach a Service.
func (w *World) reached(service string) error {
	for _, n := range w.Workers {
		if err := eventually(func() error { return w.fromNode(n, service) }); err != nil {
			return fmt.Errorf("%s does not reach the Service: %w", n.Name, err)
		}
	}
	if err := eventually(func() error { return connect(w.from("client", service)) }); err != nil {
		return fmt.Errorf("a pod does not reach the Service: %w", err)
	}
	return nil
}

// nodePort checks that the router reaches a Service at its port of each node, in all families.
func (w *World) nodePort() error {
	port, err := w.Kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
	if err != nil {
		return err
	}
	for _, n := range w.Workers {
		for _, address := range n.Addresses() {
			target := net.JoinHostPort(address, port)
			if err := eventually(func() error { return connect(w.fromOutside(target)) }); err != nil {
				return fmt.Errorf("the router does not reach the Service: %w", err)
			}
			w.show("from the router: connect to Service web", target+" answers")
		}
	}
	return nil
}

// announced checks that the router has a route to the addresses of Services, and reaches one.
func (w *World) announced(ip string) error {
	if err := eventually(func() error {
		routes, err := w.ToRs[0].Routes()
		if err == nil && !strings.Contains(routes, lab.ServiceCIDR) {
			err = fmt.Errorf("the router has no route to %s:\n%s", lab.ServiceCIDR, routes)
		}
		return err
	}); err != nil {
		return err
	}
	if err := eventually(func() error { return connect(w.fromOutside(ip + ":80")) }); err != nil {
		return fmt.Errorf("the router does not reach the Service: %w", err)
	}
	routes, err := w.ToRs[0].Routes()
	if err == nil {
		w.show("on the router: ip route", routes)
		w.show("from the router: connect to Service web", ip+":80 answers")
	}
	return err
}

func (w *World) fromNode(n *lab.Node, target string) error {
	_, err := n.RunIn(w.Program("agnhost"), "connect", target, "--timeout=2s")
	return err
}
