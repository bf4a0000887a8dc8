package lab

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Outage kills the programs of the control plane except etcd, as a loss of power does. End the outage with Return.
func (c *Cluster) Outage() {
	for i := len(c.plane) - 1; i > 0; i-- { // the first one is etcd
		c.plane[i].Kill()
	}
}

// Return starts the programs that Outage has ended. The API server is ready when it returns, and all nodes have
// reported since: the controllers of nodes start after them.
func (c *Cluster) Return() error {
	var ended []string
	for _, p := range c.plane[1:] {
		ended = append(ended, p.Name)
	}
	c.plane = c.plane[:1]
	begun := c.begun
	start := func(name string) error {
		i := slices.IndexFunc(begun, func(args []string) bool { return args[0] == name })
		if i < 0 {
			return errors.New("never started: " + name)
		}
		return c.startProgram(name, begun[i][1:]...)
	}
	from := time.Now()
	for i, name := range ended {
		if err := start(name); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if err := c.planeAnswers("--raw=/readyz"); err != nil {
			return err
		}
		c.starts = append(c.starts, period{from, time.Now()})
		if err := c.WaitNodes(); err != nil {
			return err
		}
	}
	return nil
}

type period struct{ from, to time.Time }

// PlaneStarting reports whether the API server was starting at a time, after an outage.
func (c *Cluster) PlaneStarting(at time.Time) bool {
	return slices.ContainsFunc(c.starts, func(p period) bool { return !at.Before(p.from) && !at.After(p.to) })
}

// containers returns the IDs of a pod's running containers on the node. The container with the pod's namespaces is its
// sandbox.
func (n *Node) containers(pod string, sandbox bool) ([]string, error) {
	kind := "container"
	if sandbox {
		kind = "sandbox"
	}
	out, err := n.RunIn("ctr", "-n", "k8s.io", "containers", "ls", "-q",
		fmt.Sprintf(`labels."io.kubernetes.pod.name"==%s,labels."io.cri-containerd.kind"==%s`, pod, kind))
	if err != nil {
		return nil, err
	}
	return strings.Fields(out), nil
}

// PID returns the ID of a running container's first process, as the node counts.
func (n *Node) PID(container string) (string, error) {
	out, err := n.RunIn("ctr", "-n", "k8s.io", "tasks", "ls")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == container && f[2] == "RUNNING" {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("%s: container %s does not run", n.Name, container)
}

// Sandbox returns the ID of a pod's sandbox, and the PID of its process.
func (n *Node) Sandbox(pod string) (id, pid string, err error) {
	all, err := n.containers(pod, true)
	if err != nil {
		return "", "", err
	}
	for _, id := range all {
		if pid, err := n.PID(id); err == nil {
			return id, pid, nil
		}
	}
	return "", "", fmt.Errorf("%s: pod %s has no sandbox that runs", n.Name, pod)
}
