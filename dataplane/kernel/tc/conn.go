package tc

import (
	"errors"
	"fmt"
	"net"
	"slices"

	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/kernel"
	"github.com/manxnet/manx/dataplane/kernel/device"
	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// Conn limits bandwidth in a network namespace.
type Conn struct{ kernel *kernel.Conn }

var _ Shapes = (*Conn)(nil)

// New returns a Conn that sends its requests over the connection of k.
func New(k *kernel.Conn) *Conn { return &Conn{k} }

// socket is one of rtnetlink, for token buckets and filters, with the requests about devices.
type socket struct {
	*netlink.Socket
	device device.Handle
}

func (c *Conn) with(f func(socket) error) error {
	return c.kernel.With(func(s *netlink.Socket) error { return f(socket{s, c.kernel.Device()}) })
}

// ListShapes implements Shapes.
func (c *Conn) ListShapes() (map[string]Shape, error) {
	links, err := c.kernel.ListLinks()
	if err != nil {
		return nil, err
	}
	shapes := map[string]Shape{}
	err = c.with(func(s socket) (err error) {
		shapes, err = s.listShapes(links)
		return err
	})
	return shapes, err
}

func (s socket) listShapes(links []kernel.Link) (map[string]Shape, error) {
	qdiscs, err := s.listQdiscs()
	if err != nil {
		return nil, err
	}
	byIndex, shapes := map[int]kernel.Link{}, map[string]Shape{}
	for _, l := range links {
		byIndex[l.Index] = l
		if isRedirectDevice(l) {
			shapes[l.Name] = Shape{}
		}
	}
	for _, q := range qdiscs {
		l := byIndex[q.link]
		if q.kind == "tbf" && q.parent == tcRoot && (isRedirectDevice(l) || q.handle == shapeHandle) {
			shape := shapes[l.Name]
			if !isRedirectDevice(l) || l.Up { // a device that is down passes nothing: it has to be set up again
				shape.TokenBucket = q.bucket
			}
			shapes[l.Name] = shape
		}
	}
	for _, q := range qdiscs {
		if q.kind != "ingress" && q.kind != "clsact" {
			continue
		}
		filters, err := s.listFilters(q.link)
		if err != nil {
			return nil, err
		}
		from := byIndex[q.link].Name
		for _, f := range filters {
			if to := byIndex[f.to]; isRedirectDevice(to) {
				shapes[to.Name] = Shape{From: from, TokenBucket: shapes[to.Name].TokenBucket}
			}
		}
		if slices.ContainsFunc(filters, filter.dead) {
			shapes[RedirectDevice(from)] = Shape{From: from} // incomplete, whatever there is beside it
		}
	}
	return shapes, nil
}

// SetShape implements Shapes.
func (c *Conn) SetShape(device string, shape Shape) error {
	err := c.with(func(s socket) error {
		if shape.From == "" {
			link, err := kernel.LinkNamed(s.Socket, device)
			if err != nil {
				return err
			}
			return s.setBucket(link.Index, shape.TokenBucket)
		}
		return s.setRedirectShape(device, shape)
	})
	if err != nil {
		return fmt.Errorf("limit the bandwidth of %s: %w", shape.Interface(device), err)
	}
	return nil
}

// setRedirectShape limits before it redirects: packets that come in between are not lost.
func (s socket) setRedirectShape(device string, shape Shape) error {
	from, err := kernel.LinkNamed(s.Socket, shape.From)
	if err != nil {
		return err
	}
	through, err := s.ensureRedirectDevice(device, from.MTU)
	if err != nil {
		return err
	}
	if err := s.setBucket(through.Index, shape.TokenBucket); err != nil {
		return err
	}
	if err := s.ensureIngress(from.Index); err != nil {
		return err
	}
	if err := s.removeFilters(from.Index, filter.dead); err != nil {
		return err
	}
	filters, err := s.listFilters(from.Index)
	if err != nil || slices.ContainsFunc(filters, func(f filter) bool { return f.to == through.Index }) {
		return err
	}
	return s.addRedirect(from.Index, through.Index)
}

func (s socket) ensureRedirectDevice(name string, mtu int) (kernel.Link, error) {
	attrs := vnetlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Flags = name, mtu, net.FlagUp
	err := s.device.LinkAdd(&vnetlink.Ifb{LinkAttrs: attrs})
	exists := errors.Is(err, unix.EEXIST)
	if err != nil && !exists {
		return kernel.Link{}, lacking(err, "devices through which received packets can be redirected (module ifb)")
	}
	l, err := kernel.LinkNamed(s.Socket, name)
	if err == nil && !isRedirectDevice(l) {
		err = fmt.Errorf("interface %s is of kind %q, not ifb: remove or rename it", name, l.Kind)
	}
	if err != nil || !exists {
		return l, err
	}
	return l, errors.Join(s.device.LinkSetMTU(device.At(l.Index), mtu), s.device.LinkSetUp(device.At(l.Index)))
}

// RemoveShape implements Shapes.
func (c *Conn) RemoveShape(name string, shape Shape) error {
	err := c.with(func(s socket) error {
		link, err := kernel.LinkNamed(s.Socket, name)
		gone := errors.Is(err, unix.ENODEV)
		switch {
		case err != nil && !gone:
			return err
		case !gone && !isRedirectDevice(link):
			return s.removeBucket(link.Index)
		}
		if err := s.removeRedirects(shape.From, link.Index); err != nil || gone {
			return err
		}
		return s.device.LinkDel(device.At(link.Index))
	})
	if err != nil {
		return fmt.Errorf("end the limit on the bandwidth of %s: %w", shape.Interface(name), err)
	}
	return nil
}

// removeRedirects comes before the device goes: packets that are redirected to nothing are lost.
func (s socket) removeRedirects(from string, to int) error {
	if from == "" {
		return nil
	}
	link, err := kernel.LinkNamed(s.Socket, from)
	if errors.Is(err, unix.ENODEV) {
		return nil // it took its filters along
	}
	if err != nil {
		return err
	}
	ours := func(f filter) bool { return f.dead() || to != 0 && f.to == to }
	if err := s.removeFilters(link.Index, ours); err != nil {
		return err
	}
	if rest, err := s.listFilters(link.Index); err != nil || len(rest) > 0 {
		return err
	}
	return s.removeIngress(link.Index)
}

// removeFilters removes the filters that are ours.
func (s socket) removeFilters(link int, ours func(filter) bool) error {
	filters, err := s.listFilters(link)
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(filters), ours)
	for _, f := range filters {
		if !ours(f) {
			continue
		}
		if !slices.ContainsFunc(others, func(o filter) bool { return o.info == f.info }) {
			f.handle = 0 // with the tables for the filters
		}
		if err := s.removeFilter(link, f); err != nil {
			return err
		}
	}
	return nil
}
