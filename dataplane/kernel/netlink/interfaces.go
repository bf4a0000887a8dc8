package netlink

import (
	"net"
	"sync"
)

// InterfaceNames caches the names of a namespace's interfaces by index, for use with each packet: a lookup for each
// packet would cost more than the packet. It is safe for concurrent use.
type InterfaceNames struct {
	namespace *Namespace
	mu        sync.Mutex
	names     map[uint32]string
}

// NewInterfaceNames returns the names of a namespace.
func NewInterfaceNames(n *Namespace) *InterfaceNames { return &InterfaceNames{namespace: n} }

const mostNames = 4096

// Of returns the name of the interface with an index, as it was at the first call for the index; empty if there was
// none.
func (i *InterfaceNames) Of(index uint32) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if name, ok := i.names[index]; ok {
		return name
	}
	name := ""
	_ = i.namespace.Do(func() error {
		if found, err := net.InterfaceByIndex(int(index)); err == nil {
			name = found.Name
		}
		return nil
	})
	if i.names == nil || len(i.names) >= mostNames {
		i.names = map[uint32]string{}
	}
	i.names[index] = name
	return name
}
