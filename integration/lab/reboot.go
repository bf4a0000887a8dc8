package lab

import (
	"os/exec"

	"github.com/manxnet/manx/integration/namespace"
)

// Start runs a program in the background until the lab is closed; its output goes to the file NAME.log of dir.
func (l *Lab) Start(name, dir string, cmd *exec.Cmd) (*Process, error) {
	return l.start(name, dir, cmd)
}

// Gateway is the address of the first router on the cable to the node.
func (n *Node) Gateway() string { return host(subnet4(n.uplinks[0].subnet), 1).String() }

// Gateway6 is its address of IPv6.
func (n *Node) Gateway6() string { return host(subnet6(n.uplinks[0].subnet), 1).String() }

// Renew ends all that runs on the node and gives it a new namespace, as if the machine were switched off and on:
// devices, routes and tables are gone, and the cables are plugged in again. Its files stay.
func (n *Node) Renew() error {
	cables := n.uplinks
	for i, up := range cables {
		// The end of the namespace would remove this interface only later, and until then its name is in use.
		if err := namespace.Batch(n.lab.ToRs[i].Namespace, "link del "+up.port()); err != nil {
			return err
		}
	}
	if err := namespace.Remove(n.Namespace); err != nil {
		return err
	}
	if err := namespaceIn(n.Namespace, n.Dir); err != nil {
		return err
	}
	n.uplinks = nil
	for i, up := range cables {
		if err := n.plug(n.lab.ToRs[i], up); err != nil {
			return err
		}
	}
	return nil
}
