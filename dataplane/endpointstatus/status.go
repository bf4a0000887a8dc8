package endpointstatus

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/safefile"
)

// DefaultPathPrefix is Calico's folder for state that lasts until the host restarts (FelixConfiguration,
// endpointStatusPathPrefix).
const DefaultPathPrefix = "/var/run/calico"

// FolderName is the name of the files' folder below the path prefix.
const FolderName = "endpoint-status"

// DefaultFolder is the folder of the files unless a setting chooses another one.
const DefaultFolder = DefaultPathPrefix + "/" + FolderName

// Status is the content of a file, with Calico's names. Calico's bgpPeerName, for a program that configures BIRD from
// the files, is left out.
type Status struct {
	IfaceName string   `json:"ifaceName,omitempty"` // the host's end
	MAC       string   `json:"mac,omitempty"`       // the workload's
	IPv4Nets  []string `json:"ipv4Nets,omitempty"`  // host prefixes
	IPv6Nets  []string `json:"ipv6Nets,omitempty"`
}

// String is the file's content.
func (s Status) String() string {
	text, _ := json.Marshal(s) // strings only: cannot fail
	return string(text)
}

const separator = " "

// FileName names the file of a WorkloadEndpoint: orchestrator, NAMESPACE/WORKLOAD and endpoint, each escaped as in a
// path of a URL, separated by spaces. For instance "k8s shop%2Fweb-0 eth0". The error is about parts that no file may
// have in its name, such as "..", slashes and control characters, and about names that are too long.
func FileName(k model.Key) (string, error) {
	ids, err := model.ParseWorkloadEndpointName(k.Name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", k, err)
	}
	workload := ids.Pod + ids.ContainerID + ids.Workload // one of them is set
	parts := []string{ids.Orchestrator, k.Namespace + "/" + workload, ids.Endpoint}
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	name := strings.Join(parts, separator)
	for _, p := range []string{ids.Orchestrator, k.Namespace, workload, ids.Endpoint} {
		if err := safefile.CheckName(p); err != nil {
			return "", fmt.Errorf("%s: %w", k, err)
		}
	}
	if err := safefile.CheckName(name); err != nil {
		return "", fmt.Errorf("%s: %w", k, err)
	}
	return name, nil
}

// isFileName distinguishes the files from others in the folder.
func isFileName(name string) bool { return strings.Count(name, separator) == 2 }

// Endpoint is a WorkloadEndpoint of this node.
type Endpoint struct {
	Key model.Key
	// Revision is the version of the endpoint: another one is another endpoint.
	Revision  int64
	Interface string
	Addresses []netip.Prefix

	file, content string
	status        Status
}

// newEndpoint makes an Endpoint. mac is the workload's. The error is about a value that cannot be in a file, or in its
// name.
func newEndpoint(k model.Key, revision int64, iface, mac string, addresses []netip.Prefix) (Endpoint, error) {
	file, err := FileName(k)
	if _, bad := net.ParseMAC(mac); mac != "" && bad != nil {
		err = errors.Join(err, fmt.Errorf("%s: spec.mac: %w", k, bad))
	}
	s := Status{IfaceName: iface, MAC: mac}
	for _, a := range addresses {
		if a.Addr().Is4() {
			s.IPv4Nets = append(s.IPv4Nets, a.String())
		} else {
			s.IPv6Nets = append(s.IPv6Nets, a.String())
		}
	}
	return Endpoint{Key: k, Revision: revision, Interface: iface, Addresses: addresses, file: file,
		content: s.String(), status: s}, err
}

// Policy lists the endpoints whose policy is in the kernel. The zero value: it is not known yet.
type Policy struct {
	// Reader is the snapshot of the datastore which the kernel's rules are computed from.
	Reader model.Reader
	// Interfaces have their rules in the kernel.
	Interfaces map[string]bool
}

// has reports whether an endpoint's policy is in the kernel: that of the very version of the endpoint, not of a
// container which had the same interface before. Versions are only compared for equality: each kind of object may have
// a clock of its own.
func (p *Policy) has(e Endpoint) bool {
	if p.Reader == nil || !p.Interfaces[e.Interface] {
		return false
	}
	o := p.Reader.Get(e.Key)
	return o != nil && o.Revision == e.Revision
}

// decide returns the files that should exist, with their content by name: those of the endpoints with addresses that
// are protected by their policy, and whose routes all exist.
func decide(endpoints []Endpoint, protected func(Endpoint) bool,
	routed func(Endpoint, netip.Prefix) bool) map[string]string {
	files := map[string]string{}
	for _, e := range endpoints {
		if e.ready(protected, routed) {
			files[e.file] = e.content
		}
	}
	return files
}

func (e Endpoint) ready(protected func(Endpoint) bool, routed func(Endpoint, netip.Prefix) bool) bool {
	if len(e.Addresses) == 0 || !protected(e) {
		return false
	}
	for _, a := range e.Addresses {
		if !routed(e, a) {
			return false
		}
	}
	return true
}
