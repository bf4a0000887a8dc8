package cluster

import (
	"crypto/sha1" //nolint:gosec // a name, not a secret
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/manxnet/manx/integration/kubernetes/lab"
)

// outage is the time without API server: MANX_AWAY (such as 10m or 1h), or a test's default.
func outage() (time.Duration, error) {
	text := os.Getenv("MANX_AWAY")
	if text == "" {
		return 15 * time.Second, nil
	}
	return time.ParseDuration(text)
}

// closed allows connections to server only from client and from addresses outside the cluster's pods.
const closed = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec:
  podSelector: {matchLabels: {app: server}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}, {ipBlock: {cidr: 10.200.0.0/16}}]
`

func plainPod(name, node string) string {
	return `
---
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  nodeName: ` + node + `
  terminationGracePeriodSeconds: 1
  containers: [{name: ` + name + `, image: ` + lab.ToolsImage + `, imagePullPolicy: Never, command: [/pause]}]
`
}

// away ends the control plane for a while. Meanwhile pods reach each other, and policy stays in force. A DEL of the CNI
// plugin succeeds; an ADD fails with a reason until the API server is back. Afterwards the state equals the state
// before.
func (w *World) away() error {
	if _, ok := w.install.(byHand); ok {
		return nil // this reads the objects of the Kubernetes API
	}
	duration, err := outage()
	if err != nil {
		return err
	}
	if err := w.Apply(closed); err != nil {
		return err
	}
	if err := eventually(w.checkPolicy); err != nil {
		return err
	}
	before, err := w.memory()
	if err != nil {
		return err
	}
	if err := w.Apply(plainPod("gone", "node1") + plainPod("phoenix", "node1")); err != nil {
		return err
	}
	if err := w.WaitPod("gone", "phoenix"); err != nil {
		return err
	}
	err = w.during(fmt.Sprintf("%s without the API server", duration), duration, func() error {
		return w.outageOf(duration, before)
	})
	if err := errors.Join(err, w.checkReturn(before)); err != nil {
		return err
	}
	_, err = w.Kubectl("delete", "networkpolicy", "closed")
	return err
}

// outageOf is the time without API server.
func (w *World) outageOf(duration time.Duration, before *memory) error {
	end := time.Now().Add(duration)
	w.Outage()
	problems := []error{w.callsWhileAway()}
	for first := true; first || time.Now().Before(end); first = false {
		time.Sleep(min(time.Until(end), time.Minute))
		if err := w.compareKept(before); err != nil {
			problems = append(problems, fmt.Errorf("%s before the end: %w", time.Until(end).Round(time.Second), err))
		}
	}
	problems = append(problems, w.crashWhileAway(before))
	return errors.Join(append(problems, w.Return())...)
}

// crashWhileAway ends each manxd twice without the API server. BGP begins from the last state, and nothing else
// changes; the sessions count as new from then on.
func (w *World) crashWhileAway(before *memory) error {
	for range 2 {
		ended := map[*lab.Node]string{}
		for _, n := range w.Workers {
			pid, err := w.signalDaemon(n, "KILL")
			if err != nil {
				return err
			}
			ended[n] = pid
		}
		for _, n := range w.Workers {
			if _, err := w.awaitDaemon(n, ended[n]); err != nil {
				return err
			}
		}
		for _, n := range w.Workers {
			if !w.hasBGP() {
				continue // it keeps what the kernel has
			}
			err := eventually(func() (err error) {
				out, _ := w.inDaemon(n, "/manxctl", "status") // it fails: the node is not ready
				if !strings.Contains(out, "BGP and routes follow the state") {
					return fmt.Errorf("%s does not follow its last state:\n%s", n.Name, out)
				}
				before.sessions[n.Name], err = w.sessionsOf(n)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	for _, n := range w.Workers { // the last one was slowest
		var err error
		if before.sessions[n.Name], err = w.sessionsOf(n); err != nil {
			return err
		}
	}
	return w.compareKept(before)
}

// callsWhileAway calls the CNI plugin: for pod gone like a runtime, and for pod phoenix by kubelet and containerd,
// because its sandbox has died.
func (w *World) callsWhileAway() error {
	node := w.Worker("node1")
	const elsewhere = "/nonexistent/manxd.sock" // as without manxd
	if out, err := w.plugin(node, "DEL", "gone", elsewhere); err == nil || !strings.Contains(out, unreachable) {
		return fmt.Errorf("DEL without manxd and without the API server prints %s, %w", out, err)
	}
	if out, err := w.plugin(node, "DEL", "gone", ""); err != nil {
		return fmt.Errorf("DEL without the API server: %s, %w", out, err)
	}
	if links, err := node.RunIn("ip", "-o", "link"); err != nil || strings.Contains(links, hostEnd("gone")) {
		return fmt.Errorf("the interface of a pod after its DEL: %s, %w", links, err)
	}
	for _, socket := range []string{elsewhere, ""} {
		out, err := w.plugin(node, "ADD", "gone", socket)
		if err == nil || !strings.Contains(out, unreachable) {
			return fmt.Errorf("ADD without the API server prints %s, %w", out, err)
		}
		w.show("CNI ADD without the API server", out)
	}
	return w.sandboxDies(node)
}

// unreachable is a part of the plugin's errors while the API server is down.
const unreachable = "the datastore cannot be reached"

// hostEnd is the name of the host's end of a pod's interface, as Calico makes it.
func hostEnd(pod string) string {
	sum := sha1.Sum([]byte("default." + pod)) //nolint:gosec // a name, not a secret
	return "cali" + hex.EncodeToString(sum[:])[:11]
}

// sandboxDies kills the sandbox of pod phoenix. The kubelet makes another one, without the API server: containerd's DEL
// succeeds, and its ADD fails with the reason.
func (w *World) sandboxDies(node *lab.Node) error {
	id, pid, err := node.Sandbox("phoenix")
	if err != nil {
		return err
	}
	if _, err := node.RunIn("kill", "-9", pid); err != nil {
		return err
	}
	var down, refused string
	err = eventually(func() error {
		text, err := os.ReadFile(node.Log("containerd"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			switch {
			case strings.Contains(line, "TearDown network for sandbox") && strings.Contains(line, id):
				down = line
			case strings.Contains(line, "Name:phoenix") && strings.Contains(line, "failed (add)"):
				refused = line
			}
		}
		if down == "" || !strings.Contains(refused, unreachable) {
			return fmt.Errorf("containerd of the pod whose sandbox died: DEL %q, ADD %q", down, refused)
		}
		return nil
	})
	w.show("containerd, of the pod whose sandbox died", down+refused)
	return err
}

// plugin calls the CNI plugin for a pod like the container runtime of the node, with another socket of manxd if one is
// given.
func (w *World) plugin(n *lab.Node, command, pod, socket string) (string, error) {
	id, pid, err := n.Sandbox(pod)
	if err != nil {
		return "", err
	}
	text, err := n.RunIn("cat", "/etc/cni/net.d/10-calico.conflist")
	if err != nil {
		return "", err
	}
	config, err := single(text, socket)
	if err != nil {
		return "", err
	}
	return n.RunWith(strings.NewReader(config), "env", "CNI_COMMAND="+command, "CNI_CONTAINERID="+id,
		"CNI_NETNS=/proc/"+pid+"/ns/net", "CNI_IFNAME=eth0", "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod, "/opt/cni/bin/calico")
}

// single returns the configuration of a list's first plugin, as the runtime passes it.
func single(conflist, socket string) (string, error) {
	var list struct {
		Name, CNIVersion string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal([]byte(conflist), &list); err != nil {
		return "", err
	}
	if len(list.Plugins) == 0 {
		return "", errors.New("no plugin in the list")
	}
	config := list.Plugins[0]
	config["name"], config["cniVersion"] = list.Name, list.CNIVersion
	if socket != "" {
		config["manxd_socket"] = socket
	}
	text, err := json.Marshal(config)
	return string(text), err
}

// checkReturn checks the conditions after the return of the API server.
func (w *World) checkReturn(before *memory) error {
	if err := w.WaitPod("phoenix"); err != nil {
		return err
	}
	if _, err := w.Kubectl("delete", "pod", "gone", "phoenix", "--grace-period=1", "--timeout=120s"); err != nil {
		return err
	}
	if err := eventually(w.audit); err != nil {
		return fmt.Errorf("addresses after the outage: %w", err)
	}
	if err := eventually(func() error {
		after, err := w.memory()
		if err != nil {
			return err
		}
		return before.compare(after)
	}); err != nil {
		return err
	}
	return eventually(w.checkPolicy)
}

// checkPolicy opens connections that policy allows and denies, without the API server.
func (w *World) checkPolicy() error {
	target := w.serverIP + ":7000"
	if w.serverIP == "" {
		ip, err := w.podIP("server")
		if err != nil {
			return err
		}
		w.serverIP, target = ip, ip+":7000"
	}
	for _, c := range []struct {
		node, pod string
		allowed   bool
	}{{"node1", "client", true}, {w.web(), "web", false}} {
		cmd, err := w.inPod(c.node, c.pod, w.Program("agnhost"), "connect", target, "--timeout=1s")
		if err != nil {
			return err
		}
		switch err := connect(cmd); {
		case c.allowed && err != nil:
			return fmt.Errorf("%s is allowed to reach server, and does not: %w", c.pod, err)
		case !c.allowed && err == nil:
			return fmt.Errorf("%s reaches server, which the policy denies", c.pod)
		}
	}
	return nil
}

// web is a node on which a pod web runs.
func (w *World) web() string { return "node3" }

// inPod returns a command in the network of a pod. It needs neither API server nor kubelet. The beginning of its name
// selects a pod of a Deployment.
func (w *World) inPod(node, pod, name string, args ...string) (*exec.Cmd, error) {
	n := w.Worker(node)
	out, err := n.RunIn("ctr", "-n", "k8s.io", "containers", "ls", "-q",
		fmt.Sprintf(`labels."io.kubernetes.pod.name"~="^%s(-|$)",labels."io.cri-containerd.kind"==sandbox`, pod))
	if err != nil {
		return nil, err
	}
	for _, id := range strings.Fields(out) {
		if pid, err := n.PID(id); err == nil {
			return exec.Command("nsenter", append([]string{"-t", n.Init(), "--all", "--",
				"nsenter", "-t", pid, "--net", "--", name}, args...)...), nil
		}
	}
	return nil, fmt.Errorf("%s: no sandbox of pod %s runs", node, pod)
}

// during calls do while traffic flows that does not need the API server. No request may get lost.
func (w *World) during(what string, duration time.Duration, do func() error) error {
	server, err := w.podIP("server")
	if err != nil {
		return err
	}
	service, err := w.Kubectl("get", "service", "echo", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	interval := "-interval=10ms"
	if duration > time.Minute {
		interval = "-interval=100ms"
	}
	direct := []string{"-ping=" + server, "-tcp=" + server + ":7000"}
	outside, err := w.targetOutside(direct)
	outside = append(outside, interval)
	if err != nil {
		return err
	}
	podToPod, err := w.inPod("node1", "client", w.Traffic(), append([]string{interval}, direct...)...)
	if err != nil {
		return err
	}
	toService, err := w.inPod("node1", "client", w.Traffic(), interval, "-tcp="+service+":7000")
	if err != nil {
		return err
	}
	return w.underFlows(what, do, map[string]*exec.Cmd{
		"from pod client on node1 to pod server on node2": podToPod,
		"from pod client on node1 to Service echo":        toService,
		"from outside to pod server on node2":             w.outside(w.Traffic(), outside...),
	})
}

// memory is the state that must not be lost: by node the kernel's content, the age of the BGP sessions and manxd's
// process; for the cluster the datastore's objects of addresses and endpoints.
type memory struct {
	kernel   map[string][]string
	sessions map[string]string
	daemons  map[string]string
	objects  map[string]string
}

// kernelTraces are commands that list Manx's objects in the kernel.
var kernelTraces = []string{
	`ip -o link | awk -F '[:@] *' '/cali|tunl|vxlan/{print "link " $2}'`,
	`ip route show table all | grep -v ' dev lo ' | grep -v 'table local' | sed 's/^/route /'`,
	`ip rule | sed 's/^/rule /'`,
	`(bridge fdb show; ip neigh) | grep -F vxlan | sed 's/^/entry /'`,
	`nft list table inet manx | sed '/^\tcounter /,/^\t}/d' |
		sed -E 's/counter packets [0-9]+ bytes [0-9]+//; s/ (expires|timeout) [0-9a-z]+//g' |
		sed -z 's/,\n[[:space:]]*/, /g' | sed -E 's/ *[,}]$//'`, // the elements of a set are one line
}

func (w *World) kernel(n *lab.Node) ([]string, error) {
	var all []string
	for _, t := range kernelTraces {
		out, err := n.RunIn("sh", "-c", t)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	slices.Sort(all)
	return all, nil
}

// since is when a session came up, in the JSON that gobgp prints.
var since = regexp.MustCompile(`"uptime":\s*\{?\s*("seconds":\s*)?"?(\d+)`)

// sessionsOf returns the times when the BGP sessions of a node came up.
func (w *World) sessionsOf(n *lab.Node) (string, error) {
	if !w.hasBGP() {
		return "", nil
	}
	out, err := w.inDaemon(n, "/gobgp", "neighbor", "-j")
	for range 5 { // ctr 1.6 loses the output of a program that ends at once, now and then
		if err != nil || out != "" {
			break
		}
		out, err = w.inDaemon(n, "/gobgp", "neighbor", "-j")
	}
	if err != nil {
		return "", err
	}
	var times []string
	for _, m := range since.FindAllStringSubmatch(out, -1) {
		times = append(times, m[2])
	}
	slices.Sort(times)
	if len(times) != len(w.Workers) {
		return "", fmt.Errorf("%s: %d sessions have a time, want %d: %s", n.Name, len(times), len(w.Workers), out)
	}
	return strings.Join(times, " "), nil
}

// daemonOf returns the container of manxd on a node.
func (w *World) daemonOf(n *lab.Node) (string, error) {
	out, err := n.RunIn("ctr", "-n", "k8s.io", "containers", "ls", "-q",
		`labels."io.kubernetes.container.name"==manxd`)
	if err != nil {
		return "", err
	}
	for _, id := range strings.Fields(out) {
		if _, err := n.PID(id); err == nil {
			return id, nil
		}
	}
	return "", fmt.Errorf("manxd does not run on %s", n.Name)
}

// inDaemon runs a program of Manx's image beside manxd, without the API server.
func (w *World) inDaemon(n *lab.Node, program string, args ...string) (string, error) {
	id, err := w.daemonOf(n)
	if err != nil {
		return "", err
	}
	return n.RunIn("ctr", append([]string{"-n", "k8s.io", "tasks", "exec", "--exec-id",
		fmt.Sprintf("x%d", time.Now().UnixNano()), id, program}, args...)...)
}

// memory records this state.
func (w *World) memory() (*memory, error) {
	m := &memory{map[string][]string{}, map[string]string{}, map[string]string{}, map[string]string{}}
	for _, n := range w.Workers {
		var err error
		if m.kernel[n.Name], err = w.kernel(n); err != nil {
			return nil, err
		}
		if m.sessions[n.Name], err = w.sessionsOf(n); err != nil {
			return nil, err
		}
		if m.daemons[n.Name], err = w.daemonOf(n); err != nil {
			return nil, err
		}
	}
	all, err := w.allocations()
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		m.objects[a.address.String()] = a.handle
	}
	affinities, err := w.Kubectl("get", "blockaffinities.projectcalico.org", "-o", "jsonpath={.items[*].spec}")
	m.objects["affinities"] = affinities
	return m, err
}

