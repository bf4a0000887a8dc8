package lab

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Resource is a stored object as manxctl prints it.
type Resource map[string]any

// Spec is never nil.
func (r Resource) Spec() map[string]any { return r.field("spec") }

// Label gives the object a label.
func (r Resource) Label(key, value string) {
	Resource(r.field("metadata")).field("labels")[key] = value
}

func (r Resource) field(name string) map[string]any {
	m, _ := r[name].(map[string]any)
	if m == nil {
		m = map[string]any{}
		r[name] = m
	}
	return m
}

// EditEndpoint changes the WorkloadEndpoint of the pod in the datastore, as an orchestrator would.
func (p *Pod) EditEndpoint(edit func(Resource)) error {
	out, err := p.Node.Manxctl("get", "workloadendpoints", "-A", "-o", "json")
	if err != nil {
		return err
	}
	var list struct{ Items []Resource }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return err
	}
	i := slices.IndexFunc(list.Items, func(r Resource) bool { return r.Spec()["containerID"] == p.containerID() })
	if i < 0 {
		return fmt.Errorf("pod %s has no WorkloadEndpoint", p.Name)
	}
	return p.Node.edit(list.Items[i], edit)
}

// EditNode changes the Node object of that name in the datastore.
func (n *Node) EditNode(name string, edit func(Resource)) error {
	out, err := n.Manxctl("get", "node", name, "-o", "json")
	if err != nil {
		return err
	}
	var r Resource
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return err
	}
	return n.edit(r, edit)
}

func (n *Node) edit(r Resource, edit func(Resource)) error {
	edit(r)
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return n.Apply(string(text))
}
