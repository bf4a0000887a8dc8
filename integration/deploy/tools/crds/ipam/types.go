// Package ipam holds the kinds of the allocator as the Kubernetes API has them, for the schemas of their
// CustomResourceDefinitions. Their specs keep unknown fields: a newer writer may add some, and a program that rewrites
// an object keeps them.
package ipam

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPAMBlock is a range of addresses and the owner of each of them.
type IPAMBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              IPAMBlockSpec `json:"spec,omitempty"`
}

// IPAMBlockSpec is a block.
// +kubebuilder:pruning:PreserveUnknownFields
type IPAMBlockSpec struct {
	CIDR                        string           `json:"cidr"`
	Affinity                    *string          `json:"affinity,omitempty"`
	AffinityClaimTime           *metav1.Time     `json:"affinityClaimTime,omitempty"`
	Allocations                 []*Ordinal       `json:"allocations"`
	Unallocated                 []int            `json:"unallocated"`
	Attributes                  []BlockAttribute `json:"attributes"`
	SequenceNumber              int64            `json:"sequenceNumber,omitempty"`
	SequenceNumberForAllocation map[string]int64 `json:"sequenceNumberForAllocation,omitempty"`
	Deleted                     bool             `json:"deleted,omitempty"`
	// StrictAffinity is written by old releases and has no effect.
	StrictAffinity bool `json:"strictAffinity,omitempty"`
}

// Ordinal is an index into the attributes, or null for a free address.
type Ordinal int

// BlockAttribute is the purpose of an allocation.
// +kubebuilder:pruning:PreserveUnknownFields
type BlockAttribute struct {
	HandleID   *string           `json:"handle_id,omitempty"`
	Secondary  map[string]string `json:"secondary,omitempty"`
	Alternate  map[string]string `json:"alternateOwnerAttrs,omitempty"`
	ReleasedAt *metav1.Time      `json:"releasedAt,omitempty"`
}

// BlockAffinity is the claim of a host on a block.
type BlockAffinity struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              BlockAffinitySpec `json:"spec,omitempty"`
}

// BlockAffinitySpec is a claim.
// +kubebuilder:pruning:PreserveUnknownFields
type BlockAffinitySpec struct {
	State   string `json:"state"`
	Node    string `json:"node"`
	Type    string `json:"type,omitempty"`
	CIDR    string `json:"cidr"`
	Deleted bool   `json:"deleted,omitempty"`
}

// BlockAffinityV1 is the claim in the group crd.projectcalico.org, where deleted is a text.
type BlockAffinityV1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              BlockAffinitySpecV1 `json:"spec,omitempty"`
}

// BlockAffinitySpecV1 is a claim.
// +kubebuilder:pruning:PreserveUnknownFields
type BlockAffinitySpecV1 struct {
	State   string `json:"state"`
	Node    string `json:"node"`
	Type    string `json:"type,omitempty"`
	CIDR    string `json:"cidr"`
	Deleted string `json:"deleted"`
}

// IPAMHandle counts the addresses that one owner has in each block.
type IPAMHandle struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              IPAMHandleSpec `json:"spec,omitempty"`
}

// IPAMHandleSpec is a handle.
// +kubebuilder:pruning:PreserveUnknownFields
type IPAMHandleSpec struct {
	HandleID string         `json:"handleID"`
	Block    map[string]int `json:"block"`
	Deleted  bool           `json:"deleted,omitempty"`
}
