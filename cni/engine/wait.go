package engine

import (
	"cmp"
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
	// defaultPolicyWait is the time that ADD waits for the agent unless the network configuration sets one.
	defaultPolicyWait = 10 * time.Second
	// longestPolicyWait is in seconds. It exceeds the timeout of every runtime.
	longestPolicyWait = 3600
	// policyPoll is the poll interval for the agent's file. Watching the folder would take an inotify instance for each
	// starting container; a host has few of them.
	policyPoll = 10 * time.Millisecond
	// firstPoll is the interval of the first firstPolls polls, for the time that the agent needs at least.
	firstPoll, firstPolls = 2 * time.Millisecond, 25
)

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
	name, err := endpointstatus.FileName(key)
	if err != nil {
		c.log.Warn("policy is not waited for", zap.Error(err))
		return
	}
	began := time.Now()
	// The configured time applies, not the remaining time of the call.
	ctx = context.WithoutCancel(ctx)
	wait, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	right := func(s endpointstatus.Status) bool { return describes(s, mac, ips) }
	if c.News != nil && (c.conf.EndpointStatusDir == "" || c.conf.EndpointStatusDir == c.agentDir()) {
		err = waitForNews(wait, c.News, name, right)
	} else {
		err = waitForFile(wait, filepath.Join(c.statusDir(), name), right)
	}
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

// statusDir returns the folder of the agent's endpoint status files.
func (c *call) statusDir() string {
	if dir := c.conf.EndpointStatusDir; dir != "" {
		return dir
	}
	return cmp.Or(c.agentDir(), filepath.Join(endpointstatus.DefaultPathPrefix, endpointstatus.FolderName))
}

// agentDir returns the folder of the files of this host's agent, empty if it is not known.
func (c *call) agentDir() string {
	if c.StatusDir == nil {
		return ""
	}
	return c.StatusDir()
}

// policyWait returns the time to wait; 0 disables the wait. The default depends on whether an agent writes the files:
// Calico's plugin does not wait by default, and Calico's agent does not write the files by default either.
func (c *call) policyWait() time.Duration {
	if seconds := c.conf.PolicySetupTimeout; seconds != nil {
		return time.Duration(min(*seconds, longestPolicyWait)) * time.Second
	}
	if _, err := os.Stat(c.statusDir()); err == nil || c.Agent != nil && c.Agent(c.conf) {
		return defaultPolicyWait
	}
	return 0
}

// waitForNews waits until the agent of this process has connected the workload, or ctx ends.
func waitForNews(
	ctx context.Context, news *endpointstatus.News, name string, right func(endpointstatus.Status) bool,
) error {
	for {
		s, connected, next := news.Status(name)
		if connected && right(s) {
			return nil
		}
		select {
		case <-ctx.Done():
			if connected {
				return fmt.Errorf("the status of the workload %w", errOtherContainer)
			}
			return errors.New("the agents have not programmed them")
		case <-next:
		}
	}
}

// waitForFile waits until the file at path has a matching status, or ctx ends. An empty file, as early versions of
// Calico's agent write it, always matches.
func waitForFile(ctx context.Context, path string, right func(endpointstatus.Status) bool) error {
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

// longestStatusFile bounds the size of a status file that is read, in bytes.
const longestStatusFile = 64 << 10

var errOtherContainer = errors.New("is about an earlier container of the same name")

func checkFile(path string, right func(endpointstatus.Status) bool) error {
	content, err := safefile.Read(path, longestStatusFile)
	if err != nil || len(content) == 0 {
		return err
	}
	var s endpointstatus.Status
	if err := json.Unmarshal(content, &s); err != nil { // may be incomplete
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
