package sysctl

import (
	"errors"
	"io/fs"
	"strconv"

	"github.com/manxnet/manx/dataplane/kernel"
)

// Reassembly is the room that a host needs at least for packets of which not all fragments have come, so that one
// workload's fragments leave room for those of others. 0 leaves a setting as it is.
type Reassembly struct {
	Memory int // bytes for each family; more is left as it is
	Time   int // seconds until incomplete packets are dropped; less is left as it is
}

// The kernel puts the fragments of forwarded packets together for connection tracking: those of IPv4 with the host's
// own, those of IPv6 apart from them, where the variables exist once the module is loaded.
var (
	reassemblyMemory = []string{"net/ipv4/ipfrag_high_thresh", "net/netfilter/nf_conntrack_frag6_high_thresh"}
	reassemblyTime   = []string{"net/ipv4/ipfrag_time", "net/netfilter/nf_conntrack_frag6_timeout"}
)

// settings returns the variables that exist with their values, the present ones where those are within the bounds.
func (r Reassembly) settings(k kernel.Sysctls) map[key]string {
	want := map[key]string{}
	add := func(names []string, bound int, choose func(a, b int) int) {
		for _, name := range names {
			text, err := k.Sysctl(name)
			if bound == 0 || errors.Is(err, fs.ErrNotExist) {
				continue
			}
			value := bound
			if now, err := strconv.Atoi(text); err == nil {
				value = choose(now, bound)
			}
			want[key{Name: name}] = strconv.Itoa(value)
		}
	}
	add(reassemblyMemory, r.Memory, func(now, least int) int { return max(now, least) })
	add(reassemblyTime, r.Time, func(now, most int) int { return min(now, most) })
	return want
}
