package podnet

import "net/netip"

// InterfaceWith returns the name of the interface of this host that has an address, or that leads to a workload with
// it; empty if there is none. The route to an address behind a gateway is one to another host.
func InterfaceWith(a netip.Addr) (name string, err error) {
	s, err := openRtnetlink()
	if err != nil {
		return "", err
	}
	defer s.close()
	r, err := s.routeTo(a)
	if err != nil || r == nil || r.gateway.IsValid() || r.link == 0 {
		return "", err
	}
	l, err := s.numbered(r.link)
	return l.name, err
}

// HasInterface reports whether this host has an interface of that name.
func HasInterface(name string) (bool, error) {
	s, err := openRtnetlink()
	if err != nil {
		return false, err
	}
	defer s.close()
	_, err = s.named(name)
	if linkMissing(err) {
		return false, nil
	}
	return err == nil, err
}
