// Package envflag defines flags that variables of the environment can set, too.
package envflag

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Set adds flags to a set. Each method adds one: p receives its value, usage is its line of --help, and variables are
// the names in the environment that can set it, the first one that has a value counting.
type Set struct{ *pflag.FlagSet }

// String adds a flag with a text.
func (s Set) String(p *string, name, value, usage string, variables ...string) {
	s.StringVar(p, name, value, usage)
	s.note(name, variables)
}

// Bool adds a switch.
func (s Set) Bool(p *bool, name string, value bool, usage string, variables ...string) {
	s.BoolVar(p, name, value, usage)
	s.note(name, variables)
}

// Int adds a flag with a number.
func (s Set) Int(p *int, name string, value int, usage string, variables ...string) {
	s.IntVar(p, name, value, usage)
	s.note(name, variables)
}

// Float32 adds a flag with a fraction.
func (s Set) Float32(p *float32, name string, value float32, usage string, variables ...string) {
	s.Float32Var(p, name, value, usage)
	s.note(name, variables)
}

// Duration adds a flag with a time such as 1m30s.
func (s Set) Duration(p *time.Duration, name string, value time.Duration, usage string, variables ...string) {
	s.DurationVar(p, name, value, usage)
	s.note(name, variables)
}

const annotation = "env"

// note records the variables of a flag, and shows them in its line of --help.
func (s Set) note(name string, variables []string) {
	f := s.Lookup(name)
	f.Usage += " [" + strings.Join(variables, ", ") + "]"
	f.Annotations = map[string][]string{annotation: variables}
}

// Variables returns the variables that can set a flag; false if it is not from a Set.
func Variables(f *pflag.Flag) ([]string, bool) {
	variables, ok := f.Annotations[annotation]
	return variables, ok
}

// FromEnvironment sets each flag that was not given from the first of its variables with a value. It returns the
// variable of each flag that it has set.
func FromEnvironment(flags *pflag.FlagSet, getenv func(string) string) (used map[string]string, err error) {
	used = map[string]string{}
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed {
			return
		}
		for _, variable := range f.Annotations[annotation] {
			value := getenv(variable)
			if value == "" {
				continue
			}
			if err := f.Value.Set(value); err != nil {
				if f.Value.Type() == "bool" {
					err = errors.New("want true or false")
				}
				errs = append(errs, fmt.Errorf("environment variable %s = %q: %w", variable, value, err))
			}
			used[f.Name] = variable
			return
		}
	})
	return used, errors.Join(errs...)
}
