package livemigration

import (
	"iter"

	"k8s.io/apimachinery/pkg/types"

	"github.com/manxnet/manx/datastore/model"
)

// The labels of a virtual machine's pods with the name of its VirtualMachineInstance. Versions before 1.7 have the
// second one alone.
const (
	labelInstance    = "vmi.kubevirt.io/id"
	labelMachineName = "vm.kubevirt.io/name"
)

// Roles returns the roles of the workloads of this node that move.
func Roles(r model.Reader, own iter.Seq2[model.Key, *model.Workload]) map[model.Key]Role {
	moves, sources := map[types.UID]*model.VirtualMachineInstanceMigration{}, map[string]bool{}
	for _, m := range model.All[model.VirtualMachineInstanceMigration](r, model.KindMigration) {
		if m.UID == "" || m.Spec.VMIName == "" {
			continue
		}
		moves[m.UID] = m
		if s := m.Status.MigrationState; s != nil && !m.Failed() && !m.Succeeded() {
			sources[m.Namespace+"/"+s.SourcePod] = true
		}
	}
	if len(moves) == 0 {
		return nil
	}
	roles := map[model.Key]Role{}
	for k, w := range own {
		m := moves[types.UID(w.Labels[model.LabelMigrationJob])]
		switch {
		case m != nil && m.Namespace == w.Namespace && isOf(w, m.Spec.VMIName):
			switch {
			case m.Succeeded():
				roles[k] = succeeded
			case m.Failed():
				roles[k] = failed
			default:
				roles[k] = destination
			}
		case sources[w.Namespace+"/"+w.Pod]:
			roles[k] = source
		}
	}
	return roles
}

// isOf reports whether a pod is one of a virtual machine.
func isOf(w *model.Workload, instance string) bool {
	return w.Labels[labelInstance] == instance || w.Labels[labelMachineName] == instance
}
