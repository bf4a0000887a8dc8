package rights

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The service accounts of Manx, in the namespace of this installation.
const (
	Namespace   = "kube-system"
	Daemon      = Namespace + ":manx-node"
	Plugin      = Namespace + ":manx-cni-plugin"
	Controllers = Namespace + ":manx-controllers"
	Cleanup     = Namespace + ":manx-cleanup"
)

// The steps of TestShipped, by which rights are exercised.
const (
	Start          = "manxd starts"
	Pods           = "pods come and go through manxd"
	PluginAlone    = "pods come and go while manxd is away"
	Passwords      = "a BGPPeer names a Secret"
	Events         = "another program removes rules"
	Overlay        = "a pool gets VXLAN"
	NodeStatus     = "a CalicoNodeStatus is filled in"
	AnotherRelease = "defaults of another release are found"
	Retry          = "manxctl retry, with bad objects"
	LoadBalancer   = "a Service gets an address"
	HostEndpoints  = "HostEndpoints are made for nodes"
	OldNames       = "policies have names of before Calico 3.32"
	Carried        = "objects of Kubernetes are carried to etcd"
	NodeGone       = "a node goes"
	Deletions      = "a pool and a tier come, and are deleted"
	Mistakes       = "an object breaks a rule, another one, and the first again"
	Leave          = "Manx leaves the cluster"
	Migrate        = "objects move to the newer group, twice in vain"
)

// Migration is the value of Row.In, and the group of NewTable, for the rights of the chart's datastoreMigration: those
// that come on top of the rights in both groups.
const Migration = "migration"

// Row is a set of rights and the step of TestShipped that exercises it. A row without a step has a reason.
type Row struct {
	By, Reason string
	In         string // "kubernetes" or "etcd", empty for both: where Calico's objects are; or Migration
	Account    string
	Verbs      string // separated by blanks
	// Resources are separated by blanks: RESOURCE[.GROUP][=NAME][@NAMESPACE]. The group calico stands for that of
	// Calico's custom resources.
	Resources string
}

const (
	withoutKubeVirt = "a cluster without KubeVirt has no such objects"
	machines        = "virtualmachines.kubevirt.io virtualmachineinstances.kubevirt.io"
)

