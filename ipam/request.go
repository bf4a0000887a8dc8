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

// Request is a request for any free addresses.
type Request struct {
	// Host is the node that uses the addresses: its blocks are used first. For use LoadBalancer it names a virtual
	// owner.
	Host string
	// Handle identifies the owner for a later release; it may be empty.
	Handle string
	// Attrs are stored with each address, under Calico's names: node, pod, namespace, timestamp, type.
	Attrs map[string]string
	// Num4 and Num6 are the numbers of addresses to assign in each family.
	Num4, Num6 int
	// Pools4 and Pools6 limit the pools to these CIDRs; the selectors of these pools are then ignored.
	Pools4, Pools6 []netip.Prefix
	// MaxBlocks limits the number of blocks of the host per family. 0: as configured, or 20.
	MaxBlocks int
	// Use is the purpose that the pool must allow. It is required.
	Use v3.IPPoolAllowedUse
	// NamespaceLabels are compared with the pools' namespace selectors; nil counts as no labels.
	NamespaceLabels map[string]string
	// InUse reports whether the host has an address in use, whatever the datastore has: a restored datastore lacks what
	// was assigned since. Such an address is not assigned. Nil: none is.
	InUse func(netip.Addr) bool
	Later Later
}

// Later takes over the end of a write that is under way beside the write of the block: the count of the addresses in
// the handle. If nil, the count is written before the block, so that a handle names all its addresses whenever the
// process dies. A caller that sets it must call wait in any case, before it releases the addresses, and must release
// them if wait fails. AssignedTo finds and CountHandle corrects the leftovers of a dead process.
type Later func(wait func(context.Context) error)

// in returns l for a block of the owner, which AssignedTo searches, and nil for a borrowed block.
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

// Result is the result of a Request, for each family. Check both with Short.
type Result struct{ V4, V6 Assigned }

// Assigned is the result of one family of a request.
type Assigned struct {
	Family    Family
	Requested int
	// Addresses carry the prefix length of their block.
	Addresses []netip.Prefix
	// Reasons explain why there are fewer addresses than requested.
	Reasons []string
}

// Short returns nil if all addresses were assigned, and otherwise an error with the number missing and the reasons. The
// assigned addresses stay assigned until the caller releases them.
func (a Assigned) Short() error {
	if len(a.Addresses) >= a.Requested {
		return nil
	}
	return &shortError{a}
}

// shortError reports that fewer addresses were assigned than requested, and why.
type shortError struct{ Assigned }

func (e *shortError) Error() string {
	return fmt.Sprintf("%d of %d %s addresses assigned: %s", len(e.Addresses), e.Requested, e.Family,
		strings.Join(e.Reasons, "; "))
}

// Short returns nil if both families have all requested addresses.
func (r Result) Short() error {
	if err := r.V4.Short(); err != nil {
		return err
	}
	return r.V6.Short()
}
