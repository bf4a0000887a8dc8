package speaker

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/manxnet/manx/bgp/wire/message"
)

// Messages for TestMutatedMessages: valid ones and those of malformedUpdates, changed at random.

// mutator makes the message with a number. The message depends only on the seed and the number.
type mutator struct{ *rand.Rand }

func newMutator(seed, number uint64) mutator { return mutator{rand.New(rand.NewPCG(seed, number))} }

func (m mutator) often(percent int) bool { return m.IntN(100) < percent }

// parts is an UPDATE (RFC 4271 section 4.3) in parts; addPath reports whether its routes have identifiers.
type parts struct {
	withdrawn  []byte
	attributes [][]byte
	nlri       []byte
}

func (p parts) message() []byte { return rawUpdate(p.withdrawn, join(p.attributes...), p.nlri) }

// longAttr has an extended length.
func longAttr(flags, kind byte, value ...byte) []byte {
	b := []byte{flags | 0x10, kind}
	return append(binary.BigEndian.AppendUint16(b, uint16(len(value))), value...)
}

// someAttributes are valid attributes; a message gets each with some probability, the first three nearly always.
func someAttributes() [][]byte {
	as4 := []byte{2, 2, 0, 0, 0xfd, 0xe7, 0, 1, 0, 0}
	v6 := join(slices.Repeat([]byte{0xfd}, 16), []byte{0}, []byte{64, 0xfd, 0, 0, 1, 0, 0, 0, 0}, []byte{128},
		slices.Repeat([]byte{0xfd}, 16))
	return [][]byte{
		attr(0x40, 1, 0), attr(0x40, 2, as4...), attr(0x40, 3, 10, 0, 0, 2),
		attr(0x80, 4, 0, 0, 0, 7), attr(0x40, 5, 0, 0, 0, 100), attr(0x40, 6),
		attr(0xc0, 7, 0, 0, 0xfd, 0xe7, 10, 0, 0, 9), // AGGREGATOR with four octets (RFC 6793)
		attr(0xc0, 8, 0xfd, 0xe8, 0, 1, 0xff, 0xff, 0xff, 1), attr(0x80, 9, 10, 9, 9, 9),
		attr(0x80, 10, 10, 9, 9, 8, 10, 9, 9, 7),
		attr(0x80, 14, join([]byte{0, 2, 1, 16}, v6)...),
		attr(0x80, 14, join([]byte{0, 2, 1, 32}, slices.Repeat([]byte{0xfe}, 16), v6)...),
		attr(0x80, 14, 0, 1, 1, 4, 10, 0, 0, 2, 0, 24, 10, 77, 1),
		attr(0x80, 15, 0, 2, 1, 64, 0xfd, 0, 0, 1, 0, 0, 0, 0), attr(0x80, 15, 0, 1, 1, 24, 10, 77, 1),
		attr(0xc0, 16, 0, 2, 0xfd, 0xe8, 0, 0, 0, 1), attr(0xc0, 17, as4...),
		attr(0xc0, 18, 0, 0, 0xfd, 0xe7, 10, 0, 0, 9),
		attr(0xc0, 32, 0, 0, 0xfd, 0xe8, 0, 0, 0, 1, 0, 0, 0, 2), attr(0xc0, 35, 0, 0, 0, 5),
		attr(0x80, 26, 1, 0, 11, 0, 0, 0, 0, 0, 0, 0, 9),
		attr(0xc0, 40, 1, 0, 7, 0, 0, 0, 0, 0, 0, 9), attr(0xe0, 201, 1, 2, 3), longAttr(0xc0, 8, 0xfd, 0xe8, 0, 2),
		longAttr(0xe0, 202, make([]byte, 300)...),
		attr(0x40, 2, 1, 3, 0, 0, 0xfd, 0xe7, 0, 0, 0, 5, 0, 0, 0, 6, 2, 1, 0, 0, 0, 7), attr(0x40, 2),
		attr(0x80, 14, 0, 25, 70, 4, 10, 0, 0, 2, 0, 3, 17, 0, 1, 10, 0, 0, 9, 0, 1, 0, 0, 0, 0, 32, 10, 0, 0,
			2), // EVPN, which was not negotiated
		attr(0x80, 14, 0, 1, 133, 0, 0, 5, 1, 24, 10, 77, 2),
		attr(0x80, 14, 0, 1, 128, 12, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2, 0, 112, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 2,
			10, 77, 3),
	}
}

// update makes a valid, or nearly valid, UPDATE.
func (m mutator) update(d dialect) parts {
	var p parts
	for i, a := range someAttributes() {
		if i < 3 && m.often(97) || i >= 3 && m.often(15) {
			p.attributes = append(p.attributes, a)
		}
	}
	if d.six && m.often(90) {
		p.attributes = append(p.attributes, mpReach(m.routes(d, m.IntN(6))))
		if m.often(30) {
			p.attributes = append(p.attributes, longAttr(0x80, 15, join([]byte{0, 2, 1}, m.routes(d, m.IntN(3)))...))
		}
		return p
	}
	p.nlri, p.withdrawn = m.routes(d, m.IntN(6)), m.routes(d, m.IntN(3))
	return p
}

