package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// Values of net.ipv4.fib_multipath_hash_policy, by which a router selects one of several nodes for a packet.
const (
	byAddresses = "0" // all connections of a client to a Service reach one node
	byPorts     = "1" // connections of a client reach all nodes
)

// followAffinity configures the router as a cloud configures its load balancers: while a Service of type LoadBalancer
// has session affinity, the router selects nodes by addresses, and otherwise by addresses and ports. kube-proxy on each
// node can keep only the affinity of the connections that reach this node. A router has one setting for all routes, so
// a test with such a Service runs alone. followAffinity returns when ctx ends.
func followAffinity(ctx context.Context, c *lab.Cluster) {
	router := c.ToRs[0].Namespace
	set := func(policy string) error {
		return runInNamespace(router, "sh", "-c", "echo "+policy+" > /proc/sys/net/ipv4/fib_multipath_hash_policy")
	}
	for ctx.Err() == nil {
		// The API server ends a watch after some time.
		if err := watchServices(ctx, c, set); err != nil && ctx.Err() == nil {
			fmt.Println("watch of Services:", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// watchServices sets the router's policy until the watch or ctx ends.
func watchServices(ctx context.Context, c *lab.Cluster, set func(policy string) error) error {
	cmd := c.KubectlCommand("get", "services", "--all-namespaces", "--watch", "--output-watch-events", "--output=json")
	events, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	err = applyEvents(events, set)
	_ = cmd.Process.Kill() // an unknown event ends the watch
	_ = cmd.Wait()
	return err
}

// applyEvents reads the events of a watch of Services, and sets the policy at the beginning and when it changes. The
// end of the watch is no error.
func applyEvents(events io.Reader, set func(policy string) error) error {
	affine := map[string]bool{} // balanced Services with affinity, by namespace and name
	current := ""
	for in := json.NewDecoder(events); ; {
		var e struct {
			Type   string
			Object corev1.Service
		}
		switch err := in.Decode(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case e.Type == "ERROR":
			return errors.New("the API server ended the watch with an error")
		}
		name := e.Object.Namespace + "/" + e.Object.Name
		if e.Type != "DELETED" && e.Object.Spec.Type == corev1.ServiceTypeLoadBalancer &&
			e.Object.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			affine[name] = true
		} else {
			delete(affine, name)
		}
		policy := byPorts
		if len(affine) > 0 {
			policy = byAddresses
		}
		if policy != current {
			if err := set(policy); err != nil {
				return err
			}
			current = policy
		}
	}
}
