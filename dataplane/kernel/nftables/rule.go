package nftables

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// encodeRule appends the expressions of a rule to a message.
func encodeRule(b *netlink.Builder, r ruleset.Rule) error {
	if r.Log.Rate > 0 && (r.Mark.Mask != 0 || r.DSCP.Set || r.NoTrack || r.Verdict.Action != ruleset.Continue) {
		return fmt.Errorf("it logs %d packets at a time at most, and would do nothing else to the others: a rule of "+
			"its own must", r.Log.Rate)
	}
	e := encoder{out: b}
	for _, m := range r.Matches {
		if err := e.match(m); err != nil {
			return err
		}
	}
	e.limit(r.Over)
	if r.Counter {
		e.add(&expr.Counter{})
	}
	if r.CountedBy != "" {
		e.add(&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: r.CountedBy})
	}
	e.log(r.Log)
	e.mark(r.Mark)
	if err := e.dscp(r.DSCP); err != nil {
		return err
	}
	if r.NoTrack {
		e.add(&expr.Notrack{})
	}
	if r.ClampMSS {
		e.clampMSS()
	}
	if err := e.verdict(r.Verdict); err != nil {
		return err
	}
	return e.err
}

// encoder appends the expressions of one rule. It derives the offsets of addresses from the matches so far.
type encoder struct {
	out      *netlink.Builder
	err      error
	family   uint32 // 4, 6, or 0 for not known
	hasPorts bool
}

// Registers that expressions hand values over in; each has 16 bytes.
const (
	reg1 uint32 = unix.NFT_REG_1
	reg2 uint32 = unix.NFT_REG_2
	reg3 uint32 = unix.NFT_REG_3
)

func (e *encoder) add(expressions ...expr.Any) {
	for _, x := range expressions {
		data, err := expr.Marshal(unix.NFPROTO_INET, x)
		if err != nil && e.err == nil {
			e.err = fmt.Errorf("encode %T: %w", x, err)
		}
		e.out.Attr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, data)
	}
}

func (e *encoder) limit(l ruleset.Limit) {
	if l.Packets > 0 {
		e.add(&expr.Limit{Type: expr.LimitTypePkts, Rate: l.Packets, Unit: expr.LimitTimeSecond, Burst: l.Burst,
			Over: true})
	}
	if l.Bytes > 0 {
		e.add(&expr.Limit{Type: expr.LimitTypePktBytes, Rate: uint64(l.Bytes), Unit: expr.LimitTimeSecond,
			Burst: l.Bytes, Over: true})
	}
	if l.Connections > 0 {
		e.add(&expr.Connlimit{Count: l.Connections, Flags: expr.NFT_CONNLIMIT_F_INV})
	}
}

// Bytes of a packet that are logged: the headers of IP and the transport with some options. The kernel takes prefixes
// of 127 bytes.
const (
	logBytes  = 128
	logPrefix = 127
)

func (e *encoder) log(l ruleset.Log) {
	if !l.Enabled() {
		return
	}
	if l.Rate > 0 {
		e.add(&expr.Limit{Type: expr.LimitTypePkts, Rate: l.Rate, Unit: expr.LimitTime(max(1, l.Per)), Burst: l.Burst})
	}
	if l.Kernel != "" {
		e.add(logAs(l.Kernel))
	}
	if l.Group != 0 {
		x := logAs(l.Prefix)
		x.Key |= 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN
		x.Group, x.Snaplen = l.Group, logBytes
		e.add(x)
	}
}

func logAs(prefix string) *expr.Log {
	x := &expr.Log{}
	if prefix != "" {
		x.Key |= 1 << unix.NFTA_LOG_PREFIX
		x.Data = []byte(prefix[:min(len(prefix), logPrefix)])
	}
	return x
}

func (e *encoder) mark(m ruleset.Mark) {
	if m.Mask == 0 {
		return
	}
	if m.Mask == ^uint32(0) {
		e.add(&expr.Immediate{Register: reg1, Data: host32(m.Value)})
	} else {
		e.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
			&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: host32(^m.Mask),
				Xor: host32(m.Value & m.Mask)})
	}
	e.add(&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg1})
}

// dscp writes the first 16 bits of the header, as nft does: in IPv4 the DSCP is the upper part of the second byte, in
// IPv6 it is across both. Only IPv4 has a checksum of its header, and no checksum of a transport is about these bits.
func (e *encoder) dscp(d ruleset.DSCP) error {
	if !d.Set {
		return nil
	}
	if d.Value > 63 {
		return fmt.Errorf("the DSCP %d has more than 6 bits", d.Value)
	}
	write := &expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: reg1,
		Base: expr.PayloadBaseNetworkHeader, Len: 2}
	var shift int
	switch e.family {
	case 4:
		shift, write.CsumType, write.CsumOffset = 2, expr.CsumTypeInet, 10
	case 6:
		shift = 6
	default:
		return fmt.Errorf("it sets the DSCP without a family before")
	}
	e.add(&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Len: 2},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 2, Mask: bigEndian(^(63 << shift)),
			Xor: bigEndian(uint16(d.Value) << shift)}, write)
	return nil
}

