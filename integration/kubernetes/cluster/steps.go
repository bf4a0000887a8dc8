package cluster

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// shortSteps check that an installation works and can be removed. They leave out the properties that do not depend on
// the kind of installation.
func shortSteps(n Network) []Step {
	all := Steps(n)
	return append(all[:6:6], all[len(all)-1])
}

// Steps in their order: each needs the results of those before it.
func Steps(n Network) []Step {
	if n.Mode == WireGuard {
		return encryptedSteps()
	}
	between := []Step{
		{"the router outside is a peer of all nodes: `gobgp neighbor` shows the sessions", (*World).peerWithRouter},
		{"start pods on all nodes: each has an address of its node's block", (*World).startPods},
		{"every pod reaches every other pod across nodes", (*World).podToPod},
		{"a Service works, also by its name, and its address is announced and reached from outside", (*World).service},
	}
	if n.Mode == VXLAN {
		between = []Step{
			{"start pods on all nodes: each has an address of its node's block", (*World).startPods},
			{"every pod reaches every other pod across nodes", (*World).podToPod},
			{"packets of pods go by VXLAN to the other rack, and without a tunnel within a rack", (*World).tunnels},
			{"a Service works, also by its name, and is reached from outside at the port of a node", (*World).service},
		}
	}
	return slices.Concat([]Step{
		{"switch on three nodes: kubelets register, without a network", (*World).switchOn},
		{"install Manx: all nodes are Ready", (*World).installManx},
	}, between, []Step{
		{"a NetworkPolicy holds, and Manx names the rule that it is", (*World).networkPolicy},
		{"pods and policies come and go: no notice, and no line of the log above info", (*World).silent},
		{"kubectl manx shows all nodes, and explains a connection on the node of its source", (*World).kubectlPlugin},
		{"helm test: a pod finds all nodes ready", (*World).helmTest},
	}, interruptions(), []Step{
		{"update Manx on all nodes under traffic: nothing is lost", (*World).update},
		{"drain node3, switch it off and on: it is back with a pod that all reach", (*World).reboot},
		{"take manxd away: the CNI plugin adds and removes a pod by itself", (*World).withoutDaemon},
		{"a Service of type LoadBalancer has an address, and a CalicoNodeStatus is filled in", (*World).queryNode},
		{"the audit log: no API call was denied, and each right that Manx has is needed", (*World).withinRights},
		{"uninstall: Manx leaves nothing on the nodes", (*World).uninstall},
	})
}

// interruptions are steps that end with the earlier state.
func interruptions() []Step {
	return []Step{
		{"the control plane is away: pods talk, a DEL works, and afterwards nothing is forgotten", (*World).away},
		{"the kubelet is away between the ADD and the DEL of pods: nothing is left of them", (*World).kubeletAway},
		{"containerd is killed in the middle of an ADD: the pod has one address", (*World).containerdKilled},
	}
}

func (w *World) switchOn() error {
	tools, err := w.Tools(agnhostName)
	if err != nil {
		return err
	}
	if err := w.StartNodes(); err != nil {
		return err
	}
	if err := w.Import(tools); err != nil {
		return err
	}
	if err := w.install.Prepare(w.Cluster); err != nil {
		return err
	}
	if w.hasDNS() {
		if err := w.ImportDNS(); err != nil {
			return err
		}
	}
	for _, n := range w.Workers {
		if _, err := w.Kubectl("wait", "--for=create", lab.Timeout(120), "node/"+n.Name); err != nil {
			return err
		}
		if err := w.rememberFootprint(n); err != nil {
			return err
		}
	}
	return w.showOutput("get", "nodes", "-o", "wide")
}

// agnhostName is the name of the image in Kubernetes' own tests.
const agnhostName = "localhost/e2e/agnhost:2.53"

func (w *World) installManx() error {
	if err := w.install.Install(w.Cluster); err != nil {
		return err
	}
	if err := w.rolledOut(); err != nil {
		return err
	}
	if err := w.WaitNodes(); err != nil {
		return err
	}
	if err := w.showOutput("get", "nodes"); err != nil {
		return err
	}
	return w.showOutput("get", "pods", "-n", namespace, "-o", "wide")
}

