package validation

import "slices"

import "github.com/manxnet/manx/datastore/model"

// rules has the defaults and the rules of one kind.
type rules struct {
	defaults func(value any)           // nil for none
	check    func(c *check, value any) // nil for none
}

// rulesByKind has a row for each kind but those that Kubernetes alone defaults and validates.
var rulesByKind = map[model.Kind]rules{
	model.KindNode:                      newRules(nil, checkNode),
	model.KindIPPool:                    newRules(defaultIPPool, checkIPPool),
	model.KindIPReservation:             newRules(nil, checkIPReservation),
	model.KindBGPConfiguration:          newRules(defaultBGPConfiguration, checkBGPConfiguration),
	model.KindBGPFilter:                 newRules(nil, checkBGPFilter),
	model.KindBGPPeer:                   newRules(nil, checkBGPPeer),
	model.KindClusterInformation:        newRules(nil, checkClusterInformation),
	model.KindFelixConfiguration:        newRules(defaultFelixConfiguration, checkFelixConfiguration),
	model.KindIPAMConfiguration:         newRules(defaultIPAMConfiguration, checkIPAMConfiguration),
	model.KindKubeControllers:           newRules(defaultKubeControllers, checkKubeControllers),
	model.KindProfile:                   newRules(nil, checkProfile),
	model.KindTier:                      newRules(defaultTier, checkTier),
	model.KindWorkloadEndpoint:          newRules(defaultWorkloadEndpoint, checkWorkloadEndpoint),
	model.KindCalicoNodeStatus:          newRules(nil, checkCalicoNodeStatus),
	model.KindNetworkPolicy:             newRules(defaultNetworkPolicy, checkNetworkPolicy),
	model.KindGlobalNetworkPolicy:       newRules(defaultGlobalNetworkPolicy, checkGlobalNetworkPolicy),
	model.KindStagedNetworkPolicy:       newRules(defaultStagedNetworkPolicy, checkStagedNetworkPolicy),
	model.KindStagedGlobalNetworkPolicy: newRules(defaultStagedGlobalNetworkPolicy, checkStagedGlobalNetworkPolicy),
	model.KindStagedKubernetesNetworkPolicy: newRules(defaultStagedKubernetesNetworkPolicy,
		checkStagedKubernetesNetworkPolicy),
	model.KindNetworkSet:              newRules(nil, checkNetworkSet),
	model.KindGlobalNetworkSet:        newRules(nil, checkGlobalNetworkSet),
	model.KindHostEndpoint:            newRules(nil, checkHostEndpoint),
	model.KindIPAMBlock:               newRules(nil, checkStoredBlock),
	model.KindBlockAffinity:           newRules(nil, checkAffinity),
	model.KindIPAMHandle:              newRules(nil, checkHandle),
	model.KindIPAMConfig:              newRules(nil, checkIPAMConfig),
	model.KindService:                 newRules(nil, checkService),
	model.KindEndpointSlice:           newRules(nil, checkEndpointSlice),
	model.KindKubernetesNetworkPolicy: newRules(defaultKubernetesNetworkPolicy, checkKubernetesNetworkPolicy),
	model.KindClusterNetworkPolicy:    newRules(nil, checkClusterNetworkPolicy),
	model.KindMigration:               newRules(nil, func(*check, *model.VirtualMachineInstanceMigration) {}),
}

func newRules[T any](defaults func(*T), rule func(*check, *T)) rules {
	r := rules{check: func(c *check, value any) { rule(c, value.(*T)) }}
	if defaults != nil {
		r.defaults = func(value any) { defaults(value.(*T)) }
	}
	return r
}

// Default sets the defaults of Calico's stored form in a value of the kind.
func Default(kind model.Kind, value any) {
	if set := rulesByKind[kind].defaults; set != nil {
		set(value)
	}
}

// Validate lists every rule that the value breaks.
func Validate(key model.Key, value any) []model.FieldError { return brokenRules(key, value, false) }

// Unsafe lists the broken rules that make a value unsafe to use: a stored object with one is quarantined.
func Unsafe(key model.Key, value any) []model.FieldError { return brokenRules(key, value, true) }

// ValidateUpdate lists the rules that the value breaks in place of old, which may be nil: also those for changes, but
// not the ones that old already broke unless they make the value unsafe. Another writer may be of a newer version.
func ValidateUpdate(key model.Key, old, value any) []model.FieldError {
	errs := Validate(key, value)
	if len(errs) > 0 && old != nil {
		before, unsafe := Validate(key, old), Unsafe(key, value)
		errs = slices.DeleteFunc(errs, func(e model.FieldError) bool { return listed(before, e) && !listed(unsafe, e) })
	}
	if was, ok := old.(*model.IPPool); ok {
		errs = append(errs, checkPoolChange(was, value.(*model.IPPool))...)
	}
	return errs
}

func listed(errs []model.FieldError, e model.FieldError) bool {
	return slices.ContainsFunc(errs, func(x model.FieldError) bool { return x.Error() == e.Error() })
}

// brokenRules applies the rules of the kind; lenient applies only those that make the object unsafe to use.
func brokenRules(key model.Key, value any, lenient bool) []model.FieldError {
	c := &check{key: key, lenient: lenient}
	if info, _ := model.Lookup(key.Kind); info.Resource {
		checkMetadata(c, info, value)
	}
	if rule := rulesByKind[key.Kind].check; rule != nil {
		rule(c, value)
	}
	return c.errs
}
