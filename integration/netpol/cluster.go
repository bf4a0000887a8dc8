package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// nameLabel is on every namespace: Kubernetes sets it.
const nameLabel = "kubernetes.io/metadata.name"

// cluster is the Kubernetes state at one moment.
type cluster struct {
	namespaces map[string]map[string]string
	pods       map[string]pod
	policies   map[string]networkingv1.NetworkPolicy // by NAMESPACE/NAME
}

func (s *step) cluster() cluster {
	c := cluster{namespaces: maps.Clone(s.Namespaces), pods: map[string]pod{},
		policies: map[string]networkingv1.NetworkPolicy{}}
	for _, p := range s.Pods {
		c.pods[p.id()] = p
	}
	for _, p := range s.Policies {
		c.policies[p.Namespace+"/"+p.Name] = p
	}
	return c
}

// initialCluster returns the cluster at the beginning of a case: without the objects that its first step creates.
func (c *tcase) initialCluster() cluster {
	first := c.Steps[0].cluster()
	first.policies = map[string]networkingv1.NetworkPolicy{}
	for _, a := range c.Steps[0].Actions {
		switch a.Kind {
		case "CreateNamespace":
			delete(first.namespaces, a.Name)
		case "CreatePod":
			delete(first.pods, a.Namespace+"/"+a.Name)
		}
	}
	return first
}

// do performs one action.
func (c *cluster) do(a action) error {
	id := a.Namespace + "/" + a.Name
	switch a.Kind {
	case "CreatePolicy", "UpdatePolicy":
		if a.Policy == nil {
			return fmt.Errorf("%s %s has no policy", a.Kind, id)
		}
		c.policies[id] = *a.Policy
	case "DeletePolicy":
		delete(c.policies, id)
	case "CreateNamespace", "SetNamespaceLabels":
		labels := map[string]string{nameLabel: a.Name}
		maps.Copy(labels, a.Labels)
		c.namespaces[a.Name] = labels
	case "DeleteNamespace":
		c.deleteNamespace(a.Name)
	case "CreatePod":
		c.pods[id] = pod{Namespace: a.Namespace, Name: a.Name, Labels: a.Labels, IP: a.IP}
	case "SetPodLabels":
		p := c.pods[id]
		p.Labels = a.Labels
		c.pods[id] = p
	case "DeletePod":
		delete(c.pods, id)
	default:
		return fmt.Errorf("action %q is unknown", a.Kind)
	}
	return nil
}

// deleteNamespace deletes a namespace with all its objects.
func (c *cluster) deleteNamespace(name string) {
	delete(c.namespaces, name)
	maps.DeleteFunc(c.pods, func(_ string, p pod) bool { return p.Namespace == name })
	maps.DeleteFunc(c.policies, func(_ string, p networkingv1.NetworkPolicy) bool { return p.Namespace == name })
}

// differs names a difference between two clusters; empty: they are equal.
func (c *cluster) differs(o cluster) string {
	switch {
	case !reflect.DeepEqual(c.namespaces, o.namespaces):
		return fmt.Sprintf("namespaces are %v, want %v", c.namespaces, o.namespaces)
	case !reflect.DeepEqual(c.pods, o.pods):
		return fmt.Sprintf("pods are %v, want %v", c.pods, o.pods)
	case !reflect.DeepEqual(c.policies, o.policies):
		return fmt.Sprintf("policies are %v, want %v", slices.Sorted(maps.Keys(c.policies)),
			slices.Sorted(maps.Keys(o.policies)))
	}
	return ""
}
