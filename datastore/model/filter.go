package model

import (
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BGPFilter is a list of rules for each direction and address family. BGPPeers name the filters of their sessions. (The
// public API module's type lacks most of the conditions and all operations.)
type BGPFilter struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              BGPFilterSpec `json:"spec,omitempty"`
}

// BGPFilterSpec has the rules. They are evaluated in order; the first that matches decides.
type BGPFilterSpec struct {
	ExportV4 []BGPFilterRule `json:"exportV4,omitempty"`
	ImportV4 []BGPFilterRule `json:"importV4,omitempty"`
	ExportV6 []BGPFilterRule `json:"exportV6,omitempty"`
	ImportV6 []BGPFilterRule `json:"importV6,omitempty"`
}

// BGPFilterRule accepts or rejects routes that meet all conditions that are set.
type BGPFilterRule struct {
	CIDR          string                   `json:"cidr,omitempty"`
	PrefixLength  *BGPFilterPrefixLength   `json:"prefixLength,omitempty"`
	Source        string                   `json:"source,omitempty"`
	Interface     string                   `json:"interface,omitempty"`
	MatchOperator string                   `json:"matchOperator,omitempty"`
	PeerType      string                   `json:"peerType,omitempty"`
	Communities   *BGPFilterCommunityMatch `json:"communities,omitempty"`
	ASPathPrefix  []numorstring.ASNumber   `json:"asPathPrefix,omitempty"`
	Priority      *int                     `json:"priority,omitempty"`
	Action        string                   `json:"action"`
	Operations    []BGPFilterOperation     `json:"operations,omitempty"`
}

// The values of a BGPFilterRule's fields.
const (
	FilterAccept = "Accept"
	FilterReject = "Reject"

	FilterEqual    = "Equal"
	FilterNotEqual = "NotEqual"
	FilterIn       = "In"
	FilterNotIn    = "NotIn"

	FilterRemotePeers = "RemotePeers"

	FilterExternalPeers = "eBGP"
	FilterInternalPeers = "iBGP"
)

// BGPFilterPrefixLength restricts a CIDR to a range of prefix lengths.
type BGPFilterPrefixLength struct {
	Min *int32 `json:"min,omitempty"`
	Max *int32 `json:"max,omitempty"`
}

// BGPFilterCommunityMatch has the community that a route must carry. There is exactly one.
type BGPFilterCommunityMatch struct {
	Values []string `json:"values"`
}

// BGPFilterOperation changes an accepted route. Exactly one field is set.
type BGPFilterOperation struct {
	AddCommunity  *BGPFilterAddCommunity  `json:"addCommunity,omitempty"`
	PrependASPath *BGPFilterPrependASPath `json:"prependASPath,omitempty"`
	SetPriority   *BGPFilterSetPriority   `json:"setPriority,omitempty"`
}

// BGPFilterAddCommunity adds a community, AA:NN or AA:NN:MM.
type BGPFilterAddCommunity struct {
	Value string `json:"value"`
}

// BGPFilterPrependASPath prepends AS numbers to the path, which then starts with them in this order.
type BGPFilterPrependASPath struct {
	Prefix []numorstring.ASNumber `json:"prefix"`
}

// BGPFilterSetPriority sets the route's metric.
type BGPFilterSetPriority struct {
	Value int `json:"value"`
}
