package kernel

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"
)

// connlimitOver makes a limit of connections match above it.
const connlimitOver = 1

// register is where values are loaded and compared. Concatenations go on in the 4-byte registers after it.
const register = 1

// encodeRule translates a rule. An error names what cannot be translated.
func encodeRule(r *ruleset.Rule) ([]expr.Any, error) {
	var out []expr.Any
	family := uint32(0)
	for i := range r.Matches {
		m := &r.Matches[i]
		if m.Field == ruleset.Family && !m.Not {
			family = m.Low
		}
		list, err := encodeMatch(m, family)
		if err != nil {
			return nil, fmt.Errorf("rule %q: %w", r.Comment, err)
		}
		out = append(out, list...)
	}
	if r.Over.Packets > 0 {
		out = append(out, &expr.Limit{Type: expr.LimitTypePkts, Rate: r.Over.Packets, Unit: expr.LimitTimeSecond, Burst: r.Over.Burst, Over: true})
	}
	if r.Over.Connections > 0 {
		out = append(out, &expr.Connlimit{Count: r.Over.Connections, Flags: connlimitOver})
	}
	if r.Log != (ruleset.Log{}) && r.Log.Rate > 0 {
		out = append(out, &expr.Limit{Type: expr.LimitTypePkts, Rate: r.Log.Rate, Unit: expr.LimitTimeSecond, Burst: r.Log.Burst})
	}
	if r.Counter {
		out = append(out, &expr.Counter{})
	}
	if r.Log != (ruleset.Log{}) {
		out = append(out, encodeLog(r.Log))
	}
	if r.Mark != (ruleset.Mark{}) {
		out = append(out,
			&expr.Meta{Key: expr.MetaKeyMARK, Register: register},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4,
				Mask: binaryutil.NativeEndian.PutUint32(^r.Mark.Mask), Xor: binaryutil.NativeEndian.PutUint32(r.Mark.Value)},
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register})
	}
	if r.NoTrack {
		out = append(out, &expr.Notrack{})
	}
	verdict, err := encodeVerdict(&r.Verdict, family)
	if err != nil {
		return nil, fmt.Errorf("rule %q: %w", r.Comment, err)
	}
	return append(out, verdict...), nil
}

func encodeLog(l ruleset.Log) expr.Any {
	e := &expr.Log{Key: 1 << unix.NFTA_LOG_PREFIX, Data: []byte(l.Prefix)}
	if l.Group != 0 {
		e.Key |= 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN
		e.Group, e.Snaplen = l.Group, 128
	} else {
		e.Key |= 1 << unix.NFTA_LOG_LEVEL
		e.Level = expr.LogLevelWarning
	}
	return e
}

func encodeMatch(m *ruleset.Match, family uint32) ([]expr.Any, error) {
	native := binaryutil.NativeEndian.PutUint32
	switch m.Field {
	case ruleset.Family:
		number := map[uint32]byte{4: unix.NFPROTO_IPV4, 6: unix.NFPROTO_IPV6}[m.Low]
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: register}, compare(m.Not, []byte{number})}, nil
	case ruleset.InInterface:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register}, compare(m.Not, interfaceName(m.Name))}, nil
	case ruleset.OutInterface:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register}, compare(m.Not, interfaceName(m.Name))}, nil
	case ruleset.Protocol:
		return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, compare(m.Not, []byte{byte(m.Low)})}, nil
	case ruleset.Source, ruleset.Destination:
		return encodeAddress(m, family)
	case ruleset.SourcePort, ruleset.DestinationPort:
		return encodePort(m), nil
	case ruleset.SourceEndpoint, ruleset.DestinationEndpoint:
		return encodeEndpoint(m, family)
	case ruleset.ICMP:
		return []expr.Any{
			&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 2, Mask: be16(m.Mask), Xor: []byte{0, 0}},
			compare(m.Not, be16(m.Low&m.Mask)),
		}, nil
	case ruleset.ConnState:
		return append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: register}}, anyBit(m.Mask, !m.Not)...), nil
	case ruleset.ConnStatus:
		return append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: register}}, anyBit(m.Mask, !m.Not)...), nil
	case ruleset.PacketMark:
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: register},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: native(m.Mask), Xor: native(0)},
			compare(m.Not, native(m.Low)),
		}, nil
	case ruleset.NoReturnRoute:
		return []expr.Any{&expr.Fib{Register: register, ResultOIF: true, FlagSADDR: true, FlagMARK: true, FlagIIF: true},
			compare(m.Not, native(0))}, nil
	case ruleset.SourceLocal:
		return []expr.Any{&expr.Fib{Register: register, ResultADDRTYPE: true, FlagSADDR: true}, compare(m.Not, native(unix.RTN_LOCAL))}, nil
	case ruleset.DestinationLocal:
		return []expr.Any{&expr.Fib{Register: register, ResultADDRTYPE: true, FlagDADDR: true}, compare(m.Not, native(unix.RTN_LOCAL))}, nil
	case ruleset.SourceOfOutInterface:
		return []expr.Any{&expr.Fib{Register: register, ResultADDRTYPE: true, FlagSADDR: true, FlagOIF: true},
			compare(m.Not, native(unix.RTN_LOCAL))}, nil
	}
	return nil, fmt.Errorf("no translation for field %d", m.Field)
}

