package model

import "slices"

// rules has the defaults and the rules of one kind.
type rules struct {
	defaults func(value any)           // nil for none
	check    func(c *check, value any) // nil for none
}

// rulesByKind has a row for each kind but those that Kubernetes alone defaults and validates.
var rulesByKind = map[Kind]rules{
	KindNode:                          newRules(nil, checkNode),
	KindIPPool:                        newRules(defaultIPPool, checkIPPool),
	KindIPReservation:                 newRules(nil, checkIPReservation),
	KindBGPConfiguration:              newRules(defaultBGPConfiguration, checkBGPConfiguration),
	KindBGPFilter:                     newRules(nil, checkBGPFilter),
	KindBGPPeer:                       newRules(nil, checkBGPPeer),
	KindClusterInformation:            newRules(nil, checkClusterInformation),
	KindFelixConfiguration:            newRules(defaultFelixConfiguration, checkFelixConfiguration),
	KindIPAMConfiguration:             newRules(defaultIPAMConfiguration, checkIPAMConfiguration),
	KindKubeControllers:               newRules(defaultKubeControllers, checkKubeControllers),
	KindProfile:                       newRules(nil, checkProfile),
	KindTier:                          newRules(defaultTier, checkTier),
	KindWorkloadEndpoint:              newRules(defaultWorkloadEndpoint, checkWorkloadEndpoint),
	KindCalicoNodeStatus:              newRules(nil, checkCalicoNodeStatus),
	KindNetworkPolicy:                 newRules(defaultNetworkPolicy, checkNetworkPolicy),
	KindGlobalNetworkPolicy:           newRules(defaultGlobalNetworkPolicy, checkGlobalNetworkPolicy),
	KindStagedNetworkPolicy:           newRules(defaultStagedNetworkPolicy, checkStagedNetworkPolicy),
	KindStagedGlobalNetworkPolicy:     newRules(defaultStagedGlobalNetworkPolicy, checkStagedGlobalNetworkPolicy),
	KindStagedKubernetesNetworkPolicy: newRules(defaultStagedKubernetesNetworkPolicy, checkStagedKubernetesNetworkPolicy),
	KindNetworkSet:                    newRules(nil, checkNetworkSet),
	KindGlobalNetworkSet:              newRules(nil, checkGlobalNetworkSet),
	KindHostEndpoint:                  newRules(nil, checkHostEndpoint),
	KindIPAMBlock:                     newRules(nil, checkStoredBlock),
	KindBlockAffinity:                 newRules(nil, checkAffinity),
	KindIPAMHandle:                    newRules(nil, checkHandle),
	KindIPAMConfig:                    newRules(nil, checkIPAMConfig),
	KindService:                       newRules(nil, checkService),
	KindEndpointSlice:                 newRules(nil, checkEndpointSlice),
	KindKubernetesNetworkPolicy:       newRules(defaultKubernetesNetworkPolicy, checkKubernetesNetworkPolicy),
	KindClusterNetworkPolicy:          newRules(nil, checkClusterNetworkPolicy),
}

func newRules[T any](defaults func(*T), rule func(*check, *T)) rules {
	r := rules{check: func(c *check, value any) { rule(c, value.(*T)) }}
	if defaults != nil {
		r.defaults = func(value any) { defaults(value.(*T)) }
	}
	return r
}

// Default sets the defaults of Calico's stored form in a value of the kind.
func Default(kind Kind, value any) {
	if set := rulesByKind[kind].defaults; set != nil {
		set(value)
	}
}

// Validate lists every rule that the value breaks.
func Validate(key Key, value any) []FieldError { return broken(key, value, false) }

// Unsafe lists the broken rules that make a value unsafe to use: a stored object with one is quarantined.
func Unsafe(key Key, value any) []FieldError { return broken(key, value, true) }

// ValidateUpdate lists the rules that the value breaks in place of old, which may be nil: also those for changes, but
// not the ones that old already broke unless they make the value unsafe. Another writer may be of a newer version.
func ValidateUpdate(key Key, old, value any) []FieldError {
	errs := Validate(key, value)
	if len(errs) > 0 && old != nil {
		before, unsafe := Validate(key, old), Unsafe(key, value)
		errs = slices.DeleteFunc(errs, func(e FieldError) bool { return listed(before, e) && !listed(unsafe, e) })
	}
	if was, ok := old.(*IPPool); ok {
		errs = append(errs, checkPoolChange(was, value.(*IPPool))...)
	}
	return errs
}

func listed(errs []FieldError, e FieldError) bool {
	return slices.ContainsFunc(errs, func(x FieldError) bool { return x.Error() == e.Error() })
}

// broken applies the rules of the kind; lenient applies only those that make the object unsafe to use.
func broken(key Key, value any, lenient bool) []FieldError {
	c := &check{key: key, lenient: lenient}
	if info, _ := Lookup(key.Kind); info.Resource {
		checkMetadata(c, info, value)
	}
	if rule := rulesByKind[key.Kind].check; rule != nil {
		rule(c, value)
	}
	return c.errs
}
