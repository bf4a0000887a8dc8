package policy

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// excluded are the interfaces that have no host endpoint of their own, by regular expressions.
type excluded []string

// excludedBy reads interfaceExclude: names, and regular expressions in slashes, separated by commas. Expressions that
// cannot be parsed exclude nothing: bad has a sentence about each.
func excludedBy(f *model.FelixConfigurationSpec) (list excluded, bad []string) {
	for entry := range strings.SplitSeq(cmp.Or(f.InterfaceExclude, "kube-ipvs0"), ",") {
		entry = strings.TrimSpace(entry)
		expression := "^" + regexp.QuoteMeta(entry) + "$"
		if len(entry) > 2 && strings.HasPrefix(entry, "/") && strings.HasSuffix(entry, "/") {
			expression = entry[1 : len(entry)-1]
		}
		if _, err := regexp.Compile(expression); err != nil {
			bad = append(bad, "interfaceExclude: "+entry+" is no regular expression and excludes no interface")
		} else if entry != "" {
			list = append(list, expression)
		}
	}
	return list, bad
}

// matcher returns a function that reports whether an interface is one of them.
func (x excluded) matcher() func(iface string) bool {
	var all []*regexp.Regexp
	for _, expression := range x {
		all = append(all, regexp.MustCompile(expression)) // excludedBy has parsed it
	}
	return func(iface string) bool {
		return slices.ContainsFunc(all, func(r *regexp.Regexp) bool { return r.MatchString(iface) })
	}
}