func (m mutator) routes(d dialect, n int) (list []byte) {
	for range n {
		if d.addPath {
			list = binary.BigEndian.AppendUint32(list, m.Uint32N(4))
		}
		bits, start := m.IntN(33), []byte{10, byte(60 + m.IntN(9)), byte(m.IntN(4)), byte(m.IntN(256))}
		if d.six {
			bits = m.IntN(129)
			start = join([]byte{0xfd, byte(m.IntN(2)), byte(m.IntN(4))}, make([]byte, 12), start[3:])
		}
		list = append(append(list, byte(bits)), start[:(bits+7)/8]...)
	}
	return list
}

// long makes a valid UPDATE that leaves little or no room in a message, or is too long for one.
func (m mutator) long(d dialect) []byte {
	known := fillings()
	length := []int{4096 - m.IntN(30), 3500 + m.IntN(597), 2500 + m.IntN(1500), 4097 + m.IntN(61439)}[m.IntN(4)]
	routes := m.routes(d, 1)
	if m.often(40) {
		routes = append(routes, m.routes(d, m.IntN(20))...)
	}
	return d.longUpdate(length, known[m.IntN(len(known))], routes)
}

// outOfPlace makes a message that an established session has no use for.
func (m mutator) outOfPlace(d dialect) []byte {
	family := []byte{0, []byte{1, 2, 25, 99}[m.IntN(4)], []byte{1, 2, 4, 70, 128, 133}[m.IntN(6)]}
	switch m.IntN(6) {
	case 0: // ROUTE-REFRESH, of IPv4 and IPv6 too
		return message.New(5, 0, family[1], byte(m.IntN(3)), family[2])
	case 1: // End-of-RIB
		return rawUpdate(nil, attr(0x80, 15, family...), nil)
	case 2:
		d.six = !d.six
		return d.shortUpdate(m.routes(d, 1+m.IntN(3)))
	case 3:
		return m.open(d, 9)
	case 4:
		return message.New(4, make([]byte, 1+m.IntN(9))...)
	}
	return message.New(3, slices.Repeat([]byte{byte(1 + m.IntN(8))}, m.IntN(4))...)
}

// breakParts changes the structure of an UPDATE, with correct lengths.
func (m mutator) breakParts(p parts) parts {
	if len(p.attributes) == 0 {
		return p
	}
	i, j := m.IntN(len(p.attributes)), m.IntN(len(p.attributes))
	if len(p.attributes[i]) < 3 || len(p.attributes[j]) < 3 { // cut off before
		return p
	}
	pool := someAttributes()
	switch m.IntN(9) {
	case 0: // twice
		p.attributes = append(p.attributes, p.attributes[i])
	case 1: // in another order
		p.attributes[i], p.attributes[j] = p.attributes[j], p.attributes[i]
	case 2: // one that was not there
		p.attributes = slices.Insert(p.attributes, i, pool[m.IntN(len(pool))])
	case 3: // one less
		p.attributes = slices.Delete(p.attributes, i, i+1)
	case 4: // the head of one, the value of another
		a, b := slices.Clone(p.attributes[i]), p.attributes[j]
		p.attributes[i] = append(a[:2], b[2:]...)
	case 5: // other flags
		a := slices.Clone(p.attributes[i])
		a[0] ^= 1 << (4 + m.IntN(4))
		p.attributes[i] = a
	case 6: // another length of the attribute
		a := slices.Clone(p.attributes[i])
		a[2] = []byte{0, 1, a[2] + 1, a[2] - 1, 255, byte(m.IntN(256))}[m.IntN(6)]
		p.attributes[i] = a
	case 7: // a shorter or longer value
		a := p.attributes[i]
		p.attributes[i] = slices.Concat(a[:m.IntN(len(a)+1)], make([]byte, m.IntN(5)))
	case 8: // a prefix that is too long or cut off
		p.nlri = append(p.nlri, byte(m.IntN(256)), byte(m.IntN(256)))
	}
	return p
}

