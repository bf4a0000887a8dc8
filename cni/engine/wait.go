package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane/endpointstatus"
	"github.com/manxnet/manx/datastore/safefile"
)

const (
	// defaultPolicyWait is how long ADD waits for the agent if the network configuration does not say.
	defaultPolicyWait = 10 * time.Second
	// longestPolicyWait is in seconds. No runtime is as patient.
	longestPolicyWait = 3600
	// policyPoll is how often the agent's file is looked for. To watch the folder would take an inotify instance for
	// each container that starts, of which a host has few.
	policyPoll = 10 * time.Millisecond
	// firstPoll is how often at first, for as long as the agent needs at least: one in manxd costs no process.
	firstPoll, firstPolls = 2 * time.Millisecond, 25
)

// waitForPolicy waits until the agent has the policy of and the routes to the container in the kernel. It never fails
// an ADD: until there are rules for the interface nothing passes it.
func (c *call) waitForPolicy(ctx context.Context, mac net.HardwareAddr, ips []netip.Addr) {
	timeout := c.policyWait()
	if timeout == 0 {
		return
	}
	key, err := c.work.key()
	if err != nil {
		return // an ADD without a key does not get this far
	}
	name, err := endpointstatus.FileName(key)
	if err != nil {
		c.log.Warn("policy is not waited for", zap.Error(err))
		return
	}
	path := filepath.Join(c.statusDir(), name)
	began := time.Now()
	// The time that the configuration gives counts, not what is left of the call's.
	ctx = context.WithoutCancel(ctx)
	err = waitForFile(ctx, path, timeout, func(s endpointstatus.Status) bool { return describes(s, mac, ips) })
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

// statusDir returns where the agent tells whose policy is in force.
func (c *call) statusDir() string {
	if dir := c.conf.EndpointStatusDir; dir != "" {
		return dir
	}
	if c.StatusDir != nil {
		if dir := c.StatusDir(); dir != "" {
			return dir
		}
	}
	return filepath.Join(endpointstatus.DefaultPathPrefix, endpointstatus.FolderName)
}

// policyWait returns how long to wait, 0 for not at all. What is not configured depends on whether there is an agent
// that tells: Calico's plugin does not wait then, but Calico's agent is not told to write the files by default either.
func (c *call) policyWait() time.Duration {
	if seconds := c.conf.PolicySetupTimeout; seconds != nil {
		return time.Duration(min(*seconds, longestPolicyWait)) * time.Second
	}
	if _, err := os.Stat(c.statusDir()); err == nil || c.Agent != nil && c.Agent(c.conf) {
		return defaultPolicyWait
	}
	return 0
}

// waitForFile waits until the file at path has a status that is right. An empty file, as early versions of Calico's
// agent write, is always right.
func waitForFile(
	ctx context.Context, path string, timeout time.Duration, right func(endpointstatus.Status) bool,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(firstPoll)
	defer ticker.Stop()
	for n := 0; ; n++ {
		if n == firstPolls {
			ticker.Reset(policyPoll)
		}
		err := checkFile(path, right)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// longestStatusFile bounds what is read of a status file, in bytes.
const longestStatusFile = 64 << 10

var errOtherContainer = errors.New("is about an earlier container of the same name")

func checkFile(path string, right func(endpointstatus.Status) bool) error {
	content, err := safefile.Read(path, longestStatusFile)
	if err != nil || len(content) == 0 {
		return err
	}
	var s endpointstatus.Status
	if err := json.Unmarshal(content, &s); err != nil { // it may be written just now
		return fmt.Errorf("%s: %w", path, err)
	}
	if !right(s) {
		return fmt.Errorf("%s %w", path, errOtherContainer)
	}
	return nil
}

// describes reports whether s is about the container with this interface and these addresses.
func describes(s endpointstatus.Status, mac net.HardwareAddr, ips []netip.Addr) bool {
	if m, err := net.ParseMAC(s.MAC); s.MAC != "" && (err != nil || !slices.Equal(m, mac)) {
		return false
	}
	nets := append(slices.Clone(s.IPv4Nets), s.IPv6Nets...)
	return !slices.ContainsFunc(ips, func(ip netip.Addr) bool {
		return !slices.Contains(nets, netip.PrefixFrom(ip, ip.BitLen()).String())
	})
}
