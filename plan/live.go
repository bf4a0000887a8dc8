package plan

import (
	"fmt"
	"maps"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/model"
)

// Live returns the State of a datastore that has these objects, in the form of AsStored. The Secrets with passwords are
// not part of it: a password counts as set, and as another one if its Secret or key is another.
func Live(objects model.Set) (State, []string) {
	stored, remarks := State{Objects: objects}.AsStored()
	return State{Objects: stored, passwords: unread{}}, remarks
}

// Applied returns the State after the objects of files were applied to a live one: they replace those of the same name,
// and all others stay. Pods and Secrets of files are left out, which the remarks report: the cluster has its own.
func (s State) Applied(files State) (State, []string) {
	var remarks []string
	given := model.Set{}
	for key, o := range files.Objects {
		if key.Kind == model.KindPod {
			remarks = append(remarks, fmt.Sprintf("%s is left out: the pods are those of the cluster", key))
			continue
		}
		given[key] = s.onTop(o)
	}
	if p, ok := files.passwords.(passwords); ok && len(p) > 0 {
		remarks = append(remarks, fmt.Sprintf("the Secrets of the files (%d) are left out: the passwords of the "+
			"cluster are not read", len(p)))
	}
	stored, more := State{Objects: given}.AsStored()
	all := maps.Clone(s.Objects)
	maps.Copy(all, stored)
	return State{Objects: all, Remarks: files.Remarks, passwords: s.passwords}, append(remarks, more...)
}

// onTop keeps what the host of a node and Calico's controllers fill in, as "apply" does.
func (s State) onTop(o *model.Object) *model.Object {
	next := o.Clone()
	n, isNode := next.Value.(*model.Node)
	if was := model.Get[model.Node](s.Objects, o.Key); isNode && was != nil {
		n.KeepFilled(was)
	}
	return next
}

// unread are passwords that nobody reads.
type unread struct{}

var _ bgp.PasswordSource = unread{}

// Password implements bgp.PasswordSource.
func (unread) Password(secret, key string) (string, error) { return secret + "/" + key, nil }

// Place implements bgp.PasswordSource.
func (unread) Place(secret, key string) string {
	return fmt.Sprintf("the Secret %s, key %s", secret, key)
}
