package policytest

import (
	"encoding/xml"
	"fmt"
	"io"
)

// suite is the part of JUnit's format that CI systems read.
type suite struct {
	XMLName  xml.Name `xml:"testsuite"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Cases    []junit  `xml:"testcase"`
}

type junit struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	File    string   `xml:"file,attr"`
	Line    int      `xml:"line,attr"`
	Failure *failure `xml:"failure"`
}

type failure struct {
	Message string `xml:"message,attr"`
}

// Failed counts the results that did not pass.
func Failed(results []Result) int {
	n := 0
	for _, r := range results {
		if !r.Passed {
			n++
		}
	}
	return n
}

// Name returns the ends and the port.
func (r Result) Name() string {
	name := r.From + " -> " + r.To
	if r.Test.Port != "" {
		name += " " + r.Test.Port
	}
	return name
}

// WriteJUnit writes the results as one JUnit test suite.
func WriteJUnit(w io.Writer, results []Result) error {
	s := suite{Name: "manxctl test", Tests: len(results), Failures: Failed(results)}
	for _, r := range results {
		c := junit{Class: fmt.Sprintf("%s:%d", r.Test.File, r.Test.Line), Name: r.Name(), File: r.Test.File,
			Line: r.Test.Line}
		if !r.Passed {
			c.Failure = &failure{r.Problem}
		}
		s.Cases = append(s.Cases, c)
	}
	text, err := xml.MarshalIndent(s, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, text)
	}
	return err
}
