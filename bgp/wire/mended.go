package wire

import (
	"time"

	"github.com/manxnet/manx/bgp/wire/message"
)

// mendEvery bounds the events about changed UPDATEs.
const mendEvery = time.Second

// mendReport is about changed UPDATEs of one kind.
type mendReport struct {
	last     Mended
	waiting  bool // an event was sent a moment ago
	reported int  // the count in it
}

// report passes on that an UPDATE was changed, at most once a second for each kind, the last of a burst included.
func (c *conn) report(m message.Mend) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.mended[m.Kind]
	if r == nil {
		r = &mendReport{}
		c.mended[m.Kind] = r
	}
	r.last = Mended{m, r.last.Count + 1, time.Now()}
	if !r.waiting {
		c.passOn(r)
	}
}

// passOn sends the event of a report, and another one later if there is more to say then. c is locked.
func (c *conn) passOn(r *mendReport) {
	r.waiting, r.reported = true, r.last.Count
	c.p.emit(r.last)
	time.AfterFunc(mendEvery, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.waiting = false; c.ended == nil && r.last.Count > r.reported {
			c.passOn(r)
		}
	})
}
