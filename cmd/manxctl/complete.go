package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore/model"
)

// completeObjects completes a kind, and then the names of its objects in the datastore.
func (c *cli) completeObjects(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	if len(args) == 0 {
		return completeKind(cmd, args, word)
	}
	if isPeers(args[0]) {
		return c.completePeers(cmd, args, word)
	}
	kind, err := findKind(args[0])
	if err != nil {
		return nil, nothing
	}
	var ns namespaces
	if f := cmd.Flag("namespace"); f != nil {
		ns.name = f.Value.String()
	}
	namespace := ""
	if kind.Namespaced {
		namespace = ns.orDefault()
	}
	return c.completeNames(cmd.Context(), kind.Kind, namespace, args[1:]), nothing
}

// completeDescribe completes what describe is about, and then its names.
func (c *cli) completeDescribe(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	const nothing = cobra.ShellCompDirectiveNoFileComp
	if len(args) == 0 {
		words := []string{"peer", "bgppeer", describedEndpoint, describedNode, describedPool}
		for _, kind := range policyKinds {
			words = append(words, strings.ToLower(string(kind)))
		}
		return words, nothing
	}
	switch describedKind(args[0]) {
	case describedEndpoint:
		return c.completePods(cmd.Context(), args[1:]), nothing
	case describedNode:
		return c.completeNames(cmd.Context(), model.KindNode, "", args[1:]), nothing
	case describedPool:
		return c.completeNames(cmd.Context(), model.KindIPPool, "", args[1:]), nothing
	}
	return c.completeObjects(cmd, args, word)
}

// completePods returns NAMESPACE/POD of all workload endpoints.
func (c *cli) completePods(ctx context.Context, given []string) (names []string) {
	for _, o := range c.objectsToComplete(ctx, model.KindWorkloadEndpoint, "") {
		w, ok := o.Value.(*model.WorkloadEndpoint)
		if !ok {
			continue
		}
		name := workloadName(o.Key, w)
		if !slices.Contains(given, name) && !strings.ContainsFunc(name, notShown) {
			names = append(names, name)
		}
	}
	return names
}

// completeNode completes the name of a node.
func (c *cli) completeNode(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.completeNames(cmd.Context(), model.KindNode, "", nil), cobra.ShellCompDirectiveNoFileComp
}

// completeNames returns the names of objects without those that are on the command line already.
func (c *cli) completeNames(ctx context.Context, kind model.Kind, namespace string, given []string) (names []string) {
	for _, o := range c.objectsToComplete(ctx, kind, namespace) {
		if name := o.Key.Name; !slices.Contains(given, name) && !strings.ContainsFunc(name, notShown) {
			names = append(names, name)
		}
	}
	return names
}

// objectsToComplete returns the objects of a kind. Without a datastore there are none, and the shell prints no error.
func (c *cli) objectsToComplete(ctx context.Context, kind model.Kind, namespace string) []*model.Object {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	quiet := *c
	quiet.err = io.Discard
	store, err := quiet.open(ctx)
	if err != nil {
		return nil
	}
	defer store.Close() //nolint:errcheck // nothing was written
	objects, _, err := store.List(ctx, kind, namespace)
	if err != nil {
		return nil
	}
	return objects
}

// notShown is set for white space and control characters, which would make another line or word of a name.
func notShown(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }
