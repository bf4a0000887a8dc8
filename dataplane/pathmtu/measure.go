package pathmtu

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// steps are sizes that networks have in practice: the least of IPv6, tunnels, Ethernet, and jumbo frames with and
// without an overlay.
var steps = []int{1280, 1400, 1450, 1500, 8950, 9000}

// attempts is how often a size is tried before it counts as lost.
const attempts = 3

// measure returns the largest of the steps and of limit, the size that the links and routes of this host take, for
// which ask reports an answer. One size is lost only if a smaller one is answered before and after it: a host that does
// not answer says nothing. The error is why it is not known.
func measure(limit int, ask func(size int) (bool, error)) (int, error) {
	sizes := append(slices.DeleteFunc(slices.Clone(steps), func(s int) bool { return s >= limit }), limit)
	answered := func(size int) (ok bool, err error) {
		for n := 0; n < attempts && !ok && err == nil; n++ {
			ok, err = ask(size)
		}
		return ok, err
	}
	for _, size := range []int{limit, sizes[0]} {
		ok, err := answered(size)
		switch {
		case err != nil:
			return 0, err
		case ok && size == limit:
			return limit, nil
		case !ok && size == sizes[0]:
			return 0, fmt.Errorf("it answers no ICMP echo request of %d bytes", size)
		}
	}
	low, high := 0, len(sizes)-1
	for high-low > 1 {
		middle := (low + high) / 2
		ok, err := answered(sizes[middle])
		switch {
		case err != nil:
			return 0, err
		case ok:
			low = middle
		default:
			high = middle
		}
	}
	if ok, err := answered(sizes[high]); ok || err != nil { // it was lost for another reason
		return 0, first(err, fmt.Errorf("some ICMP echo requests of %d bytes are answered and some are not",
			sizes[high]))
	}
	if ok, err := answered(sizes[low]); !ok {
		return 0, first(err, errors.New("it answers ICMP echo requests no more"))
	}
	return sizes[low], nil
}

func first(errs ...error) error { return cmp.Or(errs...) }
