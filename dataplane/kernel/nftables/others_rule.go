package nftables

import (
	"bytes"
	"encoding/binary"
	"math"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/hostfirewall"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// ruleDecoder reads one rule of another program. What it cannot read becomes a condition that nobody can evaluate.
type ruleDecoder struct {
	reader *othersReader
	table  otherTable

	rule      hostfirewall.Rule
	registers map[uint32]register
	// entries are those of a verdict map that ends the rule.
	entries []hostfirewall.Rule
	mapped  bool
}

// register is the value that a rule has loaded.
type register struct {
	field hostfirewall.Field // 0: it cannot be read
	what  string             // the name of the expression that loaded it
	index bool               // the number of an interface
	six   bool               // an address of IPv6
	mask  []byte             // of a bitwise expression
}

// rules returns the rule, or one for each entry of its verdict map.
func (d *ruleDecoder) rules(l attributes) ([]hostfirewall.Rule, error) {
	d.registers = map[uint32]register{}
	if h := l[unix.NFTA_RULE_HANDLE]; len(h) == 8 {
		d.rule.Handle = binary.BigEndian.Uint64(h)
	}
	if d.rule.Comment = commentOf(l[unix.NFTA_RULE_USERDATA]); d.rule.Comment == "" {
		d.rule.Comment = iptablesComment(l[unix.NFTA_RULE_EXPRESSIONS])
	}
	for _, element := range netlink.Attrs(l[unix.NFTA_RULE_EXPRESSIONS]) {
		x := attrList(element)
		if err := d.expression(text(x[unix.NFTA_EXPR_NAME]), x[unix.NFTA_EXPR_DATA]); err != nil {
			return nil, err
		}
	}
	if d.mapped {
		return d.entries, nil
	}
	return []hostfirewall.Rule{d.rule}, nil
}

func (d *ruleDecoder) unread(what string) { d.rule.Unread = append(d.rule.Unread, what) }

// Statements that change nothing about the way of a packet.
var passive = []string{"counter", "log", "notrack", "last", "dup", "flow_offload", "nat", "masq", "redir", "secmark"}

// expression reads one expression.
func (d *ruleDecoder) expression(name string, data []byte) error {
	switch name {
	case "meta", "payload", "ct":
		d.load(name, data)
	case "bitwise":
		d.bitwise(data)
	case "cmp":
		d.compare(data)
	case "range":
		d.inRange(data)
	case "lookup":
		return d.lookup(data)
	case "immediate":
		d.immediate(data)
	case "reject":
		d.rule.Verdict = hostfirewall.Drop
	case "match":
		d.match(data)
	case "target":
		d.target(data)
	case "queue", "synproxy", "fwd", "tproxy":
		d.rule.Verdict, d.rule.Target = hostfirewall.Unreadable, name
	case "fib", "exthdr", "rt", "socket", "numgen", "hash", "byteorder", "osf", "tunnel", "xfrm":
		d.loadUnread(name)
	default:
		if !slices.Contains(passive, name) {
			d.unread(name)
		}
	}
	return nil
}

// loadUnread marks all registers as unreadable: which one the expression loads does not matter.
func (d *ruleDecoder) loadUnread(name string) {
	for r := range d.registers {
		d.registers[r] = register{what: name}
	}
	d.registers[anyRegister] = register{what: name}
}

// anyRegister stands for registers that are not known.
const anyRegister = math.MaxUint32

func (d *ruleDecoder) register(n uint32) register {
	if r, ok := d.registers[n]; ok {
		return r
	}
	return d.registers[anyRegister]
}

// load reads an expression that loads a property of the packet, or that sets one.
func (d *ruleDecoder) load(name string, data []byte) {
	switch name {
	case "meta":
		var m expr.Meta
		if expr.Unmarshal(d.table.family, data, &m) == nil && !m.SourceRegister {
			d.registers[m.Register] = metaRegister(m.Key)
		}
	case "ct":
		var c expr.Ct
		if expr.Unmarshal(d.table.family, data, &c) == nil && !c.SourceRegister {
			r := register{what: "ct"}
			switch c.Key {
			case expr.CtKeySTATE:
				r.field = hostfirewall.State
			case expr.CtKeySTATUS:
				r.field = hostfirewall.Status
			}
			d.registers[c.Register] = r
		}
	case "payload":
		var p expr.Payload
		if expr.Unmarshal(d.table.family, data, &p) == nil && p.OperationType == expr.PayloadLoad {
			d.registers[p.DestRegister] = d.payload(&p)
		}
	}
}

func metaRegister(k expr.MetaKey) register {
	switch k {
	case expr.MetaKeyIIFNAME:
		return register{field: hostfirewall.InName}
	case expr.MetaKeyOIFNAME:
		return register{field: hostfirewall.OutName}
	case expr.MetaKeyIIF:
		return register{field: hostfirewall.InName, index: true}
	case expr.MetaKeyOIF:
		return register{field: hostfirewall.OutName, index: true}
	case expr.MetaKeyNFPROTO:
		return register{field: hostfirewall.Family}
	case expr.MetaKeyL4PROTO:
		return register{field: hostfirewall.Protocol}
	case expr.MetaKeyMARK:
		return register{field: hostfirewall.Mark}
	}
	return register{what: "meta"}
}

// payload reads the load of a header field. An address may be loaded in part: its first bytes.
func (d *ruleDecoder) payload(p *expr.Payload) register {
	at := func(offset, longest uint32) bool { return p.Offset == offset && p.Len <= longest }
	family := d.family()
	six := family == unix.NFPROTO_IPV6
	switch {
	case p.Base == expr.PayloadBaseTransportHeader && p.Offset == 0 && p.Len == 2:
		return register{field: hostfirewall.SourcePort}
	case p.Base == expr.PayloadBaseTransportHeader && p.Offset == 2 && p.Len == 2:
		return register{field: hostfirewall.DestinationPort}
	case p.Base != expr.PayloadBaseNetworkHeader, family == unix.NFPROTO_INET:
	case six && at(8, 16):
		return register{field: hostfirewall.Source, six: true}
	case six && at(24, 16):
		return register{field: hostfirewall.Destination, six: true}
	case six && at(6, 1), !six && at(9, 1):
		return register{field: hostfirewall.Protocol}
	case !six && at(12, 4):
		return register{field: hostfirewall.Source}
	case !six && at(16, 4):
		return register{field: hostfirewall.Destination}
	}
	return register{what: "payload"}
}

// family returns that of the packets: the table's, or in a table of both the one that the rule has compared.
func (d *ruleDecoder) family() uint8 {
	for _, m := range d.rule.Matches {
		if m.Field == hostfirewall.Family && !m.Not && len(m.Values) == 1 && m.Values[0].Low == m.Values[0].High {
			return uint8(m.Values[0].Low)
		}
	}
	return d.table.family
}

func (d *ruleDecoder) bitwise(data []byte) {
	l := attrList(data)
	var b expr.Bitwise
	if err := expr.Unmarshal(d.table.family, data, &b); err != nil {
		d.loadUnread("bitwise")
		return
	}
	r := d.register(b.SourceRegister)
	const operation, maskAndXor = 6, 0 // NFTA_BITWISE_OP, NFT_BITWISE_MASK_XOR
	if l.number(operation) != maskAndXor || r.mask != nil || !zero(b.Xor) {
		r = register{what: "bitwise"}
	}
	r.mask = b.Mask
	d.registers[b.DestRegister] = r
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func (d *ruleDecoder) compare(data []byte) {
	var c expr.Cmp
	if err := expr.Unmarshal(d.table.family, data, &c); err != nil {
		d.unread("cmp")
		return
	}
	r := d.register(c.Register)
	v, ok := d.value(r, c.Data)
	if c.Op != expr.CmpOpEq && c.Op != expr.CmpOpNeq {
		var in bool
		v, in = from(r, c.Op, v)
		ok = ok && in
	}
	d.add(r, c.Op == expr.CmpOpNeq, ok, v)
}

// from returns the range of the values that are less or greater than v; false if that cannot be known.
func from(r register, op expr.CmpOp, v hostfirewall.Value) (hostfirewall.Value, bool) {
	if !v.From.IsValid() && (op == expr.CmpOpLt && v.Low == 0 || op == expr.CmpOpGt && v.High == math.MaxUint32) {
		return v, false
	}
	all := hostfirewall.Value{High: math.MaxUint32}
	before, after := hostfirewall.Value{High: v.Low - 1}, hostfirewall.Value{Low: v.High + 1}
	if v.From.IsValid() {
		size := len(v.From.AsSlice())
		all.From, _ = netip.AddrFromSlice(make([]byte, size))
		all.To, _ = netip.AddrFromSlice(bytes.Repeat([]byte{0xff}, size))
		before.To, after.From = v.From.Prev(), v.To.Next()
		if op == expr.CmpOpLt && !before.To.IsValid() || op == expr.CmpOpGt && !after.From.IsValid() {
			return v, false
		}
	}
	switch op {
	case expr.CmpOpLt:
		return span(r, all, before)
	case expr.CmpOpLte:
		return span(r, all, v)
	case expr.CmpOpGt:
		return span(r, after, all)
	case expr.CmpOpGte:
		return span(r, v, all)
	}
	return v, false
}

// ordered reports whether the field is a number in network byte order, of which ranges can be compared.
func (r register) ordered() bool {
	return r.mask == nil && slices.Contains([]hostfirewall.Field{hostfirewall.Protocol, hostfirewall.SourcePort,
		hostfirewall.DestinationPort}, r.field)
}

func (d *ruleDecoder) inRange(data []byte) {
	var x expr.Range
	if err := expr.Unmarshal(d.table.family, data, &x); err != nil {
		d.unread("range")
		return
	}
	r := d.register(x.Register)
	from, ok := d.value(r, x.FromData)
	to, ok2 := d.value(r, x.ToData)
	v, ok3 := span(r, from, to)
	d.add(r, x.Op == expr.CmpOpNeq, ok && ok2 && ok3, v)
}

// span is the range from one value to another.
func span(r register, from, to hostfirewall.Value) (hostfirewall.Value, bool) {
	address := r.mask == nil && (r.field == hostfirewall.Source || r.field == hostfirewall.Destination)
	return hostfirewall.Value{From: from.From, To: to.To, Low: from.Low, High: to.High}, address || r.ordered()
}

// add adds a condition; one that cannot be read if ok is false.
func (d *ruleDecoder) add(r register, not, ok bool, values ...hostfirewall.Value) {
	if !ok || r.field == 0 {
		what := r.what
		if what == "" {
			what = "an unusual comparison"
		}
		d.unread(what)
		return
	}
	m := hostfirewall.Match{Field: r.field, Not: not, Values: values, Mask: math.MaxUint32}
	if len(r.mask) == 4 {
		m.Mask = binary.NativeEndian.Uint32(r.mask)
	}
	d.rule.Matches = append(d.rule.Matches, m)
}

// value reads the data that a register is compared with.
func (d *ruleDecoder) value(r register, data []byte) (v hostfirewall.Value, ok bool) {
	number := func(n uint32) (hostfirewall.Value, bool) {
		return hostfirewall.Value{Low: n, High: n}, true
	}
	switch r.field {
	case hostfirewall.InName, hostfirewall.OutName:
		return d.interfaceValue(r, data)
	case hostfirewall.Source, hostfirewall.Destination:
		return addressValue(r, data)
	case hostfirewall.State, hostfirewall.Status, hostfirewall.Mark:
		if len(data) == 4 {
			return number(binary.NativeEndian.Uint32(data))
		}
	case hostfirewall.Family, hostfirewall.Protocol:
		if len(data) >= 1 && r.mask == nil {
			return number(uint32(data[0]))
		}
	case hostfirewall.SourcePort, hostfirewall.DestinationPort:
		if len(data) >= 2 && r.mask == nil {
			return number(uint32(binary.BigEndian.Uint16(data)))
		}
	}
	return v, false
}

// interfaceValue: a name that is compared without its end is the beginning of one.
func (d *ruleDecoder) interfaceValue(r register, data []byte) (v hostfirewall.Value, ok bool) {
	switch {
	case r.mask != nil:
		return v, false
	case r.index && len(data) == 4:
		v.Text = d.reader.interfaceName(binary.NativeEndian.Uint32(data))
		return v, true // empty: no such interface
	case r.index:
		return v, false
	}
	return hostfirewall.Value{Text: text(data), Begins: !slices.Contains(data, 0)}, true
}

// addressValue reads an address, a prefix by its mask, or the first bytes of one.
func addressValue(r register, data []byte) (v hostfirewall.Value, ok bool) {
	size := 4
	if r.six {
		size = 16
	}
	if len(data) == 0 || len(data) > size {
		return v, false
	}
	mask := r.mask
	if mask == nil {
		mask = bytes.Repeat([]byte{0xff}, len(data))
	}
	if len(mask) != len(data) {
		return v, false
	}
	from, to := make([]byte, size), bytes.Repeat([]byte{0xff}, size)
	hole := false
	for i := range data {
		from[i], to[i] = data[i]&mask[i], data[i]|^mask[i]
		whole := mask[i] == 0xff
		if hole && mask[i] != 0 || mask[i]&(^mask[i]>>1) != 0 || data[i]&^mask[i] != 0 {
			return v, false // no prefix
		}
		hole = hole || !whole
	}
	v.From, _ = netip.AddrFromSlice(from)
	v.To, _ = netip.AddrFromSlice(to)
	return v, true
}

// immediate reads a verdict.
func (d *ruleDecoder) immediate(data []byte) {
	var i expr.Immediate
	if err := expr.Unmarshal(d.table.family, data, &i); err != nil || i.Register != unix.NFT_REG_VERDICT {
		return
	}
	l := attrList(attrList(data)[unix.NFTA_IMMEDIATE_DATA])
	d.rule.Verdict, d.rule.Target = verdictOfOthers(attrList(l[unix.NFTA_DATA_VERDICT]))
}

func verdictOfOthers(l attributes) (v hostfirewall.Verdict, target string) {
	switch code := int32(l.number(unix.NFTA_VERDICT_CODE)); code {
	case unix.NFT_JUMP:
		return hostfirewall.Jump, text(l[unix.NFTA_VERDICT_CHAIN])
	case unix.NFT_GOTO:
		return hostfirewall.Goto, text(l[unix.NFTA_VERDICT_CHAIN])
	case unix.NFT_RETURN:
		return hostfirewall.Return, ""
	case unix.NFT_CONTINUE, unix.NFT_BREAK:
		return hostfirewall.Continue, ""
	case netfilterAccept:
		return hostfirewall.Accept, ""
	default:
		if name := verdictName(code); name != VerdictDrop {
			return hostfirewall.Unreadable, name
		}
		return hostfirewall.Drop, ""
	}
}

// match reads a condition of iptables.
func (d *ruleDecoder) match(data []byte) {
	var m expr.Match
	if err := expr.Unmarshal(d.table.family, data, &m); err != nil {
		d.unread("match")
		return
	}
	switch info := m.Info.(type) {
	case *xt.Comment:
		return
	case *xt.ConntrackMtinfo1:
		d.conntrack(&info.ConntrackMtinfoBase, uint16(info.StateMask))
		return
	case *xt.ConntrackMtinfo2:
		d.conntrack(&info.ConntrackMtinfoBase, info.StateMask)
		return
	case *xt.ConntrackMtinfo3:
		d.conntrack(&info.ConntrackMtinfoBase, info.StateMask)
		return
	case *xt.Unknown:
		if m.Name == "state" && len(*info) >= 4 {
			d.states(binary.NativeEndian.Uint32(*info), false) // with the bits of nf_tables
			return
		}
	}
	d.unread("match " + m.Name)
}

// conntrack reads a condition about the state of the connection. The bits of iptables are those of nf_tables, apart
// from translated connections, which new ones are not, and untracked ones.
func (d *ruleDecoder) conntrack(info *xt.ConntrackMtinfoBase, mask uint16) {
	const known, untracked, alias = 0xf, 1 << 8, 1 << 13 // alias: it was written as the older match "state"
	if xt.ConntrackFlags(info.MatchFlags&^alias) != xt.ConntrackState {
		d.unread("match conntrack")
		return
	}
	bits := uint32(mask & known)
	if mask&untracked != 0 {
		bits |= stateUntracked
	}
	d.states(bits, xt.ConntrackFlags(info.InvertFlags)&xt.ConntrackState != 0)
}

// stateUntracked is NF_CT_STATE_UNTRACKED_BIT.
const stateUntracked = 1 << 6

func (d *ruleDecoder) states(bits uint32, not bool) {
	d.rule.Matches = append(d.rule.Matches, hostfirewall.Match{Field: hostfirewall.State, Not: !not, Mask: bits,
		Values: []hostfirewall.Value{{}}})
}

// Targets of iptables that let the packet go on.
var passiveTargets = []string{"LOG", "NFLOG", "MARK", "CONNMARK", "CT", "NOTRACK", "TCPMSS", "CLASSIFY", "TRACE",
	"AUDIT", "CHECKSUM", "DSCP", "TOS", "TTL", "HL", "SET", "SECMARK", "CONNSECMARK", "RATEEST", "ECN"}

func (d *ruleDecoder) target(data []byte) {
	name := text(attrList(data)[unix.NFTA_TARGET_NAME])
	switch {
	case name == "REJECT":
		d.rule.Verdict = hostfirewall.Drop
	case !slices.Contains(passiveTargets, name):
		d.rule.Verdict, d.rule.Target = hostfirewall.Unreadable, name
	}
}
