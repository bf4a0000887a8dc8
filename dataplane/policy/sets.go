package policy

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/manxnet/manx/dataplane/policy/labels"
	"github.com/manxnet/manx/dataplane/policy/members"
	"github.com/manxnet/manx/dataplane/ruleset"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/selector"
)

// setKind is the source of a set's members.
type setKind uint8

const (
	bySelector     setKind = iota + 1 // addresses of endpoints that the selector matches
	byPort                            // address, protocol, port of endpoints that the selector matches, for named ports
	byService                         // addresses of a service's endpoints
	byServicePorts                    // with their ports
)

// setKey is the identity of a set.
type setKey struct {
	kind     setKind
	selector string // canonical
	ports    string // names, see portNames
	protocol uint8  // 0: any
	service  Service
}

func (k setKey) String() string {
	switch k.kind {
	case byPort:
		protocol := "any protocol"
		for name, n := range protocols {
			if n == k.protocol {
				protocol = name
			}
		}
		return fmt.Sprintf("port %s (%s) of %s", `"`+strings.ReplaceAll(k.ports, ",", `" or "`)+`"`, protocol,
			k.selector)
	case byService, byServicePorts:
		return "service " + k.service.Namespace + "/" + k.service.Name
	}
	return k.selector
}

// portNames is the form of port names in a key: they are letters, digits, '_', '.' and '-'.
func portNames(names []string) string { return strings.Join(names, ",") }

// names reports whether a port is one of those of the key.
func (k setKey) names(port string) bool {
	for rest, more := k.ports, true; more; {
		var name string
		if name, rest, more = strings.Cut(rest, ","); name == port {
			return true
		}
	}
	return false
}

// endpoints reports whether elements have protocol and port.
func (k setKey) endpoints() bool { return k.kind == byPort || k.kind == byServicePorts }

// memberSets are the sets whose members come from the datastore, and all that rules can name, in the whole cluster.
type memberSets struct {
	table    *ruleset.Table
	settings *settings
	of       map[setKey]*memberSet
	items    *btree.BTree[*item]
	peers    *labels.Index[*item, setKey] // finds the items that the selectors of sets match
	services services
	twins    twins
	// allowance is the work for policies of namespaces that is left in this step.
	allowance int

	dirty    dirty[*memberSet]   // may be of the wrong kind
	homeless dirty[*policyState] // name sets that are replaced
	released dirty[setKey]
	elements []ruleset.Element // a reused buffer
}

func newMemberSets(t *ruleset.Table, s *settings) *memberSets {
	m := &memberSets{table: t, settings: s, of: map[setKey]*memberSet{}, items: newItems(),
		twins:    twins{map[uint64]*memberSet{}, twinSize, maphash.MakeSeed()},
		services: services{map[Service][]namedSlice{}, map[model.Key]Service{}}}
	m.peers = labels.New(m.peerStarted, m.peerStopped)
	return m
}

// memberSet is a set whose members come from the datastore: one in the table for each family. In clusters without IPv6
// that of IPv6 is not in the table while it is empty, nor are the rules that can only match its members.
type memberSet struct {
	in    *memberSets
	key   setKey
	hash  string
	users map[*policyState]bool
	half  [2]half // IPv4, IPv6
	// spaces are the namespaces of the users, matched counts the items that it has members of, and more the further
	// networks of those that have several, by the namespace of these.
	spaces  map[*space]*share
	matched int
	more    map[string]int

	sum       uint64     // of the hashes of all contributions
	leader    *memberSet // that has the same members and is in the table for both; nil if this one is
	followers map[*memberSet]bool
	listed    uint64 // the sum under which it is in memberSets.twins, if it is
}

// weight is the number of elements that count for the policies of a namespace. Networks that other namespaces list do
// not count: their authors must not close the policies of this one.
func (s *memberSet) weight(namespace string) int { return s.matched + s.more[namespace] }

// weigh counts an item with n contributions, or with sign -1 withdraws it.
func (s *memberSet) weigh(namespace string, n, sign int) {
	s.matched += sign
	if n <= 1 {
		return
	}
	if s.more == nil {
		s.more = map[string]int{}
	}
	if s.more[namespace] += sign * (n - 1); s.more[namespace] == 0 {
		delete(s.more, namespace)
	}
}

type half struct {
	name    string       // empty if it is not in the table
	size    int          // contributions
	wide    int          // those that are networks rather than addresses
	members *members.Set // nil if it is not in the table
}

func index(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 0
	}
	return 1
}

// acquire makes the set of a key for one user more.
func (m *memberSets) acquire(key setKey, user *policyState, sel *selector.Selector) *memberSet {
	s := m.of[key]
	if s == nil {
		s = m.newSet(key, sel, math.MaxInt, "")
		s.settleKind()
	}
	s.join(user)
	return s
}

