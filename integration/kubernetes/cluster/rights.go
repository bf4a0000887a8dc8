package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	"github.com/manxnet/manx/integration/kubernetes/rights"
)

// The service accounts that Manx is installed with.
const (
	daemonAccount = namespace + ":manx-node"
	pluginAccount = namespace + ":manx-cni-plugin"
)

// policies are the kinds whose objects had other names in Calico before 3.32.
var policies = []string{"networkpolicies", "globalnetworkpolicies", "stagednetworkpolicies",
	"stagedglobalnetworkpolicies"}

// seldomUsed are rights that the steps before need not come to use.
var seldomUsed = []rights.Exception{
	{Account: daemonAccount, Verbs: []string{"get"}, Resources: append([]string{"bgpfilters", "bgppeers",
		"blockaffinities", "caliconodestatuses", "clusternetworkpolicies", "endpointslices", "globalnetworksets",
		"hostendpoints", "ippools", "ipreservations", "namespaces", "networksets", "pods", "serviceaccounts",
		"stagedkubernetesnetworkpolicies"}, policies...),
		Reason: "get, of what is watched: an object that is bad is read again when a person orders a retry"},
	{Account: daemonAccount, Verbs: []string{"create", "delete"}, Resources: policies,
		Reason: "policies: those with names of a release before Calico 3.32 are renamed"},
	{Account: daemonAccount, Verbs: []string{"get"}, Resources: []string{"daemonsets"},
		Reason: "daemonset calico-node: looked at before policies are renamed"},
	{Account: daemonAccount, Verbs: []string{"create", "update", "delete"}, Resources: []string{"hostendpoints"},
		Reason: "hostendpoints: where KubeControllersConfiguration wants one for each node"},
	{Account: daemonAccount, Verbs: []string{"update"}, Resources: []string{"clusterinformations",
		"felixconfigurations"}, Reason: "defaults of the cluster: another release changes them"},
	{Account: daemonAccount, Verbs: []string{"get"}, Resources: []string{"virtualmachines", "virtualmachineinstances"},
		Reason: "virtual machines of KubeVirt: looked at before the address of one is released"},
	{Account: daemonAccount, Resources: []string{"events"},
		Reason: "events: nothing need happen that a person should know"},
	{Account: daemonAccount, Verbs: []string{"delete"}, Resources: []string{"blockaffinities", "ipamblocks"},
		Reason: "blocks are given back when a node is deleted, or its pool"},
	{Account: pluginAccount, Verbs: []string{"list", "create", "update", "delete"}, Resources: []string{"blockaffinities",
		"ipamblocks"}, Reason: "the plugin claims, borrows from and gives back blocks when those of its node are full"},
	{Account: pluginAccount, Verbs: []string{"get"}, Resources: []string{"ippools"},
		Reason: "the plugin looks up a pool that its configuration or an annotation names"},
}

// withinRights compares the API server's audit log with the roles that are installed: no call was denied, and each
// right was used.
func (w *World) withinRights() error {
	if _, ok := w.install.(ByHand); ok {
		return nil // its roles are made here
	}
	log, err := os.Open(w.AuditLog())
	if err != nil {
		return err
	}
	defer log.Close()
	calls, err := rights.Calls(log)
	if err != nil {
		return err
	}
	out, err := w.Kubectl("get", "-A", "-o", "json", "clusterroles,clusterrolebindings,roles,rolebindings")
	if err != nil {
		return err
	}
	var objects rights.Objects
	if err := json.Unmarshal([]byte(out), &objects); err != nil {
		return err
	}
	var grants []rights.Grant
	for _, g := range rights.Grants(objects) {
		if g.Account == daemonAccount || g.Account == pluginAccount {
			grants = append(grants, g)
		}
	}
	return w.judge(calls, grants)
}

