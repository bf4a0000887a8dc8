package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/etcd"
	"github.com/manxnet/manx/datastore/model"
)

// exportEnd separates the three parts of an export: objects as YAML, the ClusterInformation, and the records of IPAM.
const exportEnd = "===\n"

// exportedRecords are the records of IPAM in an export, in calicoctl's form.
type exportedRecords struct {
	Affinities []exportedRecord `json:"block_affinities,omitempty"`
	Blocks     []exportedRecord `json:"blocks,omitempty"`
	Handles    []exportedRecord `json:"handles,omitempty"`
	Config     *exportedRecord  `json:"config,omitempty"`
}

// exportedRecord is a record with its path and value in etcd.
type exportedRecord struct {
	Key   string
	Value json.RawMessage
	TTL   int64
}

func (c *cli) exportCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "export",
		Short: "Print the whole datastore, to import it into another one",
		Long: `Print all objects, the ClusterInformation and the records of IPAM, in the form of "calicoctl datastore migrate
export". What Kubernetes' objects become again is left out: workload endpoints, profiles and the copies of
NetworkPolicies. A node has the name that it has in Kubernetes (spec.orchRefs), also in the objects that name it. The
datastore has to be locked: "manxctl datastore lock".`,
		Example: "  manxctl datastore export",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // nothing was written
			now, err := c.clusterReport(cmd.Context(), store)
			if err != nil {
				return err
			}
			if !now.DatastoreLocked {
				return errors.New("the datastore is not locked, and may change meanwhile: use \"manxctl datastore " +
					"lock\" first")
			}
			text, err := export(cmd.Context(), store)
			if err == nil {
				_, err = c.out.Write(text)
			}
			return err
		},
	}
}

// notExported are kinds that follow from Kubernetes' objects, or have a part of their own in the export.
var notExported = map[model.Kind]bool{model.KindWorkloadEndpoint: true, model.KindProfile: true,
	model.KindClusterInformation: true, model.KindCalicoNodeStatus: true}

func export(ctx context.Context, store datastore.Store) ([]byte, error) {
	var b bytes.Buffer
	records := exportedRecords{}
	nodes, _, err := store.List(ctx, model.KindNode, "")
	if err != nil {
		return nil, err
	}
	names, err := namesInKubernetes(nodes)
	if err != nil {
		return nil, err
	}
	for _, kind := range model.Kinds() {
		if notExported[kind.Kind] {
			continue
		}
		objects, _, err := store.List(ctx, kind.Kind, "")
		if err != nil {
			return nil, err
		}
		for _, o := range objects {
			if err := exportObject(&b, &records, names.rename(o), kind.Resource); err != nil {
				return nil, err
			}
		}
	}
	info, err := store.Get(ctx, model.ResourceKey(model.KindClusterInformation, "default"))
	if err != nil {
		return nil, err
	}
	text, err := documentJSON(info)
	if err != nil {
		return nil, err
	}
	b.WriteString(exportEnd)
	b.Write(text)
	b.WriteString(exportEnd)
	if text, err = json.MarshalIndent(records, "", "  "); err != nil {
		return nil, err
	}
	b.Write(append(text, '\n'))
	return b.Bytes(), nil
}

func exportObject(b *bytes.Buffer, records *exportedRecords, o *model.Object, resource bool) error {
	if o.Value == nil {
		return fmt.Errorf("%s is stored but cannot be read: delete it, or repair it: %w", o.Key, o.Err)
	}
	if !resource {
		return records.add(o)
	}
	if o.Key.Kind == model.KindNetworkPolicy && strings.HasPrefix(o.Key.Name, model.KubernetesPolicyPrefix) {
		return nil
	}
	text, err := documentText(exported(o, false))
	b.WriteString("---\n" + text)
	return err
}

func (r *exportedRecords) add(o *model.Object) error {
	path, err := etcd.Path(o.Key)
	if err != nil {
		return err
	}
	value, err := codec.Encode(o)
	if err != nil {
		return err
	}
	x := exportedRecord{Key: path, Value: value}
	switch o.Key.Kind {
	case model.KindBlockAffinity:
		r.Affinities = append(r.Affinities, x)
	case model.KindIPAMBlock:
		r.Blocks = append(r.Blocks, x)
	case model.KindIPAMHandle:
		r.Handles = append(r.Handles, x)
	case model.KindIPAMConfig:
		r.Config = &x
	}
	return nil
}