// newSet makes the set of a key, which is not in the table yet, unless it would have more elements than limit for the
// policies of a namespace.
func (m *memberSets) newSet(key setKey, sel *selector.Selector, limit int, namespace string) *memberSet {
	s := &memberSet{in: m, key: key, hash: shortHash(fmt.Sprint(key.kind, "\x00", key.selector, "\x00", key.ports,
		"\x00", key.protocol, "\x00", key.service)), users: map[*policyState]bool{}, spaces: map[*space]*share{}}
	m.of[key] = s
	switch key.kind {
	case byService, byServicePorts:
		for _, slice := range m.services.slices[key.service] {
			s.replaceSlice(nil, slice.EndpointSlice)
		}
	default:
		weight := func(it *item) int {
			if it.key.Namespace == namespace {
				return max(1, len(it.nets))
			}
			return 1
		}
		if !m.peers.AddSelector(key, sel, limit, weight) {
			delete(m.of, key)
			return nil
		}
	}
	return s
}

// join makes a policy a user of a set.
func (s *memberSet) join(user *policyState) {
	if user.sets == nil {
		user.sets = map[setKey]bool{}
	}
	user.sets[s.key] = true
	if s.users[user] {
		return
	}
	s.users[user] = true
	if sp := user.space; sp != nil {
		if s.spaces[sp] == nil {
			s.spaces[sp] = &share{}
			s.recount(sp)
		}
		s.spaces[sp].users++
	}
}

// release ends a use; collect removes unused sets.
func (m *memberSets) release(key setKey, user *policyState) {
	delete(user.sets, key)
	s := m.of[key]
	if s == nil {
		return
	}
	m.released.add(key)
	if !s.users[user] {
		return
	}
	delete(s.users, user)
	if sp := user.space; sp != nil && s.spaces[sp] != nil {
		if s.spaces[sp].users--; s.spaces[sp].users == 0 {
			sp.elements -= s.spaces[sp].counted
			delete(s.spaces, sp)
		}
	}
}

// make creates one half in the table.
func (s *memberSet) make(i int, interval bool) {
	prefix, kind := "h", [...]ruleset.SetType{ruleset.Addresses4, ruleset.Addresses6}[i]
	switch {
	case s.key.endpoints():
		prefix, kind = "e", [...]ruleset.SetType{ruleset.Endpoints4, ruleset.Endpoints6}[i]
	case interval:
		prefix = "n"
	}
	name := fmt.Sprintf("%s%d/%s", prefix, [...]int{4, 6}[i], s.hash)
	table := s.in.table
	table.AddSet(ruleset.Set{Name: name, Type: kind, Interval: interval, Comment: s.key.String(),
		Origin: MemberSet})
	s.half[i].name = name
	s.half[i].members = members.New(interval, tableSet{table, name})
}

// tableSet is the elements of one set of the table.
type tableSet struct {
	table *ruleset.Table
	name  string
}

func (s tableSet) Add(e ruleset.Element)      { s.table.AddElement(s.name, e) }
func (s tableSet) Remove(e ruleset.Element)   { s.table.RemoveElement(s.name, e) }
func (s tableSet) Has(e ruleset.Element) bool { return s.table.Contains(s.name, e) }

// replace changes the elements of one contributor in the set. New elements come first, so that unchanged ones are not
// touched.
func (s *memberSet) replace(before, now []ruleset.Element) {
	for _, e := range now {
		s.sum += s.in.twins.hash(e)
		h := &s.half[index(e.Prefix)]
		if h.members != nil {
			h.members.Add(e)
		}
		h.size, h.wide = h.size+1, h.wide+wide(e)
	}
	for _, e := range before {
		s.sum -= s.in.twins.hash(e)
		h := &s.half[index(e.Prefix)]
		if h.members != nil {
			h.members.Remove(e)
		}
		h.size, h.wide = h.size-1, h.wide-wide(e)
	}
	s.in.dirty.add(s)
}

func wide(e ruleset.Element) int {
	if e.Prefix.IsSingleIP() {
		return 0
	}
	return 1
}

// settleKind makes each half an interval set if there are networks in it, a plain one if not, and none if it is not
// needed: the rules that use it must be written again. It reports whether something changed.
func (s *memberSet) settleKind() bool {
	changed := false
	for i := range s.half {
		h := &s.half[i]
		needed := s.leader == nil && (i == 0 || s.in.settings.ipv6 || h.size > 0)
		interval := h.wide > 0 && !s.key.endpoints()
		if have := h.members != nil; have == needed && (!have || h.members.Interval() == interval) {
			continue
		}
		if h.members != nil {
			s.in.table.DeleteSet(h.name)
			h.name, h.members = "", nil
		}
		if needed {
			s.make(i, interval)
			s.contribute(i)
		}
		changed = true
	}
	return changed
}

