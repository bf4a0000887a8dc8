package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/manxnet/manx/integration/namespace"
)

// stateDir holds one file for each lab that exists, so that a later run can clean up after one that was killed.
const stateDir = "/run/manx-lab"

// Spec describes a lab. Addresses are generated: subnet i of the underlay is 10.200.i.0/24 and fd00:200:i::/64, and the
// top-of-rack router has the first address in each.
type Spec struct {
	// Name is unique on this host; namespaces are called NAME-NODE. At most 8 characters.
	Name string
	// Bin is the folder with manxd, manxctl and manx-cni.
	Bin   string
	Nodes []NodeSpec
	// ToRs is the number of top-of-rack routers, 1 if unset. Each node has one uplink to each of them.
	ToRs int
	// With Routed, every uplink has its own subnet; otherwise the nodes of a rack share a switch.
	Routed bool
	// IPv6 adds IPv6 to the underlay.
	IPv6 bool
	// NoIPv4 leaves IPv4 out: nodes, and the routers on their cables, have addresses of IPv6 alone.
	NoIPv4 bool
	// PlainRouters keeps the routers from running BIRD: another program acts as the peer.
	PlainRouters bool
	// HardToRs is how many routers, the last ones, have no graceful restart: they drop the routes of a session that
	// ends.
	HardToRs int
	// BFD enables BFD from the routers to the nodes, 3 x 100 ms. The routers keep routes of nodes that restart.
	BFD bool
	// TorAS and NodeAS are the AS numbers of the two sides; 65000 and 64512 if unset.
	TorAS, NodeAS uint32
	// Log receives the output of all programs; nil drops it into files under Dir.
	Log io.Writer
}

// NodeSpec is one node: its name and the rack (and so the subnet) that it is in.
type NodeSpec struct {
	Name string
	Rack int
}

// Lab is a running lab.
type Lab struct {
	Spec  Spec
	Dir   string // working files, a sub-folder for each node
	Nodes []*Node
	ToRs  []*ToR

	mu        sync.Mutex
	processes []*Process

	opening sync.Mutex // guards opened
	opened  bool       // the pods' network allows every source
}

type stateFile struct {
	PID  int  `json:"pid"`
	Keep bool `json:"keep"`
	Dir  string
}

// New builds the namespaces, links, addresses and top-of-rack routers of a lab. Nodes do not run anything yet.
// Close removes all of it.
func New(spec Spec) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("lab: network namespaces need root")
	}
	if spec.Name == "" || len(spec.Name) > 8 {
		return nil, fmt.Errorf("lab: name %q: want 1 to 8 characters", spec.Name)
	}
	spec.ToRs = max(spec.ToRs, 1)
	if spec.TorAS == 0 {
		spec.TorAS = 65000
	}
	if spec.NodeAS == 0 {
		spec.NodeAS = 64512
	}
	if err := removeStale(); err != nil {
		return nil, err
	}
	if err := Remove(spec.Name); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "manx-lab-"+spec.Name+"-")
	if err != nil {
		return nil, err
	}
	inMemory(dir)
	l := &Lab{Spec: spec, Dir: dir}
	if err := l.saveState(false); err != nil {
		return nil, err
	}
	if err := l.build(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// inMemory keeps the programs' files off the disk: a datastore waits for the disk at each change, and shared disks can
// take many seconds. If the mount fails, the files are on the disk.
func inMemory(dir string) { _ = syscall.Mount("manx-lab", dir, "tmpfs", 0, "size=2g,mode=0755") }

func (l *Lab) saveState(keep bool) error {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return err
	}
	b, err := json.Marshal(stateFile{PID: os.Getpid(), Keep: keep, Dir: l.Dir})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(stateDir, l.Spec.Name), b, 0o644)
}

// Keep leaves the lab running when this process ends. Remove removes it later.
func (l *Lab) Keep() error { return l.saveState(true) }

// Close ends every program of the lab and removes its namespaces and files.
func (l *Lab) Close() error {
	l.mu.Lock()
	processes := slices.Clone(l.processes)
	l.mu.Unlock()
	for _, p := range processes {
		p.Kill()
	}
	return Remove(l.Spec.Name)
}

// Remove removes the lab of that name, of any builder. A missing lab is no error.
func Remove(name string) error {
	var errs []error
	namespaces, err := namespace.List(name + "-")
	if err != nil {
		return err
	}
	for _, ns := range namespaces {
		errs = append(errs, namespace.Remove(ns))
	}
	path := filepath.Join(stateDir, name)
	if st, err := readState(path); err == nil && strings.Contains(st.Dir, "manx-lab-") {
		for syscall.Unmount(st.Dir, syscall.MNT_DETACH) == nil {
		}
		errs = append(errs, os.RemoveAll(st.Dir))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeStale removes every lab whose builder has ended, except kept ones.
func removeStale() error {
	files, err := os.ReadDir(stateDir)
	if err != nil {
		return nil //nolint:nilerr // no lab was ever built here
	}
	var errs []error
	for _, f := range files {
		st, err := readState(filepath.Join(stateDir, f.Name()))
		if err != nil || st.Keep || alive(st.PID) {
			continue
		}
		errs = append(errs, Remove(f.Name()))
	}
	return errors.Join(errs...)
}

func readState(path string) (stateFile, error) {
	var st stateFile
	b, err := os.ReadFile(path)
	if err != nil {
		return st, err
	}
	return st, json.Unmarshal(b, &st)
}

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

// Node returns a node by name. It panics for an unknown name, which is a mistake in the test.
func (l *Lab) Node(name string) *Node {
	for _, n := range l.Nodes {
		if n.Name == name {
			return n
		}
	}
	panic("lab: no node " + name)
}

// subnet4 and subnet6 are the underlay's subnets.
func subnet4(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("10.200.%d.0/24", i)) }
func subnet6(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("fd00:200:%x::/64", i)) }

// host is the address of a subnet with that number.
func host(p netip.Prefix, n byte) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] = n
	a, _ := netip.AddrFromSlice(b)
	return a
}