// rolledOut waits until the DaemonSet runs its newest revision on all nodes, and so do the controllers, if they are
// apart.
func (w *World) rolledOut() error {
	apart, err := w.Kubectl("get", "deployments", "-n", namespace, "-l", "k8s-app=manx-controllers", "-o", "name")
	if err != nil {
		return err
	}
	for _, name := range append(strings.Fields(apart), "daemonset/manx-node") {
		if _, err := w.Kubectl("rollout", "status", "-n", namespace, name, lab.Timeout(240)); err != nil {
			return err
		}
	}
	return nil
}

const workloads = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        labelSelector: {matchLabels: {app: web}}
      containers:
      - name: web
        image: ` + lab.ToolsImage + `
        imagePullPolicy: Never
        args: [netexec, --http-port=8080, --udp-port=-1]
        readinessProbe: {httpGet: {port: 8080, path: /hostname}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, ipFamilyPolicy: PreferDualStack, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  nodeName: node1
  containers: [{name: client, image: ` + lab.ToolsImage + `, imagePullPolicy: Never, command: [/pause]}]
---
apiVersion: v1
kind: Pod
metadata: {name: server, labels: {app: server}}
spec:
  nodeName: node2
  containers:
  - {name: server, image: ` + lab.ToolsImage + `, imagePullPolicy: Never, command: [/traffic, -serve=:7000],
     readinessProbe: {tcpSocket: {port: 7000}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {type: NodePort, selector: {app: server}, ports: [{port: 7000}]}
`

func (w *World) startPods() error {
	if err := w.Apply(fmt.Sprintf(workloads, len(w.Workers))); err != nil {
		return err
	}
	if err := w.WaitPod("client", "server"); err != nil {
		return err
	}
	if _, err := w.Kubectl("rollout", "status", "deployment/web", lab.Timeout(180)); err != nil {
		return err
	}
	if w.hasDNS() {
		if err := w.StartDNS(); err != nil {
			return err
		}
	}
	return w.showOutput("get", "pods", "-A", "-o", "wide")
}

// pod has the data of a pod that the steps need.
type pod struct {
	name, node, ip string
	ips            []string // of all families; ip is the first one
}

// pods returns the running pods of the default namespace.
func (w *World) pods() ([]pod, error) { return w.podsOf() }

// podsOf returns the running pods that kubectl lists with these arguments, without terminating ones.
func (w *World) podsOf(args ...string) ([]pod, error) {
	out, err := w.Kubectl(append([]string{"get", "pods", "-o", "json"}, args...)...)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name, DeletionTimestamp string }
			Spec     struct{ NodeName string }
			Status   struct {
				PodIP, Phase string
				PodIPs       []struct{ IP string }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	var all []pod
	for _, i := range list.Items {
		if i.Status.Phase == "Running" && i.Metadata.DeletionTimestamp == "" {
			p := pod{name: i.Metadata.Name, node: i.Spec.NodeName, ip: i.Status.PodIP}
			for _, a := range i.Status.PodIPs {
				p.ips = append(p.ips, a.IP)
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// podToPod opens a connection from each pod to each serving pod, in each family of the cluster.
func (w *World) podToPod() error {
	pods, err := w.pods()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, from := range pods {
		for _, to := range pods {
			port := servedBy(to.name)
			if port == "" || from.name == to.name {
				continue
			}
			if want := len(w.Worker(to.node).Addresses()); len(to.ips) != want {
				return fmt.Errorf("%s has the addresses %v, want one of each family: %d", to.name, to.ips, want)
			}
			for _, ip := range to.ips {
				target := net.JoinHostPort(ip, port)
				if err := eventually(func() error { return connect(w.from(from.name, target)) }); err != nil {
					return fmt.Errorf("%s on %s does not reach %s on %s: %w", from.name, from.node, to.name, to.node,
						err)
				}
				fmt.Fprintf(&b, "%-24s %-6s -> %-24s %-6s %s\n", from.name, from.node, to.name, to.node, target)
			}
		}
	}
	w.show("who reaches whom (TCP)", b.String())
	return nil
}

func servedBy(pod string) string {
	switch {
	case strings.HasPrefix(pod, "web"):
		return "8080"
	case pod == "server":
		return "7000"
	}
	return ""
}
