package nftables

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/manxnet/manx/dataplane/ruleset"

	"github.com/manxnet/manx/dataplane/kernel/netlink"
)

// replaced is the data for replacing sets that unchanged rules use: the kernel deletes no set in use.
type replaced struct {
	emptied map[string]bool // sets of the right kind, of which only the elements go
	chains  []rawChain      // are flushed and get the very rules again
}

// rawChain is a chain in the kernel's form.
type rawChain struct {
	name  string
	rules []rawRule
}

type rawRule struct{ expressions, userdata []byte }

// replacedSets determines how the sets can be replaced that are both created and deleted. That happens only after edits
// by another program.
func (r *Conn) replacedSets(c ruleset.Changes) (replaced, error) {
	p := replaced{emptied: map[string]bool{}}
	wanted := map[string]ruleset.Set{}
	for _, s := range c.Sets {
		if s.Created && s.Deleted {
			wanted[s.Name] = s.Set
		}
	}
	if len(wanted) == 0 {
		return p, nil
	}
	err := r.reading(func(t *tableReader) error {
		if err := t.findKinds(wanted, p.emptied); err != nil {
			return err
		}
		for name := range p.emptied {
			delete(wanted, name)
		}
		return t.findUsers(wanted, c.Chains, &p)
	})
	return p, err
}

// findKinds records which of the wanted sets are in the kernel as desired, but for their elements.
func (t *tableReader) findKinds(wanted map[string]ruleset.Set, same map[string]bool) error {
	return t.dump(unix.NFT_MSG_GETSET, func() { clear(same) }, ofTable, func(attrs []byte) {
		l := attrList(attrs)
		name := text(l[unix.NFTA_SET_NAME])
		w, ok := wanted[name]
		if have := setOf(l); ok && have.Type == w.Type && interval(have) == interval(w) {
			same[name] = true
		}
	})
}

// findUsers keeps the rules of the chains that use one of the sets and do not change themselves.
func (t *tableReader) findUsers(sets map[string]ruleset.Set, changed []ruleset.ChainChange, p *replaced) error {
	if len(sets) == 0 {
		return nil
	}
	var all []rawChain
	users := map[string]bool{}
	err := t.dumpRules(func() { all = nil; clear(users) }, func(r kernelRule) {
		name := string(r.chain)
		if len(all) == 0 || all[len(all)-1].name != name {
			all = append(all, rawChain{name: name})
		}
		last := &all[len(all)-1]
		last.rules = append(last.rules, rawRule{slices.Clone(r.expressions), slices.Clone(r.userdata)})
		for set := range lookups(r.expressions) {
			if _, ok := sets[set]; ok {
				users[name] = true
			}
		}
	})
	for _, c := range changed {
		delete(users, c.Name)
	}
	p.chains = slices.DeleteFunc(all, func(c rawChain) bool { return !users[c.name] })
	if errors.Is(err, unix.ENOENT) {
		return nil // no table, no users
	}
	return err
}

// lookups visits the names of the sets that a rule looks up.
func lookups(expressions []byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for _, element := range netlink.Attrs(expressions) {
			_, name, data, ok := netlink.NextAttr(element)
			if !ok || text(name) != "lookup" {
				continue
			}
			_, data, _, _ = netlink.NextAttr(data)
			if !yield(text(attrList(data)[unix.NFTA_LOOKUP_SET])) {
				return
			}
		}
	}
}