func compare(not bool, data []byte) expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Cmp{Op: op, Register: register, Data: data}
}

// anyBit tests whether one of the bits of mask is set in the register, or none.
func anyBit(mask uint32, set bool) []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mask),
			Xor: make([]byte, 4)},
		compare(set, make([]byte, 4)),
	}
}

// interfaceName is the whole name with its padding, or only its beginning if it ends in *.
func interfaceName(name string) []byte {
	if begin, ok := strings.CutSuffix(name, "*"); ok {
		return []byte(begin)
	}
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}

func be16(v uint32) []byte { return binaryutil.BigEndian.PutUint16(uint16(v)) }

// loadAddress loads the source or destination address of a family.
func loadAddress(source bool, family uint32, register uint32) (expr.Any, error) {
	p := &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader}
	switch family {
	case 4:
		p.Offset, p.Len = 16, 4
		if source {
			p.Offset = 12
		}
	case 6:
		p.Offset, p.Len = 24, 16
		if source {
			p.Offset = 8
		}
	default:
		return nil, fmt.Errorf("an address is matched without a match of the family before it")
	}
	return p, nil
}

func encodeAddress(m *ruleset.Match, family uint32) ([]expr.Any, error) {
	load, err := loadAddress(m.Field == ruleset.Source, family, register)
	if err != nil {
		return nil, err
	}
	if m.Set != "" {
		return []expr.Any{load, &expr.Lookup{SourceRegister: register, SetName: m.Set, Invert: m.Not}}, nil
	}
	if m.Prefix.Addr().Is4() != (family == 4) {
		return nil, fmt.Errorf("%s is matched in IPv%d", m.Prefix, family)
	}
	address := m.Prefix.Masked().Addr().AsSlice()
	if m.Prefix.IsSingleIP() {
		return []expr.Any{load, compare(m.Not, address)}, nil
	}
	mask := make([]byte, len(address))
	for i := range m.Prefix.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{load,
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)), Mask: mask, Xor: make([]byte, len(mask))},
		compare(m.Not, address)}, nil
}

func loadPort(source bool, register uint32) expr.Any {
	offset := uint32(2)
	if source {
		offset = 0
	}
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2}
}

func encodePort(m *ruleset.Match) []expr.Any {
	load := loadPort(m.Field == ruleset.SourcePort, register)
	switch {
	case m.Set != "":
		return []expr.Any{load, &expr.Lookup{SourceRegister: register, SetName: m.Set, Invert: m.Not}}
	case m.High == 0 || m.High == m.Low:
		return []expr.Any{load, compare(m.Not, be16(m.Low))}
	}
	op := expr.CmpOpEq
	if m.Not {
		op = expr.CmpOpNeq
	}
	return []expr.Any{load, &expr.Range{Op: op, Register: register, FromData: be16(m.Low), ToData: be16(m.High)}}
}

// encodeEndpoint looks up address, protocol and port together: each begins at a multiple of 4 bytes.
func encodeEndpoint(m *ruleset.Match, family uint32) ([]expr.Any, error) {
	source := m.Field == ruleset.SourceEndpoint
	load, err := loadAddress(source, family, register)
	if err != nil {
		return nil, err
	}
	next := uint32(unix.NFT_REG32_00) + 1
	if family == 6 {
		next += 3
	}
	return []expr.Any{load,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		loadPort(source, next+1),
		&expr.Lookup{SourceRegister: register, SetName: m.Set, Invert: m.Not}}, nil
}

func encodeVerdict(v *ruleset.Verdict, family uint32) ([]expr.Any, error) {
	simple := func(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind, Chain: v.Chain}} }
	switch v.Action {
	case ruleset.Continue:
		return nil, nil
	case ruleset.Accept:
		return simple(expr.VerdictAccept), nil
	case ruleset.Drop:
		return simple(expr.VerdictDrop), nil
	case ruleset.Return:
		return simple(expr.VerdictReturn), nil
	case ruleset.Jump:
		return simple(expr.VerdictJump), nil
	case ruleset.Goto:
		return simple(expr.VerdictGoto), nil
	case ruleset.Reject:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}, nil
	case ruleset.RejectTCP:
		return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}, nil
	case ruleset.Lookup:
		key := expr.MetaKeyIIFNAME
		if v.Out {
			key = expr.MetaKeyOIFNAME
		}
		return []expr.Any{&expr.Meta{Key: key, Register: register},
			&expr.Lookup{SourceRegister: register, SetName: v.Map, IsDestRegSet: true}}, nil
	case ruleset.Masquerade:
		m := &expr.Masq{FullyRandom: v.Random}
		if v.High == 0 {
			return []expr.Any{m}, nil
		}
		m.ToPorts, m.RegProtoMin, m.RegProtoMax = true, 1, 2
		return append(loadPorts(v, 1, 2), m), nil
	case ruleset.SNAT, ruleset.DNAT:
		return encodeNAT(v, family)
	}
	return nil, fmt.Errorf("no translation for verdict %d", v.Action)
}