// clampMSS changes packets with SYN and without RST. The kernel itself never raises the option.
func (e *encoder) clampMSS() {
	const (
		flags, syn, rst   = 13, 2, 4 // in TCP's header
		kind, value, size = 2, 2, 2  // of the option, and where its value is
	)
	e.add(&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{syn | rst}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{syn}},
		&expr.Rt{Register: reg1, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: reg1, DestRegister: reg1, Op: expr.ByteorderHton, Len: size, Size: size},
		&expr.Exthdr{SourceRegister: reg1, Type: kind, Offset: value, Len: size, Op: expr.ExthdrOpTcpopt})
}

func host32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

var plainVerdicts = map[ruleset.Action]expr.VerdictKind{
	ruleset.Accept: expr.VerdictAccept, ruleset.Drop: expr.VerdictDrop, ruleset.Return: expr.VerdictReturn,
	ruleset.Jump: expr.VerdictJump, ruleset.Goto: expr.VerdictGoto,
}

func (e *encoder) verdict(v ruleset.Verdict) error {
	if kind, ok := plainVerdicts[v.Action]; ok {
		e.add(&expr.Verdict{Kind: kind, Chain: v.Chain})
		return nil
	}
	switch v.Action {
	case ruleset.Continue:
	case ruleset.Reject:
		e.add(&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH})
	case ruleset.RejectTCP:
		e.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
	case ruleset.Lookup:
		key := expr.MetaKeyIIFNAME
		if v.Out {
			key = expr.MetaKeyOIFNAME
		}
		e.add(&expr.Meta{Key: key, Register: reg1},
			&expr.Lookup{SourceRegister: reg1, SetName: v.Map, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true})
	case ruleset.Masquerade:
		e.masquerade(v)
	case ruleset.SNAT, ruleset.KeepSource, ruleset.DNAT:
		return e.translate(v)
	default:
		return fmt.Errorf("action %d is unknown", v.Action)
	}
	return nil
}

// ports loads the bounds of source ports into registers 2 and 3 and reports whether there are any.
func (e *encoder) ports(v ruleset.Verdict) bool {
	if v.Low == 0 && v.High == 0 {
		return false
	}
	e.add(&expr.Immediate{Register: reg2, Data: bigEndian(v.Low)},
		&expr.Immediate{Register: reg3, Data: bigEndian(max(v.Low, v.High))})
	return true
}

// masquerade is written here since google/nftables leaves flags out if there are ports.
func (e *encoder) masquerade(v ruleset.Verdict) {
	ports := e.ports(v)
	b := e.out
	element := b.NestFlagged(unix.NFTA_LIST_ELEM)
	b.AttrText(unix.NFTA_EXPR_NAME, "masq")
	data := b.NestFlagged(unix.NFTA_EXPR_DATA)
	var flags uint32
	if v.Random {
		flags |= unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY
	}
	if ports { // without the flag the kernel takes the range and does not heed it
		flags |= unix.NF_NAT_RANGE_PROTO_SPECIFIED
	}
	if flags != 0 {
		b.AttrBig32(unix.NFTA_MASQ_FLAGS, flags)
	}
	if ports {
		b.AttrBig32(unix.NFTA_MASQ_REG_PROTO_MIN, reg2)
		b.AttrBig32(unix.NFTA_MASQ_REG_PROTO_MAX, reg3)
	}
	b.EndNest(data)
	b.EndNest(element)
}

func (e *encoder) translate(v ruleset.Verdict) error {
	if !v.Address.IsValid() {
		return fmt.Errorf("it translates to no address")
	}
	x := &expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg1, FullyRandom: v.Random}
	if v.Action == ruleset.DNAT {
		x.Type = expr.NATTypeDestNAT
	}
	family := uint32(4)
	if v.Address.Is6() {
		x.Family, family = unix.NFPROTO_IPV6, 6
	}
	if err := e.needFamily(family); err != nil {
		return err
	}
	if e.ports(v) {
		x.RegProtoMin, x.RegProtoMax = reg2, reg3
		x.Specified = true
	}
	if v.Action == ruleset.KeepSource { // translated to itself: the kernel decides once for each connection
		e.loadAddress(sourceAt, e.addressBytes())
	} else {
		e.add(&expr.Immediate{Register: reg1, Data: v.Address.AsSlice()})
	}
	e.add(x)
	return nil
}
