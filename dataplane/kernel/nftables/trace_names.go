package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// chainNames caches the chains that packets came to, of any table. A chain is read at its first packet, and again at an
// unknown rule: handles of rules are never used twice.
type chainNames struct {
	sock   *netlink.Socket
	chains map[chainKey]*chainInfo
}

type chainKey struct {
	family       uint8
	table, chain string
}

type chainInfo struct {
	base  *TracedBase // nil: no base chain
	rules map[uint64]TracedRule
}

// chain returns the cached data of a chain, and of the rule with a handle in it, if that is not 0. A chain that cannot
// be read, since it has just gone, has neither base nor rules.
func (n *chainNames) chain(family uint8, table, chain string, handle uint64) *chainInfo {
	key := chainKey{family, table, chain}
	info, ok := n.chains[key]
	if ok {
		if _, known := info.rules[handle]; known || handle == 0 {
			return info
		}
	}
	info = &chainInfo{rules: map[uint64]TracedRule{}}
	n.readBase(key, info)
	n.readRules(key, info)
	if handle != 0 {
		if _, found := info.rules[handle]; !found {
			info.rules[handle] = TracedRule{Handle: handle} // gone: do not query again
		}
	}
	if n.chains == nil {
		n.chains = map[chainKey]*chainInfo{}
	}
	n.chains[key] = info
	return info
}

func (k chainKey) about(b *netlink.Builder, table, chain uint16) {
	b.Buf = append(b.Buf, k.family, unix.NFNETLINK_V0, 0, 0)
	k.attributes(b, table, chain)
}

func (k chainKey) attributes(b *netlink.Builder, table, chain uint16) {
	b.AttrText(table, k.table)
	b.AttrText(chain, k.chain)
}

func (n *chainNames) readBase(key chainKey, info *chainInfo) {
	// An error leaves the base unknown.
	_ = n.sock.Query(nftKind(unix.NFT_MSG_GETCHAIN), 0,
		func(b *netlink.Builder) { key.about(b, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME) },
		func(m netlink.Message) {
			if len(m.Data) < 4 {
				return
			}
			l := attrList(m.Data[4:])
			if hook, ok := l[unix.NFTA_CHAIN_HOOK]; ok {
				h := attrList(hook)
				info.base = &TracedBase{Hook: hookName(key.family, h.number(unix.NFTA_HOOK_HOOKNUM)),
					Priority: int32(h.number(unix.NFTA_HOOK_PRIORITY)), Type: text(l[unix.NFTA_CHAIN_TYPE])}
			}
		})
}

// hookName: the hooks of devices are counted apart.
func hookName(family uint8, n uint32) string {
	const devices = 5 // the first beyond those of IP, in the inet family
	switch {
	case family == unix.NFPROTO_NETDEV && n == 1:
		return "egress"
	case family == unix.NFPROTO_NETDEV, n == devices:
		return "ingress"
	}
	return (ruleset.Hook(n) + ruleset.Prerouting).String()
}

func (n *chainNames) readRules(key chainKey, info *chainInfo) {
	// An error leaves the rules unknown.
	_ = n.sock.Dump(nftKind(unix.NFT_MSG_GETRULE), func() { clear(info.rules) },
		func(b *netlink.Builder) { key.about(b, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN) }, func(m netlink.Message) {
			if len(m.Data) < 4 {
				return
			}
			l := attrList(m.Data[4:])
			if text(l[unix.NFTA_RULE_TABLE]) != key.table || text(l[unix.NFTA_RULE_CHAIN]) != key.chain ||
				len(l[unix.NFTA_RULE_HANDLE]) != 8 {
				return
			}
			r := TracedRule{Handle: binary.BigEndian.Uint64(l[unix.NFTA_RULE_HANDLE]), Number: len(info.rules) + 1}
			if r.Comment = commentOf(l[unix.NFTA_RULE_USERDATA]); r.Comment == "" {
				r.Comment = iptablesComment(l[unix.NFTA_RULE_EXPRESSIONS])
			}
			if key.table == TableName && key.family == unix.NFPROTO_INET {
				r.Comment, r.ID = splitComment(r.Comment)
			}
			info.rules[r.Handle] = r
		})
}

// iptablesComment is the text of iptables' match "comment", which has no other function.
func iptablesComment(expressions []byte) string {
	for _, element := range netlink.Attrs(expressions) {
		x := attrList(element)
		if text(x[unix.NFTA_EXPR_NAME]) != "match" {
			continue
		}
		if match := attrList(x[unix.NFTA_EXPR_DATA]); text(match[unix.NFTA_MATCH_NAME]) == "comment" {
			return text(match[unix.NFTA_MATCH_INFO])
		}
	}
	return ""
}