func loadPorts(v *ruleset.Verdict, low, high uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: low, Data: be16(uint32(v.Low))},
		&expr.Immediate{Register: high, Data: be16(uint32(v.High))},
	}
}

func encodeNAT(v *ruleset.Verdict, family uint32) ([]expr.Any, error) {
	if v.Address.Is4() != (family == 4) {
		return nil, fmt.Errorf("packets of IPv%d cannot be translated to %s", family, v.Address)
	}
	nat := &expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, FullyRandom: v.Random}
	if v.Action == ruleset.DNAT {
		nat.Type = expr.NATTypeDestNAT
	}
	if family == 6 {
		nat.Family = unix.NFPROTO_IPV6
	}
	list := []expr.Any{&expr.Immediate{Register: 1, Data: v.Address.AsSlice()}}
	if v.High != 0 {
		list = append(list, loadPorts(v, 2, 3)...)
		nat.RegProtoMin, nat.RegProtoMax, nat.Specified = 2, 3, true
	}
	return append(list, nat), nil
}

// comment is what a rule carries: whose it is, for people, and its ID, by which it is recognised.
func comment(r *ruleset.Rule) []byte {
	id := " #" + r.ID()
	text := r.Comment
	const longest = 120 // nft shows at most 127 bytes
	if room := longest - len(id); len(text) > room {
		text = text[:room/2-1] + ".." + text[len(text)-(room-room/2-1):]
	}
	return userdata.AppendString(nil, userdata.TypeComment, text+id)
}

// commentID takes the ID out of a comment again, "" if there is none.
func commentID(data []byte) string {
	text, ok := userdata.GetString(data, userdata.TypeComment)
	if i := strings.LastIndex(text, "#"); ok && i >= 0 {
		return text[i+1:]
	}
	return ""
}

// encodeSet translates a set's definition.
func encodeSet(s ruleset.Set) *nftables.Set {
	set := &nftables.Set{Table: table(), Name: s.Name, Interval: s.Interval}
	switch s.Type {
	case ruleset.Addresses4:
		set.KeyType = nftables.TypeIPAddr
	case ruleset.Addresses6:
		set.KeyType = nftables.TypeIP6Addr
	case ruleset.Ports:
		set.KeyType, set.Interval = nftables.TypeInetService, true
	case ruleset.Endpoints4:
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService), true
	case ruleset.Endpoints6:
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetProto, nftables.TypeInetService), true
	}
	return set
}

func encodeMap(name string) *nftables.Set {
	return &nftables.Set{Table: table(), Name: name, IsMap: true, KeyType: nftables.TypeIFName, DataType: nftables.TypeVerdict,
		KeyByteOrder: binaryutil.NativeEndian}
}

// encodeElement translates one element: two for an interval, its start and what comes after its end.
func encodeElement(s ruleset.Set, e ruleset.Element) []nftables.SetElement {
	switch s.Type {
	case ruleset.Ports:
		high := max(e.High, e.Low)
		list := []nftables.SetElement{{Key: be16(uint32(e.Low))}}
		if high < 65535 {
			list = append(list, nftables.SetElement{Key: be16(uint32(high) + 1), IntervalEnd: true})
		}
		return list
	case ruleset.Endpoints4, ruleset.Endpoints6:
		key := append(e.Prefix.Addr().AsSlice(), e.Protocol, 0, 0, 0)
		return []nftables.SetElement{{Key: append(key, byte(e.Low>>8), byte(e.Low), 0, 0)}}
	}
	list := []nftables.SetElement{{Key: e.Prefix.Addr().AsSlice()}}
	if s.Interval {
		if end := after(e.Prefix); end.IsValid() {
			list = append(list, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return list
}

// after is the first address behind a network, invalid if there is none.
func after(p netip.Prefix) netip.Addr {
	last := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(last)
	return a.Next()
}

func encodeEntry(iface string, v ruleset.Verdict) nftables.SetElement {
	kind := expr.VerdictGoto
	switch v.Action {
	case ruleset.Jump:
		kind = expr.VerdictJump
	case ruleset.Drop:
		kind = expr.VerdictDrop
	case ruleset.Accept:
		kind = expr.VerdictAccept
	case ruleset.Return:
		kind = expr.VerdictReturn
	}
	return nftables.SetElement{Key: interfaceName(iface), VerdictData: &expr.Verdict{Kind: kind, Chain: v.Chain}}
}