// contribute fills one half anew.
func (s *memberSet) contribute(i int) {
	add := func(list []ruleset.Element) {
		for _, e := range list {
			if index(e.Prefix) == i {
				s.half[i].members.Add(e)
			}
		}
	}
	switch s.key.kind {
	case byService, byServicePorts:
		for _, slice := range s.in.services.slices[s.key.service] {
			add(sliceContributions(s.key, slice.EndpointSlice))
		}
	default:
		m := s.in
		for it := range m.peers.Matches(s.key) {
			m.elements = it.contribute(m.elements[:0], s.key)
			add(m.elements)
		}
	}
}

func (c *Calculator) settleSetKinds() {
	c.sets.settle(c.settings.changed)
	for p := range c.sets.homeless {
		c.policies.dirty.add(p)
	}
}

// settle makes the sets that changed, or all, be of the right kind.
func (m *memberSets) settle(all bool) {
	if all {
		for _, s := range m.of {
			m.dirty.add(s)
		}
	}
	m.settleTwins()
	for s := range m.dirty {
		if m.of[s.key] == s && s.settleKind() {
			m.rehome(s)
			for f := range s.followers {
				m.rehome(f)
			}
		}
	}
}

// rehome has the users of a set written again, since it has another name in the table.
func (m *memberSets) rehome(s *memberSet) {
	for u := range s.users {
		m.homeless.add(u)
	}
}

// collect removes the sets that nobody uses any more.
func (m *memberSets) collect() {
	for key := range m.released {
		if s := m.of[key]; s != nil && len(s.users)+len(s.followers) == 0 {
			m.dropSet(s)
		}
	}
	m.dirty, m.homeless, m.released = nil, nil, nil
}

// dropSet removes a set from the table.
func (m *memberSets) dropSet(s *memberSet) {
	if s.key.kind == bySelector || s.key.kind == byPort {
		m.peers.ForgetSelector(s.key)
	}
	delete(m.of, s.key)
	m.twins.unlist(s)
	if l := s.leader; l != nil {
		if delete(l.followers, s); len(l.users)+len(l.followers) == 0 {
			m.dropSet(l)
		}
	}
	for _, h := range s.half {
		m.table.DeleteSet(h.name) // "" is none
	}
}

// services are the endpoints of services.
type services struct {
	slices map[Service][]namedSlice
	of     map[model.Key]Service // the service of each slice
}

// namedSlice is one of the slices of a service, of which most have one: slices are in the service's namespace.
type namedSlice struct {
	name string
	*model.EndpointSlice
}

// takeSlice enters endpoints of a service.
func (m *memberSets) takeSlice(k model.Key, slice *model.EndpointSlice) {
	service := Service{Namespace: k.Namespace}
	if slice != nil {
		if service.Name = slice.Labels[model.LabelServiceName]; service.Name == "" {
			slice = nil // rules name services
		}
	}
	was, known := m.services.of[k]
	if known && (slice == nil || was != service) {
		delete(m.services.of, k)
		m.replaceSlice(was, k, nil)
	}
	if slice != nil {
		m.services.of[k] = service
		m.replaceSlice(service, k, slice)
	}
}

func (m *memberSets) replaceSlice(service Service, k model.Key, slice *model.EndpointSlice) {
	all := m.services.slices[service]
	var old *model.EndpointSlice
	if at := slices.IndexFunc(all, func(s namedSlice) bool { return s.name == k.Name }); at >= 0 {
		old = all[at].EndpointSlice
		all = slices.Delete(all, at, at+1)
	}
	if slice != nil {
		all = append(all, namedSlice{k.Name, slice})
	}
	if m.services.slices[service] = all; len(all) == 0 {
		delete(m.services.slices, service)
	}
	for _, kind := range []setKind{byService, byServicePorts} {
		if s := m.of[setKey{kind: kind, service: service}]; s != nil {
			s.replaceSlice(old, slice)
		}
	}
}

// replaceSlice changes the elements of one slice; nil is none.
func (s *memberSet) replaceSlice(old, now *model.EndpointSlice) {
	before, after := sliceContributions(s.key, old), sliceContributions(s.key, now)
	if old != nil {
		s.weigh(s.key.service.Namespace, len(before), -1)
	}
	if now != nil {
		s.weigh(s.key.service.Namespace, len(after), 1)
	}
	s.replace(before, after)
}

func sliceContributions(key setKey, slice *model.EndpointSlice) []ruleset.Element {
	if slice == nil {
		return nil
	}
	var list []ruleset.Element
	for _, e := range slice.Endpoints {
		for _, n := range parseNets(e.Addresses) {
			if key.kind == byService {
				list = append(list, ruleset.Element{Prefix: n})
				continue
			}
			for _, p := range slice.Ports {
				if p.Port == nil || *p.Port <= 0 || *p.Port > 65535 {
					continue
				}
				protocol := uint8(protoTCP)
				if p.Protocol != nil {
					protocol = protocols[strings.ToLower(string(*p.Protocol))]
				}
				list = append(list, ruleset.Element{Prefix: n, Protocol: protocol, Low: uint16(*p.Port)})
			}
		}
	}
	return list
}

// shortHash names content; 80 bits are enough for the sets and chains of a node.
func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:10]))
}
