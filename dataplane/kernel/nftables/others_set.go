package nftables

import (
	"bytes"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/hostfirewall"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// lookup reads a comparison with a set, or a verdict map. Only anonymous ones are read, which belong to the rule: those
// with a name may be of any size, and change at any time.
func (d *ruleDecoder) lookup(data []byte) error {
	var x expr.Lookup
	if err := expr.Unmarshal(d.table.family, data, &x); err != nil {
		d.unread("lookup")
		return nil
	}
	r := d.register(x.SourceRegister)
	verdicts := x.IsDestRegSet && x.DestRegister == unix.NFT_REG_VERDICT
	if x.IsDestRegSet && !verdicts { // a value of a map
		d.registers[x.DestRegister] = register{what: "map"}
		return nil
	}
	var list []otherElement
	known, err := d.anonymous(x.SetName)
	if err != nil {
		return err
	}
	if known {
		if list, known, err = d.reader.elements(d.table, x.SetName); err != nil {
			return err
		}
	}
	ranges := slices.ContainsFunc(list, func(e otherElement) bool { return e.end })
	values, ok := d.values(r, list, ranges)
	switch {
	case verdicts && (!known || !ok):
		d.rule.Verdict, d.rule.Target = hostfirewall.Unreadable, "vmap @"+x.SetName
	case verdicts:
		d.entriesOf(r, list, values)
	case !known:
		d.unread("set @" + x.SetName)
	default:
		var keys []hostfirewall.Value
		for i, e := range list {
			if ok && !e.end && !e.rest {
				keys = append(keys, values[i])
			}
		}
		d.add(r, x.Invert, ok, keys...)
	}
	return nil
}

// otherElement is an element of a set of another program.
type otherElement struct {
	key     []byte
	end     bool // the range that is open ends before it
	rest    bool // it stands for all keys that no other element has
	verdict attributes
}

// anonymous reports whether a set belongs to its rule, and can be read.
func (d *ruleDecoder) anonymous(set string) (yes bool, err error) {
	err = d.reader.sock.Query(nftKind(unix.NFT_MSG_GETSET), 0, func(b *netlink.Builder) {
		chainKey{d.table.family, d.table.name, set}.about(b, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
	}, func(m netlink.Message) {
		if len(m.Data) >= 4 {
			flags := attrList(m.Data[4:]).number(unix.NFTA_SET_FLAGS)
			yes = flags&unix.NFT_SET_ANONYMOUS != 0 && flags&setConcat == 0
		}
	})
	return yes, err
}

// elements reads an anonymous set; false if it is too large.
func (o *othersReader) elements(t otherTable, set string) (list []otherElement, complete bool, err error) {
	err = o.dump(unix.NFT_MSG_GETSETELEM, t.family, func() { list = nil }, func(b *netlink.Builder) {
		chainKey{t.family, t.name, set}.attributes(b, unix.NFTA_SET_ELEM_LIST_TABLE, unix.NFTA_SET_ELEM_LIST_SET)
	}, func(_ uint8, l attributes) {
		for _, item := range netlink.Attrs(l[unix.NFTA_SET_ELEM_LIST_ELEMENTS]) {
			if len(list) <= mostOtherElements {
				list = append(list, parseOtherElement(item))
			}
		}
	})
	return list, len(list) <= mostOtherElements, err
}

func parseOtherElement(item []byte) (e otherElement) {
	const rest = 2 // NFT_SET_ELEM_CATCHALL
	l := attrList(bytes.Clone(item))
	flags := l.number(unix.NFTA_SET_ELEM_FLAGS)
	e.end, e.rest = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0, flags&rest != 0
	e.key = attrList(l[unix.NFTA_SET_ELEM_KEY])[unix.NFTA_DATA_VALUE]
	e.verdict = attrList(attrList(l[unix.NFTA_SET_ELEM_DATA])[unix.NFTA_DATA_VERDICT])
	return e
}

// values returns the values of elements, in their order; ends of ranges and the rest have empty ones.
func (d *ruleDecoder) values(r register, list []otherElement, ranges bool) (values []hostfirewall.Value, ok bool) {
	if ranges {
		slices.SortStableFunc(list, func(a, b otherElement) int {
			if c := bytes.Compare(a.key, b.key); c != 0 || a.end == b.end {
				return c
			}
			if a.end {
				return -1
			}
			return 1
		})
	}
	for i, e := range list {
		var v hostfirewall.Value
		if !e.end && !e.rest {
			v, ok = d.value(r, e.key)
			if ok && ranges {
				v, ok = d.rangeValue(r, v, list[i:])
			}
			if !ok {
				return nil, false
			}
		}
		values = append(values, v)
	}
	return values, true
}

// rangeValue is the range that begins with v, the first of the elements, and ends before the second.
func (d *ruleDecoder) rangeValue(r register, v hostfirewall.Value, list []otherElement) (hostfirewall.Value, bool) {
	if len(list) < 2 || !list[1].end {
		return v, false
	}
	if !r.index && (r.field == hostfirewall.InName || r.field == hostfirewall.OutName) {
		return names(list[0].key, list[1].key)
	}
	next, ok := d.value(r, list[1].key)
	if !ok {
		return v, false
	}
	to := hostfirewall.Value{High: next.Low - 1}
	if next.From.IsValid() {
		to.To = next.From.Prev()
	}
	return span(r, v, to)
}

// names reads a range of names of interfaces: a single name, or all that begin with it.
func names(first, end []byte) (v hostfirewall.Value, ok bool) {
	v.Text = text(first)
	for _, last := range []int{len(v.Text) - 1, len(first) - 1} { // the byte that the end has one more of
		after := bytes.Clone(first)
		if last < 0 {
			return v, false
		}
		if after[last]++; bytes.Equal(after, end) {
			v.Begins = last < len(first)-1
			return v, true
		}
	}
	return v, false
}

// entriesOf makes a rule of each entry of a verdict map.
func (d *ruleDecoder) entriesOf(r register, list []otherElement, values []hostfirewall.Value) {
	d.mapped = true
	var rest []hostfirewall.Rule
	for i, e := range list {
		if e.end {
			continue
		}
		entry := ruleDecoder{rule: d.rule}
		entry.rule.Matches, entry.rule.Unread = slices.Clone(d.rule.Matches), slices.Clone(d.rule.Unread)
		entry.rule.Verdict, entry.rule.Target = verdictOfOthers(e.verdict)
		if e.rest {
			rest = append(rest, entry.rule)
			continue
		}
		entry.add(r, false, true, values[i])
		d.entries = append(d.entries, entry.rule)
	}
	d.entries = append(d.entries, rest...)
}
