package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/manxnet/manx/bgp/wire/message"
)

// countRoutes counts the routes of an UPDATE, and reports whether there are too many now, for which limit.
func (c *conn) countRoutes(f message.Finding) (l Limit, tooMany bool) {
	c.mu.Lock()
	c.announced.Apply(&c.filter, f)
	l = c.limit
	c.mu.Unlock()
	return l, c.recount() == TooMany
}

// recount reports the level of the number of routes, if it has changed. The warning comes before the limit, also when
// both are passed at once.
func (c *conn) recount() Level {
	c.mu.Lock()
	was, l := c.level, c.limit
	c.level = l.level(len(c.announced), was)
	is := c.level
	c.mu.Unlock()
	if was == Normal && is == TooMany {
		c.p.emit(Prefixes{Many, l})
	}
	if was != is && is != TooMany {
		c.p.emit(Prefixes{is, l})
	}
	return is
}

// setLimit applies another limit to the routes that came before.
func (c *conn) setLimit(l Limit) {
	c.mu.Lock()
	same, was := c.limit == l, c.level
	if !same {
		c.limit, c.level = l, Normal
	}
	c.mu.Unlock()
	if same {
		return
	}
	switch is := c.recount(); {
	case is == TooMany:
		c.endWith(c.overLimit(l))
	case is == Normal && was != Normal:
		c.p.emit(Prefixes{is, l})
	}
}

// overLimit is the end of a session with too many routes. Its NOTIFICATION has the family and the limit (RFC 4486
// section 4).
func (c *conn) overLimit(l Limit) Ended {
	afi := byte(bgp.AFI_IP)
	if c.filter.V6 {
		afi = bgp.AFI_IP6
	}
	data := binary.BigEndian.AppendUint32([]byte{0, afi, bgp.SAFI_UNICAST}, uint32(l.Most))
	return Ended{Cause: CauseLimit, Detail: fmt.Sprintf("more than %d prefixes", l.Most),
		Sent: &message.Notification{Code: message.CodeCease, Sub: message.SubPrefixes, Data: data}}
}
