package plan

import (
	"maps"
	"slices"

	"github.com/manxnet/manx/datastore/conversion"
	"github.com/manxnet/manx/datastore/model"
)

// AsStored returns the objects as in Calico's datastore: Kubernetes' own kinds are converted to Calico's endpoints,
// profiles and policies. The remarks report the parts that cannot be converted.
func (s State) AsStored() (model.Set, []string) {
	keys := slices.SortedFunc(maps.Keys(s.Objects), func(a, b model.Key) int {
		return slices.Compare([]string{string(a.Kind), a.Namespace, a.Name},
			[]string{string(b.Kind), b.Namespace, b.Name})
	})
	var list []*model.Object
	for _, k := range keys {
		list = append(list, s.Objects[k])
	}
	converted, notices := conversion.FromDocuments(list)
	var remarks []string
	for _, n := range notices {
		remarks = append(remarks, n.String())
	}
	return model.NewSet(converted...), remarks
}
