package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/bgp"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/manifest"
	"github.com/manxnet/manx/datastore/model"
)

// ignored returns the settings in documents that a datastore takes, and that manxd would not use: annotations that it
// does not know, values out of range, fields without effect. manxd finds them with the same code, on a node that is
// none of the cluster.
func ignored(docs []manifest.Document) []error {
	const node = "(any)"
	objects := []*model.Object{{Key: model.Key{Kind: model.KindNode, Name: node}, Value: &model.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Spec:       model.NodeSpec{BGP: &model.NodeBGPSpec{IPv4Address: "255.255.255.254/32"}}}}}
	of := map[string]manifest.Document{}
	for _, d := range docs {
		if o := d.Object.Clone(); codec.PrepareUpdate(o) == nil {
			objects = append(objects, o)
			of[string(o.Key.Kind)+"/"+o.Key.Name] = d
		}
	}
	var errs []error
	for _, n := range bgp.Compute(bgp.Input{Reader: model.NewSet(objects...), Node: node}).Notices {
		d, ok := of[n.Object]
		if !ok || aboutOthers(n.Reason) {
			continue
		}
		errs = append(errs, errors.New(d.At(fieldOf(n.Reason))+": "+n.Object+": "+n.Reason))
	}
	return errs
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
