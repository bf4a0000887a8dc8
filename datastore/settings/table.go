// Package settings says what Manx does with each setting of Calico, and which of them are set for a node.
package settings

import (
	"slices"
	"strings"
	"sync"

	"github.com/manxnet/manx/datastore/felixconfig"
)

// State is what Manx does with a setting.
type State uint8

// The states.
const (
	Done        State = iota // as Calico does
	Differently              // Manx has its own way
	NotNeeded                // it is about something that Manx does not have, or does not need
	Planned                  // not done yet
	NotDone                  // not done, and not planned
)

// String returns the state for people.
func (s State) String() string {
	return [...]string{"done", "done differently", "not needed", "not done yet", "not done"}[s]
}

// The places of settings.
const (
	ofFelixPlace  = "FelixConfiguration" // also as a parameter of Felix
	Environment   = "environment"
	ofCNI         = "CNI configuration"
	ofAnnotations = "annotation"
	Kind          = "kind"
	ofHost        = "host"
)

// Row is a setting with the answer. The places of the fields of other objects than FelixConfiguration are the names of
// their Go types, such as BGPPeer and Rule.
type Row struct {
	Place string
	Name  string // as users write it
	// Variable is the name of the same setting in the environment; empty for none.
	Variable string
	State
	// Text says in a sentence what Manx does, or what happens instead; empty for a setting that is done.
	Text string
	// Holds is set for one that would leave a node unprotected or unreachable: the node does not become ready while it
	// is set, unless the name of the row is accepted.
	Holds bool
	// harmless are the values that change nothing: the default, and those that ask for what Manx does.
	harmless []string
}

// group has rows with one answer. Names are separated by white space; NAME=VALUE adds a harmless value.
type group struct {
	state State
	text  string
	names string
	holds bool
}

// Rows returns the whole table. Callers must not change it.
var Rows = sync.OnceValue(func() []Row {
	var rows []Row
	for _, g := range felix {
		rows = append(rows, felixRows(g)...)
	}
	for _, t := range []struct {
		place  string
		groups []group
	}{{Environment, variables}, {ofCNI, netconf}, {ofAnnotations, annotations}, {Kind, kinds}, {ofHost, host}} {
		for _, g := range t.groups {
			rows = append(rows, g.rows(t.place)...)
		}
	}
	for _, t := range fields {
		for _, g := range t.groups {
			rows = append(rows, g.rows(t.typ)...)
		}
	}
	return rows
})

func (g group) rows(place string) (rows []Row) {
	for word := range strings.FieldsSeq(g.names) {
		values := strings.Split(word, "=")
		rows = append(rows, Row{Place: place, Name: values[0], State: g.state, Text: g.text, Holds: g.holds,
			harmless: values[1:]})
	}
	return rows
}

// felixRows adds the parameters to rows of FelixConfiguration: a name is a field, or a parameter without a field.
func felixRows(g group) []Row {
	rows := g.rows(ofFelixPlace)
	for i, r := range rows {
		at := slices.IndexFunc(felixconfig.Parameters(), func(p felixconfig.Parameter) bool {
			return p.Field == r.Name || p.Field == "" && p.Name == r.Name
		})
		if at >= 0 {
			p := felixconfig.Parameters()[at]
			rows[i].Variable = p.Variable()
			rows[i].harmless = append(r.harmless, p.Default)
		}
	}
	return rows
}

var index = sync.OnceValue(func() map[[2]string]Row {
	m := map[[2]string]Row{}
	for _, r := range Rows() {
		m[[2]string{r.Place, r.Name}] = r
	}
	return m
})

// Find returns the row of a setting; false if there is none.
func Find(place, name string) (Row, bool) {
	r, ok := index()[[2]string{place, name}]
	return r, ok
}

// Known reports whether a setting has that name, in any place.
func Known(name string) bool {
	return slices.ContainsFunc(Rows(), func(r Row) bool { return r.Name == name })
}

// Holding returns the names of the settings that keep a node from becoming ready, in order.
func Holding() (names []string) {
	for _, r := range Rows() {
		if r.Holds {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return names
}