// Rows has all rights of Manx in all installations. An installation has the rights that its features need.
var Rows = []Row{
	{By: Start, Account: Daemon, Verbs: "list watch",
		Resources: "services endpointslices.discovery.k8s.io nodes pods " +
			"namespaces serviceaccounts networkpolicies.networking.k8s.io " +
			"clusternetworkpolicies.policy.networking.k8s.io bgpconfigurations.calico bgpfilters.calico " +
			"bgppeers.calico " +
			"blockaffinities.calico caliconodestatuses.calico clusterinformations.calico felixconfigurations.calico " +
			"globalnetworkpolicies.calico globalnetworksets.calico hostendpoints.calico ipamconfigs.calico " +
			"ippools.calico " +
			"ipreservations.calico networkpolicies.calico networksets.calico stagedglobalnetworkpolicies.calico " +
			"stagedkubernetesnetworkpolicies.calico stagednetworkpolicies.calico tiers.calico"},
	{By: Start, Account: Daemon, Verbs: "watch", Resources: "virtualmachineinstancemigrations.kubevirt.io"},
	{Reason: withoutKubeVirt, Account: Daemon, Verbs: "list",
		Resources: "virtualmachineinstancemigrations.kubevirt.io"},
	{By: Start, Account: Daemon, Verbs: "get", Resources: "nodes ipamhandles.calico " +
		"bgpconfigurations.calico clusterinformations.calico felixconfigurations.calico " +
		"ipamconfigs.calico tiers.calico configmaps=kubeadm-config@kube-system " +
		"configmaps=full-cluster-state@kube-system"},
	{By: Start, In: "kubernetes", Account: Daemon, Verbs: "get",
		Resources: "datastoremigrations.migration.projectcalico.org"},
	{By: Start, Account: Daemon, Verbs: "create", Resources: "bgpconfigurations.calico clusterinformations.calico " +
		"felixconfigurations.calico ippools.calico tiers.calico ipamconfigs.calico " +
		"serviceaccounts/token=manx-cni-plugin@kube-system"},
	{By: Start, Account: Daemon, Verbs: "list", Resources: "adminnetworkpolicies.policy.networking.k8s.io " +
		"baselineadminnetworkpolicies.policy.networking.k8s.io"},
	{By: Start, Account: Daemon, Verbs: "patch", Resources: "nodes/status"},
	{By: Pods, Account: Daemon, Verbs: "get", Resources: "pods namespaces blockaffinities.calico ipamblocks.calico"},
	{By: Pods, Account: Daemon, Verbs: "list", Resources: "ipamblocks.calico"},
	{By: Overlay, Account: Daemon, Verbs: "watch", Resources: "ipamblocks.calico"},
	{By: Pods, Account: Daemon, Verbs: "patch", Resources: "pods/status"},
	{By: Pods, Account: Daemon, Verbs: "create update delete",
		Resources: "blockaffinities.calico ipamblocks.calico ipamhandles.calico"},
	{By: PluginAlone, Account: Plugin, Verbs: "get", Resources: "pods nodes namespaces clusterinformations.calico " +
		"ippools.calico ipamconfigs.calico"},
	{By: PluginAlone, Account: Plugin, Verbs: "patch", Resources: "pods/status"},
	{By: PluginAlone, Account: Plugin, Verbs: "list", Resources: "blockaffinities.calico ipamblocks.calico " +
		"ippools.calico ipreservations.calico"},
	{By: PluginAlone, Account: Plugin, Verbs: "get create update delete",
		Resources: "blockaffinities.calico ipamblocks.calico ipamhandles.calico"},
	{By: Passwords, Account: Daemon, Verbs: "list watch", Resources: "secrets=tor@kube-system"},
	{By: Events, Account: Daemon, Verbs: "create patch", Resources: "events"},
	{By: NodeStatus, Account: Daemon, Verbs: "update",
		Resources: "caliconodestatuses.calico caliconodestatuses/status.calico"},
	{By: NodeStatus, Account: Daemon, Verbs: "get", Resources: "caliconodestatuses.calico"},
	{By: AnotherRelease, Account: Daemon, Verbs: "update", Resources: "clusterinformations.calico " +
		"felixconfigurations.calico"},
	{By: Retry, Account: Daemon, Verbs: "get", Resources: "clusternetworkpolicies.policy.networking.k8s.io " +
		"bgpfilters.calico bgppeers.calico globalnetworkpolicies.calico globalnetworksets.calico " +
		"hostendpoints.calico " +
		"ippools.calico ipreservations.calico networkpolicies.calico networksets.calico " +
		"stagedglobalnetworkpolicies.calico stagedkubernetesnetworkpolicies.calico stagednetworkpolicies.calico"},
	{By: Start, Account: Controllers, Verbs: "list watch", Resources: "nodes pods services " +
		"clusterinformations.calico ippools.calico ipreservations.calico " +
		"blockaffinities.calico ipamblocks.calico hostendpoints.calico kubecontrollersconfigurations.calico " +
		"networkpolicies.calico globalnetworkpolicies.calico stagednetworkpolicies.calico " +
		"stagedglobalnetworkpolicies.calico tiers.calico bgpconfigurations.calico bgpfilters.calico bgppeers.calico " +
		"caliconodestatuses.calico felixconfigurations.calico globalnetworksets.calico networksets.calico " +
		"stagedkubernetesnetworkpolicies.calico"},
	{By: Mistakes, Account: Controllers, Verbs: "create patch", Resources: "events"},
	{By: Start, In: "etcd", Account: Controllers, Verbs: "list watch", Resources: "namespaces serviceaccounts " +
		"networkpolicies.networking.k8s.io"},
	{By: Start, Account: Controllers, Verbs: "list", Resources: "deployments.apps ipamhandles.calico"},
	{By: Start, Account: Controllers, Verbs: "create", Resources: "leases.coordination.k8s.io@kube-system " +
		"kubecontrollersconfigurations.calico"},
	{By: Start, Account: Controllers, Verbs: "get update watch",
		Resources: "leases.coordination.k8s.io=manx-controllers@kube-system"},
	{By: Start, Account: Controllers, Verbs: "get update", Resources: "kubecontrollersconfigurations.calico"},
	{By: Start, Account: Controllers, Verbs: "update", Resources: "kubecontrollersconfigurations/status.calico"},
	{By: LoadBalancer, Account: Controllers, Verbs: "update", Resources: "services/status"},
	{By: LoadBalancer, Account: Controllers, Verbs: "get", Resources: "services namespaces ipamconfigs.calico"},
	{By: LoadBalancer, Account: Controllers, Verbs: "create update", Resources: "blockaffinities.calico " +
		"ipamblocks.calico ipamhandles.calico"},
	{By: LoadBalancer, Account: Controllers, Verbs: "get", Resources: "ipamblocks.calico ipamhandles.calico"},
	{By: LoadBalancer, Account: Controllers, Verbs: "delete", Resources: "ipamhandles.calico"},
	{By: Deletions, Account: Controllers, Verbs: "update",
		Resources: "ippools.calico ippools/status.calico tiers.calico tiers/status.calico"},
	{By: NodeGone, Account: Controllers, Verbs: "get delete", Resources: "blockaffinities.calico"},
	{By: NodeGone, Account: Controllers, Verbs: "delete", Resources: "ipamblocks.calico"},
	{By: HostEndpoints, Account: Controllers, Verbs: "get create update delete", Resources: "hostendpoints.calico"},
	{By: OldNames, Account: Controllers, Verbs: "get create delete", Resources: "networkpolicies.calico " +
		"globalnetworkpolicies.calico stagednetworkpolicies.calico stagedglobalnetworkpolicies.calico"},
	{By: OldNames, Account: Controllers, Verbs: "get", Resources: "daemonsets.apps=calico-node"},
	{By: Carried, Account: Controllers, Verbs: "get",
		Resources: "serviceaccounts networkpolicies.networking.k8s.io"},
	{By: Start, In: "kubernetes", Account: Controllers, Verbs: "watch", Resources: "namespaces"},
	{By: NodeGone, Account: Controllers, Verbs: "get", Resources: "nodes"},
	{By: NodeGone, In: "kubernetes", Account: Controllers, Verbs: "get", Resources: "pods"},
	{Reason: "the node of that step has no pods", In: "etcd", Account: Controllers, Verbs: "get", Resources: "pods"},
	{Reason: "it is used only if another writer changes a pool or a tier at the same moment", Account: Controllers,
		Verbs: "get", Resources: "ippools.calico tiers.calico"},
	{By: Leave, Account: Cleanup, Verbs: "list", Resources: "pods deployments.apps"},
	{By: Leave, Account: Cleanup, Verbs: "list update", Resources: "ippools.calico tiers.calico"},
	{By: Leave, Account: Cleanup, Verbs: "create", Resources: "leases.coordination.k8s.io@kube-system"},
	{By: Leave, Account: Cleanup, Verbs: "get update watch",
		Resources: "leases.coordination.k8s.io=manx-controllers@kube-system"},
	{Reason: "it is used only if another writer changes a pool or a tier at the same moment", Account: Cleanup,
		Verbs: "get", Resources: "ippools.calico tiers.calico"},
	{Reason: "a cluster with definitions of one group has no other", In: "kubernetes", Account: Controllers,
		Verbs: "get", Resources: "clusterinformations.calico"},
	{Reason: withoutKubeVirt, Account: Daemon, Verbs: "get", Resources: machines},
	{Reason: withoutKubeVirt, Account: Plugin, Verbs: "get", Resources: machines},
	{Reason: withoutKubeVirt, Account: Controllers, Verbs: "get", Resources: machines},
	{By: Start, In: "kubernetes", Account: Controllers, Verbs: "get",
		Resources: "datastoremigrations.migration.projectcalico.org"},
	{Reason: "a cluster with definitions of one group has no other", In: "kubernetes", Account: Plugin,
		Verbs: "get", Resources: "datastoremigrations.migration.projectcalico.org"},
	{By: Migrate, In: Migration, Account: Controllers, Verbs: "create delete",
		Resources: "bgpconfigurations.projectcalico.org bgpfilters.projectcalico.org " +
			"bgppeers.projectcalico.org caliconodestatuses.projectcalico.org " +
			"felixconfigurations.projectcalico.org globalnetworkpolicies.projectcalico.org " +
			"globalnetworksets.projectcalico.org ipamconfigurations.projectcalico.org " +
			"ippools.projectcalico.org ipreservations.projectcalico.org " +
			"networkpolicies.projectcalico.org networksets.projectcalico.org " +
			"stagedglobalnetworkpolicies.projectcalico.org " +
			"stagedkubernetesnetworkpolicies.projectcalico.org " +
			"stagednetworkpolicies.projectcalico.org tiers.projectcalico.org " +
			"clusterinformations.projectcalico.org"},
	{By: Migrate, In: Migration, Account: Controllers, Verbs: "update",
		Resources: "bgpconfigurations.projectcalico.org bgpfilters.projectcalico.org " +
			"bgppeers.projectcalico.org caliconodestatuses.projectcalico.org " +
			"felixconfigurations.projectcalico.org globalnetworkpolicies.projectcalico.org " +
			"globalnetworksets.projectcalico.org ipamconfigurations.projectcalico.org " +
			"ipreservations.projectcalico.org networkpolicies.projectcalico.org " +
			"networksets.projectcalico.org stagedglobalnetworkpolicies.projectcalico.org " +
			"stagedkubernetesnetworkpolicies.projectcalico.org " +
			"stagednetworkpolicies.projectcalico.org clusterinformations.projectcalico.org " +
			"clusterinformations.crd.projectcalico.org " +
			"datastoremigrations.migration.projectcalico.org " +
			"datastoremigrations/status.migration.projectcalico.org"},
	{By: Migrate, In: Migration, Account: Controllers, Verbs: "delete",
		Resources: "kubecontrollersconfigurations.projectcalico.org"},
	{By: Migrate, In: Migration, Account: Controllers, Verbs: "list",
		Resources: "ipamconfigs.crd.projectcalico.org ipamconfigurations.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io"},
	{By: Migrate, In: Migration, Account: Controllers, Verbs: "get update delete",
		Resources: "apiservices.apiregistration.k8s.io=v3.projectcalico.org"},
	{Reason: "it is used only if the API server has no APIService of its own instead", In: Migration,
		Account: Controllers, Verbs: "create", Resources: "apiservices.apiregistration.k8s.io"},
	{By: Migrate, In: Migration, Account: Controllers, Verbs: "delete",
		Resources: "customresourcedefinitions.apiextensions.k8s.io=bgpconfigurations.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=bgpfilters.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=bgppeers.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=blockaffinities.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=caliconodestatuses.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=clusterinformations.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=felixconfigurations.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=globalnetworkpolicies.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=globalnetworksets.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=hostendpoints.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=ipamblocks.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=ipamconfigs.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=ipamhandles.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=ippools.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=ipreservations.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=kubecontrollersconfigurations.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=networkpolicies.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=networksets.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=stagedglobalnetworkpolicies.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=stagedkubernetesnetworkpolicies.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=stagednetworkpolicies.crd.projectcalico.org " +
			"customresourcedefinitions.apiextensions.k8s.io=tiers.crd.projectcalico.org"},
}

