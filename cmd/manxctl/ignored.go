package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
)

// ignored returns the settings in documents that a datastore takes, and that manxd would not use, with their lines.
func ignored(docs []manifest.Document) (errs []error) {
	of := map[string]manifest.Document{}
	objects := make([]*model.Object, len(docs))
	for i, d := range docs {
		of[string(d.Object.Key.Kind)+"/"+d.Object.Key.Name] = d
		objects[i] = d.Object
	}
	for _, n := range unusedIn(objects) {
		if d, ok := of[n.Object]; ok {
			errs = append(errs, errors.New(d.At(fieldOf(n.Reason))+": "+n.Object+": "+n.Reason))
		}
	}
	return errs
}

// unusedIn returns notices about objects: annotations that manxd does not know, values out of range, fields without
// effect. manxd finds them with the same code, on a node that is none of the cluster.
func unusedIn(objects []*model.Object) []bgp.Notice {
	const node = "(any)"
	all := []*model.Object{{Key: model.Key{Kind: model.KindNode, Name: node}, Value: &model.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "255.255.255.254/32"}}}}}
	for _, o := range objects {
		if o := o.Clone(); codec.PrepareUpdate(o) == nil {
			all = append(all, o)
		}
	}
	return slices.DeleteFunc(bgp.Compute(bgp.Input{Reader: model.NewSet(all...), Node: node}).Notices,
		func(n bgp.Notice) bool { return n.Object == "Node/"+node || aboutOthers(n.Reason) })
}

// aboutOthers reports whether a notice depends on objects that may be stored already.
func aboutOthers(reason string) bool {
	return strings.HasPrefix(reason, "spec.filters: ") || strings.HasPrefix(reason, "no Service is known")
}

var (
	inAnnotation = regexp.MustCompile(`^annotation (\S+) `)
	inField      = regexp.MustCompile(`\bspec\.[A-Za-z0-9.\[\]]*[A-Za-z0-9\]]`)
)

// fieldOf returns the field that a notice names; empty if it names none.
func fieldOf(reason string) string {
	if m := inAnnotation.FindStringSubmatch(reason); m != nil {
		return fmt.Sprintf("metadata.annotations[%q]", m[1])
	}
	return inField.FindString(reason)
}
