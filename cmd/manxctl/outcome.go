package main

import (
	"strings"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/table"
)

// outcome is what a command that writes did with one object, in "apply -o json".
type outcome struct {
	Kind      model.Kind `json:"kind"`
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name"`
	// Result is created, configured, replaced, unchanged, skipped, valid or failed.
	Result string   `json:"result"`
	Errors []string `json:"errors,omitempty"`
}

// outcomes is the output of "apply -o json".
type outcomes struct {
	Changed bool      `json:"changed"` // an object was written; with --dry-run=server: would be
	DryRun  dryRun    `json:"dryRun"`
	Objects []outcome `json:"objects"`

	cli    *cli
	format table.Format
	errs   []error
}

func (c *cli) outcomes(format table.Format, dry dryRun) *outcomes {
	return &outcomes{DryRun: dry, Objects: []outcome{}, cli: c, format: format}
}

// add takes the result for an object. A table shows it at once.
func (s *outcomes) add(o *model.Object, done string) error {
	result, _, _ := strings.Cut(done, ":")
	s.Changed = s.Changed || result != "unchanged" && result != "skipped" && result != "valid"
	s.Objects = append(s.Objects, outcome{o.Key.Kind, o.Key.Namespace, o.Key.Name, result, nil})
	switch s.format {
	case table.Table:
		switch s.DryRun {
		case dryServer:
			done += " (server dry run)"
		case dryClient:
			done += " (dry run)"
		}
	case table.Name:
		done = ""
	default:
		return nil
	}
	return table.Names(s.cli.out, []*model.Object{o}, done)
}

// fail takes the errors of an object.
func (s *outcomes) fail(o *model.Object, errs []error) {
	x := outcome{o.Key.Kind, o.Key.Namespace, o.Key.Name, "failed", nil}
	for _, err := range errs {
		x.Errors = append(x.Errors, err.Error())
	}
	s.Objects = append(s.Objects, x)
	s.errs = append(s.errs, errs...)
}

// end prints the whole, if it is data, and returns the error of the command.
func (s *outcomes) end() error {
	if s.format == table.JSON || s.format == table.YAML {
		if err := table.Value(s.cli.out, s.format, s); err != nil {
			return err
		}
	}
	if len(s.errs) > 0 {
		return s.cli.report(s.errs)
	}
	return nil
}
