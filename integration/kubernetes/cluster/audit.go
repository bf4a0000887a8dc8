package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// allocation of an address, as an IPAMBlock has it.
type allocation struct {
	address        netip.Addr
	handle, pod    string // pod with its namespace
	block, purpose string
}

// allocations returns all allocations in the blocks of the cluster.
func (w *World) allocations() ([]allocation, error) {
	out, err := w.Kubectl("get", "ipamblocks.projectcalico.org", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Spec struct {
				CIDR        netip.Prefix
				Deleted     bool
				Allocations []*int
				Attributes  []struct {
					Handle    string            `json:"handle_id"`
					Secondary map[string]string `json:"secondary"`
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	var all []allocation
	for _, b := range list.Items {
		address := b.Spec.CIDR.Addr()
		for _, attribute := range b.Spec.Allocations {
			if attribute != nil && !b.Spec.Deleted {
				if *attribute >= len(b.Spec.Attributes) {
					return nil, fmt.Errorf("block %s: no attribute %d", b.Spec.CIDR, *attribute)
				}
				a := b.Spec.Attributes[*attribute]
				pod := ""
				if name := a.Secondary["pod"]; name != "" {
					pod = a.Secondary["namespace"] + "/" + name
				}
				all = append(all, allocation{address: address, handle: a.Handle, pod: pod, block: b.Spec.CIDR.String(),
					purpose: a.Secondary["type"]})
			}
			address = address.Next()
		}
	}
	return all, nil
}

// handles returns the numbers of addresses, by handle and block.
func (w *World) handles() (map[string]int, error) {
	out, err := w.Kubectl("get", "ipamhandles.projectcalico.org", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Spec struct {
				HandleID string
				Deleted  bool
				Block    map[string]int
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, h := range list.Items {
		for block, n := range h.Spec.Block {
			if !h.Spec.Deleted && n != 0 {
				counts[h.Spec.HandleID+" in "+block] = n
			}
		}
	}
	return counts, nil
}

// podAddresses returns the addresses of all pods without host network, by namespace and name.
func (w *World) podAddresses() (map[string]netip.Addr, error) {
	out, err := w.Kubectl("get", "pods", "-A", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Namespace, Name string }
			Spec     struct{ HostNetwork bool }
			Status   struct{ PodIP, Phase string }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	addresses := map[string]netip.Addr{}
	for _, p := range list.Items {
		if p.Spec.HostNetwork || p.Status.Phase != "Running" {
			continue
		}
		a, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil {
			return nil, fmt.Errorf("pod %s/%s: %w", p.Metadata.Namespace, p.Metadata.Name, err)
		}
		addresses[p.Metadata.Namespace+"/"+p.Metadata.Name] = a
	}
	return addresses, nil
}

// audit compares blocks, handles and pods: each pod has exactly the one address of its status, no address belongs to a
// deleted pod, and each handle counts exactly its addresses.
func (w *World) audit() error {
	all, err := w.allocations()
	if err != nil {
		return err
	}
	counts, err := w.handles()
	if err != nil {
		return err
	}
	pods, err := w.podAddresses()
	if err != nil {
		return err
	}
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	for _, a := range all {
		counts[a.handle+" in "+a.block]--
		if a.pod == "" {
			if a.purpose == "" && !strings.HasPrefix(a.handle, "windows-reserved") {
				bad("%s (handle %s) belongs to nothing", a.address, a.handle)
			}
			continue
		}
		if has, ok := pods[a.pod]; !ok || has != a.address {
			bad("%s is taken for pod %s, which has %v", a.address, a.pod, has)
		} else {
			delete(pods, a.pod)
		}
	}
	for handle, n := range counts {
		if n != 0 {
			bad("handle %s counts %d too many", handle, n)
		}
	}
	for pod, a := range pods {
		bad("no block has %s of pod %s", a, pod)
	}
	return errors.Join(problems...)
}
