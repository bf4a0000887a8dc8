package kernel

import "context"

// Routes reads and changes the routing tables of IPv4 and IPv6.
type Routes interface {
	// ListRoutes returns every route of these tables, of main if none is named. Each is to be named once.
	ListRoutes(tables ...Table) ([]Route, error)
	// ApplyRoutes does all of ops in order and as far as possible. The result is nil when all went well; otherwise it
	// has one entry for each op.
	ApplyRoutes(ops []RouteOp) []error
}

// Links reads and changes interfaces and their addresses.
type Links interface {
	ListLinks() ([]Link, error)
	ListAddresses() ([]Address, error)
	// EnsureDevice makes sure that the device exists with its parameters. An error has a NoKindError if the kernel has
	// no such devices, and a VNITakenError for a VXLAN device whose VNI another one has.
	EnsureDevice(Device) (Link, error)
	// DeleteLink deletes an interface, with its routes and entries. It succeeds if there is none.
	DeleteLink(link int) error
	SetMTU(link int, mtu int) error
	SetUp(link int) error
	// TxChecksum reports whether a device leaves the checksums of the packets that it sends to the hardware, and
	// SetTxChecksum has it do so or not. Its segmentation offload goes and comes with that.
	TxChecksum(device string) (on bool, err error)
	SetTxChecksum(device string, on bool) error
	// AddAddress and DeleteAddress succeed if there is nothing to do.
	AddAddress(Address) error
	DeleteAddress(Address) error
}

// Sysctls reads and writes variables of the network, named with slashes ("net/ipv4/ip_forward"), because interface
// names may have dots.
type Sysctls interface {
	// Sysctl returns the value without the final newline. An error Is fs.ErrNotExist if there is no such variable.
	Sysctl(name string) (string, error)
	SetSysctl(name, value string) error
}

// watcher reports changes that others make.
type watcher interface {
	// Watch calls handle with batches of events until ctx ends, from one goroutine. The first event is EventResync, as
	// is one that follows a loss of events: read everything again. Routes are reported of these tables, of main if none
	// is named, without those that this connection changes.
	Watch(ctx context.Context, handle func([]Event), tables ...Table) error
}

// Kernel is all of it. *Conn is the real one, *kerneltest.Kernel the one for tests.
type Kernel interface {
	Routes
	Links
	Sysctls
	Neighbours
	ProxyNeighbours
	VXLANEntries
	Rules
	watcher
}

// EventType is the kind of an Event.
type EventType uint8

const (
	// EventResync: anything may have changed.
	EventResync EventType = iota + 1
	EventRoute
	EventRouteGone
	EventLink
	EventLinkGone
	EventAddress
	EventAddressGone
)

// Event is one change; the field that belongs to the type is set.
type Event struct {
	Type    EventType
	Route   Route
	Link    Link
	Address Address
}

// AboutOthers reports whether interfaces, their addresses or routes of other programs may have changed.
func (e Event) AboutOthers() bool {
	return e.AboutLinks() || e.Route.Protocol != ProtocolBIRD && e.Route.Protocol != ProtocolCalico
}

// AboutLinks reports whether interfaces or their addresses may have changed.
func (e Event) AboutLinks() bool { return e.Type != EventRoute && e.Type != EventRouteGone }
