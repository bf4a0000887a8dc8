package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// otherOutputs are commands whose output in the lab is another than that of the page, with the test that has it.
var otherOutputs = map[string]string{
	"manxctl explain":       "TestExplain",
	"manxctl test":          "TestExampleOfPolicyTests",
	"manxctl describe gnp":  "TestPolicies",
	"manxctl plan":          "TestPlan",
	"manxctl ipam releases": "TestReleases",
}

func otherOutput(c command) bool {
	for prefix := range otherOutputs {
		if strings.HasPrefix(c.text, prefix) {
			return true
		}
	}
	return false
}

var (
	heading = regexp.MustCompile(`^[A-Z][A-Z-]*( [A-Z][A-Z-]*)*$`)
	label   = regexp.MustCompile(`^[A-Z][A-Za-z ]*:`)
	varying = regexp.MustCompile(`[0-9][0-9a-f.:/]*`)
)

// form is a line without what differs from run to run: the heading of a table as it is, of a line with a label the
// label alone, and of others the text without numbers and addresses.
func form(line string) string {
	line = strings.Join(strings.Fields(line), " ")
	switch {
	case heading.MatchString(line):
		return line
	case label.MatchString(line):
		return label.FindString(line)
	}
	return varying.ReplaceAllString(line, "#")
}

// missingForms returns the lines of an output on a page that have no line of their form in a real output. Rows of
// tables, notices and what a page leaves out ("...") may differ. names replaces the names of the page.
func missingForms(page, real string, names func(string) string) (missing []string) {
	var have []string
	for line := range strings.Lines(real) {
		have = append(have, form(line))
	}
	table := false
	for line := range strings.Lines(page) {
		f := form(line)
		if f == "" || f == "..." || f == "Notice:" || table && !label.MatchString(f) {
			continue
		}
		if table = heading.MatchString(f); !table {
			f = form(names(line))
		}
		if !slices.Contains(have, f) {
			missing = append(missing, strings.TrimSpace(line))
		}
	}
	return missing
}

// A page with an output of another form is found.
func TestForms(t *testing.T) {
	const real = "Node:   n1\nHealth: ok\nPEER       AS\n10.0.0.1   65000\nnode n1: drained since 17:03:04\n"
	for page, want := range map[string]int{
		real:                  0,
		"Health:  bad\n...\n": 0,
		"PEER   AS\n10.0.0.2   1\n10.0.0.3   2\n":         0,
		"node n1: drained since 04:05:06\n":               0,
		"Healthy: ok\n":                                   1,
		"PEER   AS   PHASE\n10.0.0.2   1   Established\n": 1,
		"node n1: will be drained\n":                      1,
	} {
		if got := missingForms(page, real, strings.TrimSpace); len(got) != want {
			t.Errorf("%q: %q is missing, want %d lines", page, got, want)
		}
	}
}
