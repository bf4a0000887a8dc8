package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/pflag"

	"github.com/manxnet/manx/daemon/envflag"
	"github.com/manxnet/manx/datastore/felixconfig"
	"github.com/manxnet/manx/datastore/safefile"
	"github.com/manxnet/manx/proto/server"
)

// longestFelixFile is more than a file with all parameters needs.
const longestFelixFile = 1 << 20

// felixOptions are the settings of Felix on this host.
type felixOptions struct {
	file  string
	local *felixconfig.Local // of the environment and the file; nil: not read yet
}

// Flags implements group.
func (o *felixOptions) Flags(s envflag.Set) {
	s.String(&o.file, "felix-config-file", felixconfig.DefaultFile, "file with parameters of Felix, which come after "+
		"the variables FELIX_* and before all FelixConfigurations; a missing file has none",
		"MANX_FELIX_CONFIG_FILE")
}

// Check implements group.
func (o *felixOptions) Check() error { return nil }

// read reads the parameters of Felix in an environment, and in the file.
func (o *felixOptions) read(environment []string) error {
	var text []byte
	if o.file != "" {
		var err error
		// Its settings can switch protection off: only root may have written it.
		text, _, err = safefile.ReadTrusted(o.file, longestFelixFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--felix-config-file: %w", err)
		}
	}
	o.local = felixconfig.NewLocal(environment, o.file, string(text))
	return nil
}

// value returns the value of a variable FELIX_*, wherever this host sets it.
func (o *felixOptions) value(variable string) (v felixconfig.Value, ok bool) {
	for _, v := range o.local.Values {
		if strings.EqualFold(v.Parameter.Variable(), variable) {
			return v, true
		}
	}
	return v, false
}

// refuse returns an error for a value that breaks Felix's rule and that a flag would take.
func (o *felixOptions) refuse(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		variables, _ := envflag.Variables(f)
		for _, variable := range variables {
			if v, ok := o.value(variable); ok && v.Err != nil && err == nil {
				err = fmt.Errorf("%s is %q: %w", v.Source, v.Text, v.Err)
			}
		}
	})
	return err
}

// fromEnvironment sets the flags that were not given from variables, and from Felix's file where it has what a variable
// FELIX_* says. It returns all settings.
func (o *options) fromEnvironment(flags *pflag.FlagSet, file envFile) ([]server.Setting, error) {
	getenv, err := leftEnvironment(file.get, mountedNetworks)
	if err != nil {
		return nil, err
	}
	if _, err := envflag.FromEnvironment(flags, getenv); err != nil { // with the name of the file
		return nil, err
	}
	if err := o.felix.read(file.environment()); err != nil {
		return nil, err
	}
	if err := o.felix.refuse(flags); err != nil {
		return nil, err
	}
	used, err := envflag.FromEnvironment(flags, func(variable string) string {
		v, _ := o.felix.value(variable)
		return cmp.Or(getenv(variable), v.Text)
	})
	return settingsOf(flags, used, func(variable string) string {
		if v, ok := o.felix.value(variable); ok && file.get(variable) == "" {
			return v.Source
		}
		return file.source(variable)
	}), err
}

// localSettings returns the settings of Felix on this host, with those of flags.
func (o options) localSettings() *felixconfig.Local {
	local := felixconfig.Local{}
	if o.felix.local != nil {
		local = *o.felix.local
	}
	s := &local.Spec
	s.InterfacePrefix = cmp.Or(o.host.interfacePrefix, s.InterfacePrefix)
	s.DefaultEndpointToHostAction = cmp.Or(o.policy.toHostAction, s.DefaultEndpointToHostAction)
	s.EndpointStatusPathPrefix = cmp.Or(o.host.endpointStatusPrefix, s.EndpointStatusPathPrefix)
	return &local
}
