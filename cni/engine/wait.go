package engine

import (
	"context"
	"net"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/datastore/model"
)

const (
	// defaultPolicyWait is the time that ADD waits for the agent unless the network configuration sets one.
	defaultPolicyWait = 10 * time.Second
	// longestPolicyWait is in seconds. It exceeds the timeout of every runtime.
	longestPolicyWait = 3600
)

// Container is a container whose policy and routes are waited for.
type Container struct {
	Endpoint  model.Key
	MAC       net.HardwareAddr
	Addresses []netip.Addr
}

// waitForPolicy waits until the kernel has the container's policy and routes from the agent. It never fails an ADD:
// beside manxd's table, no packet passes an interface without rules.
func (c *call) waitForPolicy(ctx context.Context, mac net.HardwareAddr, ips []netip.Addr) {
	timeout := c.policyWait()
	if timeout == 0 {
		return
	}
	key, err := c.work.key()
	if err != nil {
		return // an ADD without a key fails earlier
	}
	connected, err := c.Connected(c.conf, Container{key, mac, ips})
	if err != nil {
		c.log.Warn("policy is not waited for", zap.Error(err))
		return
	}
	began := time.Now()
	// The configured time applies, not the remaining time of the call.
	ctx = context.WithoutCancel(ctx)
	wait, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = connected(wait)
	waited := time.Since(began)
	if err != nil {
		c.log.Warn("policy and routes are not in the kernel yet; the container starts, and has no connections "+
			"until they are",
			zap.Duration("waited", waited), zap.Error(err))
	} else {
		c.log.Info("policy and routes are in the kernel", zap.Duration("waited", waited))
	}
	if c.Report != nil {
		c.Report(ctx, c.conf, key.Namespace+"/"+key.Name, waited, err != nil)
	}
}

// policyWait returns the time to wait; 0 disables the wait. The default depends on whether an agent says when to go on:
// Calico's plugin does not wait by default, and Calico's agent does not write the files by default either.
func (c *call) policyWait() time.Duration {
	if seconds := c.conf.PolicySetupTimeout; seconds != nil {
		return time.Duration(min(*seconds, longestPolicyWait)) * time.Second
	}
	if c.Agent != nil && c.Agent(c.conf) {
		return defaultPolicyWait
	}
	return 0
}
