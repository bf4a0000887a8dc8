package endpointstatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
)

// Workload is a container that waits for its policy and routes.
type Workload struct {
	Endpoint  model.Key
	MAC       net.HardwareAddr
	Addresses []netip.Addr
}

const (
	// filePoll is the poll interval for a file. Watching the folder would take an inotify instance for each starting
	// container; a host has few of them.
	filePoll = 10 * time.Millisecond
	// firstPoll is the interval of the first firstPolls polls, for the time that the agent needs at least.
	firstPoll, firstPolls = 2 * time.Millisecond, 25
)

// ErrOtherContainer is the reason while the status of a workload is about an earlier container of the same name.
var ErrOtherContainer = errors.New("is about an earlier container of the same name")

// WaitForFile returns when the file of a workload in a folder has its status. If ctx ends before, the error says what
// is wrong with the file. An empty file, as early versions of Calico's agent write it, always matches.
func WaitForFile(ctx context.Context, folder string, w Workload) error {
	name, err := FileName(w.Endpoint)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(firstPoll)
	defer ticker.Stop()
	for n := 0; ; n++ {
		if n == firstPolls {
			ticker.Reset(filePoll)
		}
		err := checkFile(filepath.Join(folder, name), w)
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

func checkFile(path string, w Workload) error {
	content, err := safefile.Read(path, longestStatus)
	if err != nil || len(content) == 0 {
		return err
	}
	var s Status
	if err := json.Unmarshal(content, &s); err != nil { // may be incomplete
		return fmt.Errorf("%s: %w", path, err)
	}
	if !s.Describes(w) {
		return fmt.Errorf("%s %w", path, ErrOtherContainer)
	}
	return nil
}

// Describes reports whether s is about a workload with this interface and these addresses.
func (s Status) Describes(w Workload) bool {
	if m, err := net.ParseMAC(s.MAC); s.MAC != "" && (err != nil || !slices.Equal(m, w.MAC)) {
		return false
	}
	nets := append(slices.Clone(s.IPv4Nets), s.IPv6Nets...)
	return !slices.ContainsFunc(w.Addresses, func(ip netip.Addr) bool {
		return !slices.Contains(nets, netip.PrefixFrom(ip, ip.BitLen()).String())
	})
}
