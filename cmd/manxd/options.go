package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/manxnet/manx/daemon/envflag"
)

// group has the settings of one part, or of several that belong together. The file of the part has them.
type group interface {
	// Flags adds their flags to a set, under calico/node's variables if it has such a setting.
	Flags(envflag.Set)
	// Check refuses those that can never work. It also chooses values that depend on others.
	Check() error
}

// options are the settings of all parts; the constructor of a part gets its own.
type options struct {
	datastore   datastoreOptions
	policy      policyOptions
	flowLog     flowLogOptions
	overuse     overuseOptions
	log         logOptions
	networking  networkingOptions
	bgp         bgpOptions
	passwords   passwordOptions
	bird        birdOptions
	node        nodeOptions
	host        hostOptions
	calico      calicoOptions
	felix       felixOptions
	accept      acceptOptions
	gobgp       gobgpOptions
	web         webOptions
	control     controlOptions
	cni         cniOptions
	controllers controllersOptions
}

// all lists the settings in the order in which they are checked.
func (o *options) all() []group {
	return []group{&o.datastore, &o.policy, &o.flowLog, &o.overuse, &o.log, &o.node, &o.networking, &o.bgp, &o.web,
		&o.host, &o.gobgp, &o.control, &o.controllers, &o.passwords, &o.bird, &o.calico, &o.felix,
		&o.accept, &o.cni}
}

// flags adds the flags of all settings to a set.
func (o *options) flags(flags *pflag.FlagSet) {
	for _, s := range o.all() {
		s.Flags(envflag.Set{FlagSet: flags})
	}
}

// check refuses invalid settings, and invalid combinations, before the start.
func (o *options) check() error {
	var errs []error
	for _, s := range o.all() {
		errs = append(errs, s.Check())
	}
	if o.flowLog.on() && !o.policy.on {
		errs = append(errs, errFlowLogNeedsPolicy)
	}
	if o.policy.encryptionRequired && o.networking.policyOnly() {
		errs = append(errs, errEncryptsNothing)
	}
	registration := o.nodeConfig()
	return errors.Join(append(errs, registration.Check())...)
}
