package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
)

// Family is an IP version.
type Family int

// The two families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

func (f Family) has(a netip.Addr) bool { return a.Is4() == (f == IPv4) }

// FamilyOf returns the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Request asks for addresses, whichever are free.
type Request struct {
	// Host is the node that uses the addresses: its blocks are used first. For use LoadBalancer it names a virtual
	// owner.
	Host string
	// Handle names the owner for a later release; it may be empty.
	Handle string
	// Attrs are kept with each address, under the names that Calico uses: node, pod, namespace, timestamp, type.
	Attrs map[string]string
	// Num4 and Num6 are how many addresses of each family are wanted.
	Num4, Num6 int
	// Pools4 and Pools6 limit the pools to these, by CIDR; their selectors are then ignored.
	Pools4, Pools6 []netip.Prefix
	// MaxBlocks limits how many blocks the host may have, per family. 0: as configured, or 20.
	MaxBlocks int
	// Use is the purpose, which the pool must allow. It must be given.
	Use v3.IPPoolAllowedUse
	// NamespaceLabels are compared with the pools' namespace selectors; nil counts as no labels.
	NamespaceLabels map[string]string
	Later           Later
}

// Later takes over a write that an assignment leaves to be done after it: the count of the addresses in the handle. Nil
// does it before the block is written, which leaves no address that its handle does not name, whenever the process
// dies. Who sets it has to call write, soon and whatever happens, and to release the addresses if write fails; what a
// dead process left is found by AssignedTo and put right by CountHandle.
type Later func(write func(context.Context) error)

// in is l for a block of the owner, where AssignedTo looks, and nil for a block that was borrowed from.
func (l Later) in(b *model.Block, owner Owner) Later {
	if ownerOf(b) != owner.String() {
		return nil
	}
	return l
}

func (r *Request) pools(f Family) []netip.Prefix {
	if f == IPv4 {
		return r.Pools4
	}
	return r.Pools6
}

func (r *Request) owner() Owner { return ownerFor(r.Host, r.Use) }

func ownerFor(host string, use v3.IPPoolAllowedUse) Owner {
	if use == v3.IPPoolAllowedUseLoadBalancer {
		return Owner{Type: "virtual", Name: host}
	}
	return Host(host)
}

func checkHost(host string) error {
	if host == "" || strings.ContainsAny(host, "/") {
		return fmt.Errorf("host %q: want the name of a node, without \"/\"", host)
	}
	return nil
}

func checkHandle(handle string) error {
	if strings.ContainsAny(handle, "/\r\n") {
		return fmt.Errorf("handle %q: want no \"/\" and no line end", handle)
	}
	return nil
}

func (r *Request) check() error {
	if err := checkHost(r.Host); err != nil {
		return err
	}
	if err := checkHandle(r.Handle); err != nil {
		return err
	}
	if r.Num4 < 0 || r.Num6 < 0 || r.MaxBlocks < 0 {
		return fmt.Errorf("request for %d IPv4 and %d IPv6 addresses out of at most %d blocks: want no negative number",
			r.Num4, r.Num6, r.MaxBlocks)
	}
	switch r.Use {
	case v3.IPPoolAllowedUseWorkload, v3.IPPoolAllowedUseTunnel, v3.IPPoolAllowedUseLoadBalancer:
		return nil
	}
	return fmt.Errorf("use %q: want Workload, Tunnel or LoadBalancer", r.Use)
}

// Result is what became of a Request, for each family. Check both with Short.
type Result struct{ V4, V6 Assigned }

// Assigned is what one family of a request got.
type Assigned struct {
	Family    Family
	Requested int
	// Addresses carry the prefix length of their block.
	Addresses []netip.Prefix
	// Reasons say why there are fewer than requested.
	Reasons []string
}

// Short is nil if all addresses were assigned, and otherwise says what is missing and why.
// The addresses that were assigned stay so until the caller releases them.
func (a Assigned) Short() error {
	if len(a.Addresses) >= a.Requested {
		return nil
	}
	return &ShortError{a}
}

// ShortError tells that fewer addresses were assigned than requested, and why.
type ShortError struct{ Assigned }

func (e *ShortError) Error() string {
	return fmt.Sprintf("%d of %d %s addresses assigned: %s", len(e.Addresses), e.Requested, e.Family,
		strings.Join(e.Reasons, "; "))
}

// Short is nil if both families got what was requested.
func (r Result) Short() error {
	if err := r.V4.Short(); err != nil {
		return err
	}
	return r.V6.Short()
}
