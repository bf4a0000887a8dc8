package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
	"github.com/manxnet/manx/integration/kubernetes/rights"
)

// withinRights compares the API server's audit log with the installed roles: no call was denied, and each right was
// needed, here or in the other runs of the table of rights.
func (w *World) withinRights() error {
	if _, ok := w.install.(byHand); ok {
		return nil // its roles are made here
	}
	log, err := os.Open(w.AuditLog())
	if err != nil {
		return err
	}
	defer log.Close()
	calls, err := rights.Calls(log, w.PlaneStarting)
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
		if g.Group == "crd.projectcalico.org" {
			continue // the manifests have the rights in both groups
		}
		if g.Account == rights.Daemon || g.Account == rights.Plugin || g.Account == rights.Controllers {
			grants = append(grants, g)
		}
	}
	return w.compare(calls, grants)
}

func (w *World) compare(calls []rights.Call, grants []rights.Grant) error {
	var errs []error
	if len(calls) == 0 || len(grants) == 0 {
		return fmt.Errorf("the audit log has %d calls, and there are %d rights", len(calls), len(grants))
	}
	for _, c := range rights.Denied(calls) {
		errs = append(errs, fmt.Errorf("denied: %v", c))
	}
	table, err := rights.NewTable(rights.Rows, "projectcalico.org")
	if err != nil {
		return err
	}
	for _, g := range table.Unknown(rights.Unused(grants, calls)) {
		errs = append(errs, fmt.Errorf("granted and used nowhere: %v", g))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	var b strings.Builder
	by := map[string]int{}
	for _, g := range rights.Unused(grants, calls) {
		by[cmp.Or(table[g].By, table[g].Reason)]++
	}
	fmt.Fprintf(&b, "%d different calls, none denied; %d rights. Not used here, but in TestShipped of "+
		"integration/kubernetes/rights:\n", len(calls), len(grants))
	for _, step := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(&b, "  %3d when %s\n", by[step], step)
	}
	w.show("audit log", b.String())
	return nil
}

// workOnRequest makes Manx use rights that the other steps do not need.
const workOnRequest = `
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

// queryNode queries the state of a node, and requests the address of a load balancer.
func (w *World) queryNode() error {
	if _, ok := w.install.(byHand); ok {
		return nil // with etcd, manxctl has this instead
	}
	if err := w.install.Store(w.Cluster, workOnRequest); err != nil {
		return err
	}
	if err := w.Apply(balanced); err != nil {
		return err
	}
	for _, q := range [][]string{{"caliconodestatuses.projectcalico.org/node1", "jsonpath={.status.lastUpdated}"},
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
	_, err := w.Kubectl("delete", "service/balanced", "caliconodestatuses.projectcalico.org/node1")
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
	if _, ok := w.install.(byHand); ok {
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