// compareKept compares while the API server is away: no object of the earlier state may be missing.
func (w *World) compareKept(before *memory) error {
	var problems []error
	for _, n := range w.Workers {
		now, err := w.kernel(n)
		if err != nil {
			return err
		}
		for _, line := range before.kernel[n.Name] {
			if !slices.Contains(now, line) && !strings.Contains(line, "elements = ") {
				problems = append(problems, fmt.Errorf("%s: lost: %s", n.Name, line))
			}
		}
		sessions, err := w.sessionsOf(n)
		if err != nil {
			return err
		}
		if sessions != before.sessions[n.Name] {
			problems = append(problems, fmt.Errorf("%s: sessions came up at %s, and were up since %s", n.Name, sessions,
				before.sessions[n.Name]))
		}
	}
	return errors.Join(append(problems, w.checkPolicy())...)
}

// compare compares with the earlier state.
func (m *memory) compare(now *memory) error {
	var problems []error
	for node, lines := range m.kernel {
		for _, line := range lines {
			if !slices.Contains(now.kernel[node], line) {
				problems = append(problems, fmt.Errorf("%s: lost: %s", node, line))
			}
		}
		for _, line := range now.kernel[node] {
			if !slices.Contains(lines, line) {
				problems = append(problems, fmt.Errorf("%s: left over: %s", node, line))
			}
		}
		if m.sessions[node] != now.sessions[node] {
			problems = append(problems, fmt.Errorf("%s: sessions came up at %s, and were up since %s", node,
				now.sessions[node], m.sessions[node]))
		}
		if m.daemons[node] != now.daemons[node] {
			problems = append(problems, fmt.Errorf("%s: manxd was restarted", node))
		}
	}
	for what, was := range m.objects {
		if now.objects[what] != was {
			problems = append(problems, fmt.Errorf("%s: was %s, is %s", what, was, now.objects[what]))
		}
	}
	for what, is := range now.objects {
		if m.objects[what] == "" {
			problems = append(problems, fmt.Errorf("%s: left over: %s", what, is))
		}
	}
	return errors.Join(problems...)
}
