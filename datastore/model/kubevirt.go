package model

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// VirtualMachineInstanceMigration is the move of a virtual machine of KubeVirt to another node, with the fields that
// nodes need. The machine runs in a pod; the pod that it moves to has the label LabelMigrationJob with the UID of the
// migration.
type VirtualMachineInstanceMigration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              struct {
		VMIName string `json:"vmiName"` // of the VirtualMachineInstance, in the same namespace
	} `json:"spec"`
	Status struct {
		Phase          string                        `json:"phase,omitempty"`
		MigrationState *VirtualMachineMigrationState `json:"migrationState,omitempty"`
	} `json:"status"`
}

// VirtualMachineMigrationState has the pods between which a machine moves, once KubeVirt knows them.
type VirtualMachineMigrationState struct {
	SourcePod string `json:"sourcePod,omitempty"`
}

// LabelMigrationJob is the label of the pod to which a virtual machine moves.
const LabelMigrationJob = "kubevirt.io/migrationJobUID"

// Succeeded reports whether the machine has moved.
func (m *VirtualMachineInstanceMigration) Succeeded() bool { return m.Status.Phase == "Succeeded" }

// Failed reports whether the move has failed.
func (m *VirtualMachineInstanceMigration) Failed() bool { return m.Status.Phase == "Failed" }
