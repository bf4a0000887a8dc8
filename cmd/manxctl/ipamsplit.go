package main

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"net/netip"
	"strconv"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore"
	"github.com/manxnet/manx/datastore/model"
)

func (c *cli) ipamSplitCommand() *cobra.Command {
	var cidr, name string
	cmd := &cobra.Command{
		Use:   "split NUMBER (--cidr CIDR | --name POOL)",
		Short: "Replace a pool by smaller ones of the same range",
		Long: `Replace a pool by NUMBER pools of equal size, which is a power of two: "split-POOL-0", "split-POOL-1" and so on, with the
settings of the pool. Blocks and addresses stay. The datastore has to be locked ("manxctl datastore lock"): an address
that is assigned meanwhile would be in no pool.`,
		Example: "  manxctl ipam split 2 --name pods\n  manxctl ipam split 4 --cidr 10.244.0.0/16",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("ipam split wants the number of pools")
			}
			n, err := strconv.ParseUint(args[0], 10, 31)
			switch {
			case err != nil || n < 2 || bits.OnesCount64(n) != 1:
				return usagef("%q: want a power of two, such as 2 or 4", args[0])
			case (cidr == "") == (name == ""):
				return usagef("name the pool with --cidr or --name")
			}
			store, err := c.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() //nolint:errcheck // every write has been answered
			return c.splitPool(cmd.Context(), store, func(o *model.Object) bool {
				p, ok := o.Value.(*model.IPPool)
				return ok && (o.Key.Name == name || p.Spec.CIDR == cidr)
			}, int(n))
		},
	}
	cmd.Flags().StringVar(&cidr, "cidr", "", "CIDR of the pool")
	cmd.Flags().StringVar(&name, "name", "", "name of the pool")
	return cmd
}

func (c *cli) splitPool(ctx context.Context, store datastore.Store, is func(*model.Object) bool, n int) error {
	now, err := c.clusterReport(ctx, store)
	if err != nil {
		return err
	}
	if !now.DatastoreLocked {
		return errors.New("the datastore is not locked: use \"manxctl datastore lock\" first")
	}
	pools, _, err := store.List(ctx, model.KindIPPool, "")
	if err != nil {
		return err
	}
	var old *model.Object
	for _, o := range pools {
		if is(o) {
			old = o
		}
	}
	if old == nil {
		return errors.New("there is no such pool: \"manxctl get ippools\" lists them")
	}
	parts, err := partsOf(old, n)
	if err != nil {
		return err
	}
	if _, err := modifyObject(ctx, store, old.Key, modification{done: "disabled", change: func(o *model.Object) error {
		p := o.Value.(*model.IPPool)
		if !p.Spec.Disabled {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, annotationSplit, "true")
		}
		p.Spec.Disabled = true
		o.Metadata().SetFinalizers(nil) // its blocks get other pools
		return nil
	}}); err != nil {
		return err
	}
	for _, p := range parts {
		// An earlier attempt may have created it; the rule about overlaps would refuse all of them.
		if _, err := createPart(ctx, store, p); err != nil {
			return fmt.Errorf("%s is disabled and kept: %w", old.Key, err)
		}
	}
	if _, err := store.Delete(ctx, old.Key, 0); err != nil {
		return err
	}
	for _, p := range parts {
		if err := c.printf("ippool/%s created (%s)", p.Key.Name, p.Value.(*model.IPPool).Spec.CIDR); err != nil {
			return err
		}
	}
	return c.printf("ippool/%s deleted", old.Key.Name)
}

// annotationSplit is on a pool that was in use before a split has disabled it: the parts of a later attempt are in use.
const annotationSplit = "manx.io/split"

// createPart creates a pool, unless it exists.
func createPart(ctx context.Context, store datastore.Store, o *model.Object) (string, error) {
	done, err := update(ctx, store, o, keepNothing, "replaced")
	if !errors.Is(err, datastore.ErrNotFound) {
		return done, err
	}
	_, err = store.Create(ctx, o)
	return "created", err
}

// longestPoolName leaves room for the prefix and the number of a part in a name of an object.
const longestPoolName = 240

// partsOf returns the n pools that replace a pool.
func partsOf(old *model.Object, n int) ([]*model.Object, error) {
	spec := old.Value.(*model.IPPool).WithDefaults().Spec
	cidr, err := netip.ParsePrefix(spec.CIDR)
	if err != nil {
		return nil, err
	}
	length := cidr.Bits() + bits.TrailingZeros(uint(n))
	if length > spec.BlockSize {
		return nil, fmt.Errorf("%s has room for %d blocks of /%d, and not for %d pools", cidr,
			1<<(spec.BlockSize-cidr.Bits()), spec.BlockSize, n)
	}
	name := old.Key.Name[:min(len(old.Key.Name), longestPoolName)]
	step := new(big.Int).Lsh(big.NewInt(1), uint(cidr.Addr().BitLen()-length))
	first := new(big.Int).SetBytes(cidr.Masked().Addr().AsSlice())
	var parts []*model.Object
	for i := range n {
		o := old.Clone()
		o.Key.Name, o.Revision, o.Raw = fmt.Sprintf("split-%s-%d", name, i), 0, nil
		p := o.Value.(*model.IPPool)
		labels, annotations := p.Labels, p.Annotations
		if _, ok := annotations[annotationSplit]; ok {
			p.Spec.Disabled = false
			delete(annotations, annotationSplit)
		}
		p.ObjectMeta = model.IPPool{}.ObjectMeta
		p.Name, p.Labels, p.Annotations = o.Key.Name, labels, annotations
		at := new(big.Int).Add(first, new(big.Int).Mul(step, big.NewInt(int64(i))))
		addr, _ := netip.AddrFromSlice(at.FillBytes(make([]byte, cidr.Addr().BitLen()/8)))
		p.Spec.CIDR = netip.PrefixFrom(addr, length).String()
		parts = append(parts, o)
	}
	return parts, nil
}
