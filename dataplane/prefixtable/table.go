package prefixtable

import (
	"encoding/binary"
	"iter"
	"math/bits"
	"math/rand/v2"
	"net/netip"
)

// Table keeps rows by prefix. A row is known by its number, which it keeps until it is removed; 0 is no row's number.
// R should have no pointers: then the garbage collector passes over the rows. A pointer to a row is valid until that
// row is removed. Not safe for concurrent use.
type Table[R any] struct {
	seed    [3]uint64 // prefixes come from peers, who must not choose those that share a place of the index
	pages   []*page[R]
	index   []uint32 // numbers by hash; a power of two
	marks   []uint8  // for each place of the index a part of the hash, 0 for a free place
	indexed int
	last    uint32   // the highest number in use so far
	free    []uint32 // numbers up to last that are not in use
}

// pageRows is how many rows are allocated at once. Rows never move: a copy of all rows as they grow in number would
// take twice the memory for a moment.
const pageRows = 512

type page[R any] [pageRows]entry[R]

type entry[R any] struct {
	key key
	row R
}

// key is a prefix: its address, big-endian from the first word on, and its length in bits. size is that of the address
// in bytes, 0 for a row that is not in use.
type key struct {
	address [4]uint32
	size    uint8
	bits    uint8
	beside  bool // the row is not in the index
}

func keyOf(p netip.Prefix) (k key) {
	k.bits = uint8(p.Bits())
	a := p.Addr()
	if a.Is4() {
		b := a.As4()
		k.size, k.address[0] = 4, binary.BigEndian.Uint32(b[:])
		return k
	}
	b := a.As16()
	k.size = 16
	for i := range k.address {
		k.address[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	return k
}

func (k *key) prefix() netip.Prefix {
	var b [16]byte
	for i, word := range k.address {
		binary.BigEndian.PutUint32(b[4*i:], word)
	}
	if k.size == 4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:4])), int(k.bits))
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), int(k.bits))
}

// New makes an empty Table.
func New[R any]() *Table[R] {
	return &Table[R]{seed: [3]uint64{rand.Uint64(), rand.Uint64(), rand.Uint64()}}
}

func (t *Table[R]) entry(n uint32) *entry[R] { return &t.pages[n/pageRows][n%pageRows] }

// Row returns the row of a number.
func (t *Table[R]) Row(n uint32) *R { return &t.entry(n).row }

// Prefix returns the prefix of a row.
func (t *Table[R]) Prefix(n uint32) netip.Prefix { return t.entry(n).key.prefix() }

// Len is the number of rows.
func (t *Table[R]) Len() int { return int(t.last) - len(t.free) }

// Find returns the number of the row for a prefix, which must be valid; 0 if there is none.
func (t *Table[R]) Find(p netip.Prefix) uint32 {
	if t.indexed == 0 {
		return 0
	}
	k := keyOf(p)
	i, _ := t.place(&k)
	return t.index[i]
}

// Put returns the number of the row for a prefix, which must be valid, and makes an empty one if there is none.
func (t *Table[R]) Put(p netip.Prefix) uint32 {
	if 4*(t.indexed+1) > 3*len(t.index) {
		t.grow()
	}
	k := keyOf(p)
	i, mark := t.place(&k)
	if n := t.index[i]; n != 0 {
		return n
	}
	n := t.add(k)
	t.index[i], t.marks[i] = n, mark
	t.indexed++
	return n
}

// Beside makes another empty row with the prefix of row n. Find does not find it.
func (t *Table[R]) Beside(n uint32) uint32 {
	k := t.entry(n).key
	k.beside = true
	return t.add(k)
}

func (t *Table[R]) add(k key) uint32 {
	var n uint32
	if f := len(t.free); f > 0 {
		n, t.free = t.free[f-1], t.free[:f-1]
	} else {
		t.last++
		n = t.last
		if int(n/pageRows) == len(t.pages) {
			t.pages = append(t.pages, new(page[R]))
		}
	}
	t.entry(n).key = k
	return n
}

// Remove removes a row. Its number may become another's.
func (t *Table[R]) Remove(n uint32) {
	e := t.entry(n)
	if !e.key.beside {
		i, _ := t.place(&e.key)
		t.unindex(i)
	}
	*e = entry[R]{}
	t.free = append(t.free, n)
	if t.Len() == 0 {
		*t = Table[R]{seed: t.seed} // free the memory of a burst
	}
}

// All returns the numbers of all rows, in no order. Rows may be removed meanwhile; one that is added may be left out.
func (t *Table[R]) All() iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for n := uint32(1); n <= t.last; n++ {
			if t.entry(n).key.size != 0 && !yield(n) {
				return
			}
		}
	}
}

// place returns where k is in the index, or the free place where it belongs, and its mark. It reads the row of a place
// only if the mark is the same: rows in the order of hashes are misses of the processor's caches.
func (t *Table[R]) place(k *key) (i uint32, mark uint8) {
	mask := uint32(len(t.index) - 1)
	i, mark = t.home(k)
	for ; t.marks[i] != 0; i = (i + 1) & mask {
		if t.marks[i] == mark && t.entry(t.index[i]).key == *k {
			break
		}
	}
	return i, mark
}

// home is the first place to search for k, and its mark there.
func (t *Table[R]) home(k *key) (i uint32, mark uint8) {
	left := uint64(k.address[0])<<32 | uint64(k.address[1])
	right := uint64(k.address[2])<<32 | uint64(k.address[3])
	high, low := bits.Mul64(left^t.seed[0], right^t.seed[1])
	high, low = bits.Mul64(high^low, t.seed[2]^(uint64(k.size)<<8|uint64(k.bits)))
	hash := high ^ low
	return uint32(hash) & uint32(len(t.index)-1), uint8(hash>>57) | 0x80
}

// grow makes an index of twice the size. It goes through the rows as they lie in memory, and compares no keys, since
// those in the index differ: in the order of the old index each row would be a miss of the processor's caches.
func (t *Table[R]) grow() {
	t.index = make([]uint32, max(16, 2*len(t.index)))
	t.marks = make([]uint8, len(t.index))
	mask := uint32(len(t.index) - 1)
	for n := uint32(1); n <= t.last; n++ {
		k := &t.entry(n).key
		if k.size == 0 || k.beside {
			continue
		}
		i, mark := t.home(k)
		for t.marks[i] != 0 {
			i = (i + 1) & mask
		}
		t.index[i], t.marks[i] = n, mark
	}
}

// unindex frees a slot of the index. Later entries move up as far as they may: a search ends at a free slot.
func (t *Table[R]) unindex(i uint32) {
	mask := uint32(len(t.index) - 1)
	for j := (i + 1) & mask; t.marks[j] != 0; j = (j + 1) & mask {
		home, _ := t.home(&t.entry(t.index[j]).key)
		if (j-home)&mask >= (j-i)&mask {
			t.index[i], t.marks[i] = t.index[j], t.marks[j]
			i = j
		}
	}
	t.index[i], t.marks[i] = 0, 0
	t.indexed--
}
