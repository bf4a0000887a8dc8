package policytest

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/manxnet/manx/dataplane/policy/explain"
)

// Expectation is one test: what policy is to do with the packets between two ends.
type Expectation struct {
	File string
	Line int

	From, To string // an end of explain, or NAMESPACE/PATTERN for all pods that match
	Port     string // as explain's flow: "tcp/5432"; empty is tcp without a port
	Allow    bool
	By       string // the policy or rule that has to decide; empty: any

	flow explain.Flow
}

// verdicts are the values of expect.
var verdicts = map[string]bool{"allow": true, "deny": false}

// ParseVerdict reads "allow" or "deny".
func ParseVerdict(text string) (allow bool, err error) {
	allow, ok := verdicts[text]
	if !ok {
		return false, fmt.Errorf("%q: want allow or deny", text)
	}
	return allow, nil
}

// Parse reads a list of tests in YAML or JSON. The errors have file and line.
func Parse(file string, text []byte) ([]Expectation, []error) {
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, []error{fmt.Errorf("%s: %w", file, err)}
	}
	if len(root.Content) == 0 || root.Content[0].Kind != yaml.SequenceNode || len(root.Content[0].Content) == 0 {
		return nil, []error{fmt.Errorf("%s:%d: want a list of tests, such as "+
			"\"- {from: shop/web, to: shop/db, port: tcp/5432, expect: allow}\"", file, max(root.Line, 1))}
	}
	var tests []Expectation
	var errs []error
	for _, n := range root.Content[0].Content {
		e, found := parseOne(file, n)
		tests, errs = append(tests, e), append(errs, found...)
	}
	return tests, errs
}

func parseOne(file string, n *yaml.Node) (Expectation, []error) {
	e := Expectation{File: file, Line: n.Line}
	fail := func(line int, format string, args ...any) error {
		return fmt.Errorf("%s:%d: %w", file, line, fmt.Errorf(format, args...))
	}
	if n.Kind != yaml.MappingNode {
		return e, []error{fail(n.Line, "want a test with from, to and expect")}
	}
	var errs []error
	given := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i].Value, n.Content[i+1]
		line := n.Content[i].Line
		var err error
		switch {
		case value.Kind != yaml.ScalarNode || value.Value == "":
			err = errors.New("want a text")
		case given[name]:
			err = errors.New("the field is there twice")
		case name == "from":
			e.From, err = value.Value, pattern(value.Value)
		case name == "to":
			e.To, err = value.Value, pattern(value.Value)
		case name == "port":
			e.Port = value.Value
			e.flow, err = explain.ParseFlow(value.Value)
		case name == "expect":
			e.Allow, err = ParseVerdict(value.Value)
		case name == "by":
			e.By = value.Value
		default:
			err = errors.New("there is no such field: want from, to, port, expect and by")
		}
		given[name] = true
		if err != nil {
			errs = append(errs, fail(line, "%s: %w", name, err))
		}
	}
	for _, name := range []string{"from", "to", "expect"} {
		if !given[name] {
			errs = append(errs, fail(n.Line, "%s is missing", name))
		}
	}
	if e.Port == "" {
		e.flow, _ = explain.ParseFlow("")
	}
	return e, errs
}

// isPattern reports whether an end stands for all pods that match it.
func isPattern(end string) bool { return strings.ContainsAny(end, "*?[") }

func pattern(end string) error {
	if !isPattern(end) {
		return nil
	}
	if _, err := netip.ParseAddrPort(end); err == nil { // [fd00::1]:80
		return fmt.Errorf("%q: want an address without a port; port: tcp/80 has it", end)
	}
	if strings.Count(end, "/") != 1 {
		return fmt.Errorf("%q: want NAMESPACE/POD, with * and ? for any letters", end)
	}
	if _, err := path.Match(end, ""); err != nil {
		return fmt.Errorf("%q: %w", end, err)
	}
	return nil
}