// grants returns the rights of a row where Calico's custom resources are in a group.
func (r Row) grants(group string) (list []Grant) {
	for resource := range strings.FieldsSeq(r.Resources) {
		g := Grant{Account: r.Account}
		resource, g.Namespace, _ = strings.Cut(resource, "@")
		resource, g.Name, _ = strings.Cut(resource, "=")
		g.Resource, g.Group, _ = strings.Cut(resource, ".")
		if g.Group == "calico" {
			g.Group = group
			if group == "projectcalico.org" && g.Resource == "ipamconfigs" {
				g.Resource = "ipamconfigurations" // its name there
			}
		}
		for verb := range strings.FieldsSeq(r.Verbs) {
			g.Verb = verb
			list = append(list, g)
		}
	}
	return list
}

// Table maps rights to the rows that exercise them.
type Table map[Grant]Row

// NewTable returns the table of rows, where Calico's custom resources are in a group; group is empty with etcd. A right
// in two rows is an error.
func NewTable(rows []Row, group string) (Table, error) {
	t := Table{}
	for _, r := range rows {
		if (r.By == "") == (r.Reason == "") {
			return nil, fmt.Errorf("%s %s: want either what exercises these rights or a reason", r.Verbs, r.Resources)
		}
		if r.In == "etcd" && group != "" || r.In == "kubernetes" && group == "" ||
			(r.In == Migration) != (group == Migration) {
			continue
		}
		for _, g := range r.grants(group) {
			if other, twice := t[g]; twice {
				return nil, fmt.Errorf("%v has two rows: %s, %s", g, cmp.Or(other.By, other.Reason),
					cmp.Or(r.By, r.Reason))
			}
			t[g] = r
		}
	}
	return t, nil
}

// Unknown returns the grants without a row: no step needs them.
func (t Table) Unknown(grants []Grant) []Grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g Grant) bool { _, ok := t[g]; return ok })
}

// Of returns the grants that a step exercises.
func (t Table) Of(step string, grants []Grant) []Grant {
	return slices.DeleteFunc(slices.Clone(grants), func(g Grant) bool { return t[g].By != step })
}
