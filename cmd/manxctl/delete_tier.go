package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// tierPolicies is the number of policies that a refusal names.
const tierPolicies = 5

// deletableTier refuses to delete a tier that every cluster has, and one with policies: they would be left without an
// order and a default action.
func deletableTier(ctx context.Context, store datastore.Store, key model.Key) error {
	fail := func(err error) error { return &datastore.KeyError{Op: "delete", Key: key, Err: err} }
	if validation.BuiltInTier(key.Name) {
		return fail(errors.New("is built in and cannot be deleted"))
	}
	var names []string
	for _, kind := range model.PolicyKinds() {
		objects, _, err := store.List(ctx, kind, "")
		if err != nil {
			return err
		}
		for _, o := range objects {
			if model.PolicyTier(o.Value) == key.Name {
				names = append(names, o.Key.String())
			}
		}
	}
	if len(names) == 0 {
		return nil
	}
	shown := strings.Join(names[:min(len(names), tierPolicies)], ", ")
	if more := len(names) - tierPolicies; more > 0 {
		shown += fmt.Sprintf(" and %d more", more)
	}
	return fail(fmt.Errorf("still has policies, move or delete them first: %s", shown))
}
