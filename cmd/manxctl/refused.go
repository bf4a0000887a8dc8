package main

import (
	"fmt"
	"strings"

	"github.com/manxnet/manx/datastore/model"
)

// refused returns the reason why users do not write an object, as calicoctl has it: another program owns it.
func refused(key model.Key) error {
	switch {
	case key.Kind == model.KindClusterInformation:
		return fmt.Errorf("%s is written by manxd and calico/node alone: \"manxctl datastore lock\" and \"unlock\" "+
			"set its datastoreReady", key)
	case key.Kind == model.KindNetworkPolicy && strings.HasPrefix(key.Name, model.KubernetesPolicyPrefix):
		return fmt.Errorf("%s is the copy of a NetworkPolicy of Kubernetes: change that with kubectl, as %s in "+
			"namespace %s", key, strings.TrimPrefix(key.Name, model.KubernetesPolicyPrefix), key.Namespace)
	}
	return nil
}
