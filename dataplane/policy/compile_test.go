package policy

import (
	"fmt"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
)

// The names of sets in the kernel derive from these texts. A change of one would replace the sets at an upgrade.
func TestSelectorsOfRules(t *testing.T) {
	const own, none = `projectcalico.org/namespace == "ns"`, "<nil>"
	accounts := &v3.ServiceAccountMatch{Names: []string{"b", "a", "b"}, Selector: "has(s) || all()"}
	for _, c := range []struct {
		namespace string
		in        v3.EntityRule
		want, not string
	}{
		{"", v3.EntityRule{}, none, none},
		{"ns", v3.EntityRule{}, none, none},
		{"", v3.EntityRule{Selector: " "}, "all()", none},
		{"", v3.EntityRule{NotSelector: "has(b)"}, none, "has(b)"},
		{"ns", v3.EntityRule{Selector: "has(a) && has(b)"}, "(" + own + " && (has(a) && has(b)))", none},
		{"ns", v3.EntityRule{NotSelector: "has(b)"}, "(" + own + " && !has(b))", none},
		{"", v3.EntityRule{Selector: "has(a)", NotSelector: "!has(b)"}, "(has(a) && !!has(b))", none},
		{"ns", v3.EntityRule{NamespaceSelector: "all()", Selector: "all()"},
			"(has(projectcalico.org/namespace) && all())", none},
		{"ns", v3.EntityRule{NamespaceSelector: "!global() || has(x)"},
			"(has(projectcalico.org/namespace) || has(pcns.x))", none},
		{"ns", v3.EntityRule{ServiceAccounts: accounts, Selector: "has(a)"}, "(" + own +
			` && (((has(pcsa.s) || all()) && projectcalico.org/serviceaccount in {"a", "b"}) && has(a)))`, none},
	} {
		e, err := entity(c.namespace, &c.in)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(e.Selector) != c.want || fmt.Sprint(e.NotSelector) != c.not {
			t.Errorf("%q, %+v: %s and not %s", c.namespace, c.in, e.Selector, e.NotSelector)
		}
	}
}

func TestSubjects(t *testing.T) {
	for _, c := range []struct {
		namespace, selector, namespaces, accounts string
		want                                      string // "": refused
	}{
		{"", "", "", "", "all()"},
		{"ns", "", "", "all()",
			`(projectcalico.org/namespace == "ns" && all())`},
		{"", "has(a) || all()", "has(b)", "",
			"((has(a) || has(projectcalico.org/namespace)) && has(pcns.b))"},
		{"", "", "", "all()", "has(projectcalico.org/serviceaccount)"},
		{"", "!all()", "all()", "has(c)",
			"((!has(projectcalico.org/namespace) && has(projectcalico.org/namespace)) && has(pcsa.c))"},
		{"ns", "has(a)) || (has(b)", "", "", ""}, // would reach beyond its namespace
		{"", "", "(", "", ""},
		{"", "", "", "(", ""},
	} {
		s, err := subject(spec{id: ID{Namespace: c.namespace}, GlobalNetworkPolicySpec: v3.GlobalNetworkPolicySpec{
			Selector: c.selector, NamespaceSelector: c.namespaces, ServiceAccountSelector: c.accounts}})
		if err == nil != (c.want != "") || err == nil && s.String() != c.want {
			t.Errorf("%+v: %v, %v", c, s, err)
		}
	}
}