func (w *World) judge(calls []rights.Call, grants []rights.Grant) error {
	var errs []error
	if len(calls) == 0 || len(grants) == 0 {
		return fmt.Errorf("the audit log has %d calls, and there are %d rights", len(calls), len(grants))
	}
	for _, c := range rights.Denied(calls) {
		errs = append(errs, fmt.Errorf("denied: %v", c))
	}
	unused := rights.Unused(grants, calls)
	left, idle := rights.Except(seldomUsed, unused, grants)
	for _, g := range left {
		errs = append(errs, fmt.Errorf("granted and not used: %v", g))
	}
	for _, e := range idle {
		errs = append(errs, fmt.Errorf("an exception for rights that nobody has: %s", e.Reason))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d different calls, none denied; %d rights, %d of them not used:\n", len(calls), len(grants),
		len(unused))
	for _, e := range seldomUsed {
		fmt.Fprintln(&b, "  "+e.Reason)
	}
	if len(errs) == 0 {
		w.show("audit log", b.String())
	}
	return errors.Join(errs...)
}

// asked makes Manx do more than the other steps do.
const asked = `
apiVersion: projectcalico.org/v3
kind: CalicoNodeStatus
metadata: {name: node1}
spec: {node: node1, classes: [Agent, BGP, Routes], updatePeriodSeconds: 1}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: balanced}
spec: {cidr: 10.200.0.0/24, blockSize: 28, allowedUses: [LoadBalancer], nodeSelector: all(), assignmentMode: Automatic}
`

const balanced = `
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// more asks for the state of a node, and for the address of a load balancer.
func (w *World) more() error {
	if _, ok := w.install.(ByHand); ok {
		return nil // with etcd the other side of this is a matter of manxctl
	}
	if err := w.install.Store(w.Cluster, asked); err != nil {
		return err
	}
	if err := w.Apply(balanced); err != nil {
		return err
	}
	for _, q := range [][]string{{"caliconodestatuses.crd.projectcalico.org/node1", "jsonpath={.status.lastUpdated}"},
		{"service/balanced", "jsonpath={.status.loadBalancer.ingress[0].ip}"}} {
		if err := eventually(func() error {
			out, err := w.Kubectl("get", q[0], "-o", q[1])
			if err == nil && out == "" {
				err = fmt.Errorf("%s has no status", q[0])
			}
			if err == nil {
				w.show(q[0], out)
			}
			return err
		}); err != nil {
			return err
		}
	}
	_, err := w.Kubectl("delete", "service/balanced", "caliconodestatuses.crd.projectcalico.org/node1")
	return err
}

const lonely = `
apiVersion: v1
kind: Pod
metadata: {name: lonely}
spec:
  nodeName: node1
  containers: [{name: lonely, image: ` + lab.ToolsImage + `, imagePullPolicy: Never, command: [/pause]}]
`

// withoutDaemon starts and removes a pod while manxd runs nowhere: the CNI plugin uses the API itself.
func (w *World) withoutDaemon() error {
	if _, ok := w.install.(ByHand); ok {
		return nil // its image has no manx-cni-direct
	}
	selector := func(value string) error {
		patch := `{"spec":{"template":{"spec":{"nodeSelector":{"manx-is-away":` + value + `}}}}}`
		_, err := w.Kubectl("patch", "-n", namespace, "daemonset/manx-node", "-p", patch)
		return err
	}
	if err := selector(`"yes"`); err != nil {
		return err
	}
	if _, err := w.Kubectl("wait", "-n", namespace, "--for=delete", "pod", "-l", "k8s-app=manx-node",
		"--timeout=180s"); err != nil {
		return err
	}
	if err := w.Apply(lonely); err != nil {
		return err
	}
	if err := w.WaitPod("lonely"); err != nil {
		return err
	}
	if err := w.showOutput("get", "pod", "lonely", "-o", "wide"); err != nil {
		return err
	}
	if _, err := w.Kubectl("delete", "pod", "lonely", "--grace-period=1", "--timeout=120s"); err != nil {
		return err
	}
	if err := selector("null"); err != nil {
		return err
	}
	if err := w.rolledOut(); err != nil {
		return err
	}
	return w.WaitNodes()
}