// breakBytes changes a message without regard for its structure.
func (m mutator) breakBytes(b []byte) []byte {
	b = slices.Clone(b)
	at := func(from int) int { return from + m.IntN(max(1, len(b)-from)) }
	switch m.IntN(8) {
	case 0, 1: // some bits
		for range 1 + m.IntN(8) {
			b[min(at(16), len(b)-1)] ^= 1 << m.IntN(8)
		}
	case 2: // one byte
		b[min(at(19), len(b)-1)] = []byte{0, 1, 127, 128, 254, 255}[m.IntN(6)]
	case 3: // the length in the header
		binary.BigEndian.PutUint16(b[16:], uint16([]int{0, 18, 19, len(b) - 1, len(b) + 1, 4096, 4097, 65535,
			m.IntN(65536)}[m.IntN(9)]))
	case 4: // a length inside
		if i := at(19); i+1 < len(b) {
			binary.BigEndian.PutUint16(b[i:], uint16([]int{0, 1, 0xff, 0xffff, len(b), m.IntN(65536)}[m.IntN(6)]))
		}
	case 5: // cut off, and the header agrees
		b = b[:max(19, at(19))]
		binary.BigEndian.PutUint16(b[16:], uint16(len(b)))
	case 6: // cut off, and the header does not
		b = b[:max(1, at(1))]
	case 7: // more bytes, and the header agrees
		more := make([]byte, 1+m.IntN(20))
		for i := range more {
			more[i] = byte(m.IntN(256))
		}
		b = slices.Insert(b, at(19), more...)
		binary.BigEndian.PutUint16(b[16:], uint16(len(b)))
	}
	return b
}

// established makes a message for an established session.
func (m mutator) established(d dialect) []byte {
	var b []byte
	switch known := malformedUpdates(); m.IntN(14) {
	case 0: // ROUTE-REFRESH (RFC 2918, RFC 7313)
		b = message.New(5, 0, byte(1+m.IntN(2)), byte(m.IntN(3)), 1)
	case 1:
		b = known[m.IntN(len(known))].bytes
	case 2, 3:
		b = m.long(d)
	case 4:
		b = m.outOfPlace(d)
	default:
		p := m.update(d)
		for range m.IntN(4) {
			p = m.breakParts(p)
		}
		b = p.message()
	}
	if m.often(40) && len(b) > 19 {
		b = m.breakBytes(b)
	}
	return b
}

// open makes a valid OPEN with some capabilities (RFC 5492).
func (m mutator) open(d dialect, id byte) []byte {
	as := uint16(d.as)
	capabilities := [][]byte{
		{1, 4, 0, 1, 0, 1}, {1, 4, 0, 2, 0, 1}, {2, 0}, {5, 6, 0, 1, 0, 1, 0, 2}, {6, 0},
		{64, 6, 0x40, 120, 0, 1, 1, 0x80}, {65, 4, 0, 0, byte(as >> 8), byte(as)},
		{69, 4, 0, 1, 1, 3}, {70, 0}, {71, 7, 0, 1, 1, 0x80, 0, 0, 9}, {73, 4, 1, 'a', 1, 'b'}, {75, 3, 2, 'v', '1'},
		{200, 2, 1, 2},
	}
	if d.six {
		capabilities[0], capabilities[1] = capabilities[1], capabilities[0]
	}
	extended := m.often(20) // RFC 9072
	var options []byte
	for i, c := range capabilities {
		if i < 1 || m.often(40) {
			head := []byte{2, byte(len(c))}
			if extended {
				head = []byte{2, 0, byte(len(c))}
			}
			options = append(options, join(head, c)...)
		}
	}
	length := []byte{byte(len(options))}
	if extended {
		length = []byte{255, 255, 0, byte(len(options))}
	}
	hold := uint16([]int{0, 3, 90, 240, 65535}[m.IntN(5)])
	return message.New(1, join([]byte{4, byte(as >> 8), byte(as), byte(hold >> 8), byte(hold), 10, 99, 8, id}, length,
		options)...)
}

// opening makes the first messages of a peer, which are not what they should be.
func (m mutator) opening(d dialect, id byte) []byte {
	switch known := malformedOpens(uint16(d.as)); m.IntN(5) {
	case 0:
		return known[m.IntN(len(known))].bytes
	case 1: // one that does not belong there, before or after the OPEN
		parts := [][]byte{m.outOfPlace(d), m.open(d, id)}
		m.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		return join(parts...)
	}
	b := m.open(d, id)
	for range 1 + m.IntN(3) {
		if len(b) > 19 {
			b = m.breakBytes(b)
		}
	}
	return b
}

// A message that caused a failure can be made again.
func TestMutatorsRepeat(t *testing.T) {
	seen := map[string]bool{}
	for n := range uint64(2_000) {
		d := dialect{as: 64512 + uint32(n%3), addPath: n%2 == 0, six: n%5 == 0}
		a := newMutator(7, n).established(d)
		if !bytes.Equal(a, newMutator(7, n).established(d)) {
			t.Fatalf("message %d is another one the second time", n)
		}
		seen[string(a)] = true
		newMutator(7, n).opening(d, 9)
	}
	if len(seen) < 1_500 {
		t.Errorf("only %d of 2000 messages differ", len(seen))
	}
}
