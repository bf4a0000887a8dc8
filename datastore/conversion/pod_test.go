package conversion

import (
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/manxnet/manx/datastore/codec"
	"github.com/manxnet/manx/datastore/model"
)

// parsePod reads a pod. Its default name is default/nginx, its default node is node-1.
func parsePod(t *testing.T, text string) *model.Pod {
	t.Helper()
	p := &model.Pod{}
	p.Namespace, p.Name, p.Spec.NodeName = "default", "nginx", "node-1"
	if err := yaml.Unmarshal([]byte(text), p); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p
}

func TestPodBecomesItsEndpoint(t *testing.T) {
	w, notices, err := Pod(parsePod(t, `
metadata:
  generateName: ngi
  uid: u1
  labels: {app: web, projectcalico.org/namespace: forged}
  annotations:
    cni.projectcalico.org/containerID: c0ffee
    cni.projectcalico.org/floatingIPs: '["192.0.2.5", "2001:db8::5"]'
    cni.projectcalico.org/allowedSourcePrefixes: '["10.9.0.1/16", "fd09::/32"]'
    k8s.v1.cni.cncf.io/network-status: '[{}]'
    other: x
spec:
  serviceAccountName: robot
  containers:
  - ports: [{containerPort: 80, name: http}, {containerPort: 81}, {containerPort: 53, protocol: UDP, hostPort: 5353, hostIP: 192.0.2.1}]
  initContainers:
  - ports: [{containerPort: 36412, name: s1, protocol: SCTP}]
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: "fd00::1"}]}`), "cali")
	if err != nil || len(notices) > 0 {
		t.Fatal(notices, err)
	}
	if w.Name != "node--1-k8s-nginx-eth0" || w.Namespace != "default" || w.GenerateName != "ngi" || w.UID != "u1" {
		t.Errorf("metadata %+v", w.ObjectMeta)
	}
	labels := map[string]string{"app": "web", model.LabelNamespace: "default", model.LabelOrchestrator: "k8s",
		model.LabelServiceAccount: "robot"}
	if !reflect.DeepEqual(w.Labels, labels) {
		t.Errorf("labels %v", w.Labels)
	}
	if !reflect.DeepEqual(w.Annotations, map[string]string{"k8s.v1.cni.cncf.io/network-status": "[{}]",
		"cni.projectcalico.org/floatingIPs": `["192.0.2.5", "2001:db8::5"]`}) {
		t.Errorf("annotations %v", w.Annotations)
	}
	spec, err := yaml.Marshal(w.Spec)
	if err != nil {
		t.Fatal(err)
	}
	const want = `allowSpoofedSourcePrefixes:
- 10.9.0.0/16
- fd09::/32
containerID: c0ffee
endpoint: eth0
interfaceName: calic440f455693
ipNATs:
- externalIP: 192.0.2.5
  internalIP: 10.0.0.1
- externalIP: 2001:db8::5
  internalIP: fd00::1
ipNetworks:
- 10.0.0.1/32
- fd00::1/128
node: node-1
orchestrator: k8s
pod: nginx
ports:
- hostIP: ""
  hostPort: 0
  name: http
  port: 80
  protocol: TCP
- hostIP: 192.0.2.1
  hostPort: 5353
  name: ""
  port: 53
  protocol: UDP
- hostIP: ""
  hostPort: 0
  name: s1
  port: 36412
  protocol: SCTP
profiles:
- kns.default
- ksa.default.robot
serviceAccountName: robot
`
	if string(spec) != want {
		t.Errorf("spec\n%s\nwant\n%s", spec, want)
	}
	valid(t, "pod", model.Key{Kind: model.KindWorkloadEndpoint, Namespace: w.Namespace, Name: w.Name}, w)
}

func TestPodsAddressesComeFromTheFirstThatNamesAny(t *testing.T) {
	const deleting = `deletionTimestamp: "2026-08-01T10:00:00Z", `
	for _, c := range []struct{ rule, pod, want, notice string }{ // the want of a claim ends in "claimed"
		{"status.podIPs", `{status: {podIPs: [{ip: 10.0.0.1}], podIP: 10.0.0.2}}`, "10.0.0.1/32", ""},
		{"status.podIP",
			`{status: {podIP: 10.0.0.2}, metadata: {annotations: {cni.projectcalico.org/podIPs: 10.0.0.3/32}}}`,
			"10.0.0.2/32", ""},
		{"podIPs",
			`{metadata: {annotations: {cni.projectcalico.org/podIPs: "10.0.0.3/32,fd00::3/128", cni.projectcalico.org/podIP: 10.0.0.4/32}}}`, "10.0.0.3/32 fd00::3/128 claimed", ""},
		{"podIP",
			`{metadata: {annotations: {cni.projectcalico.org/podIPs: "", cni.projectcalico.org/podIP: 10.0.0.4/32, vpc.amazonaws.com/pod-ips: 10.0.0.5}}}`, "10.0.0.4/32 claimed", ""},
		{"AWS", `{metadata: {annotations: {vpc.amazonaws.com/pod-ips: "10.0.0.5, 10.0.0.6"}}}`,
			"10.0.0.5/32 claimed", ""}, // one of each family
		{"none", `{}`, "", ""},
		{"succeeded", `{status: {podIP: 10.0.0.1, phase: Succeeded}}`, "", ""},
		{"failed", `{status: {podIP: 10.0.0.1, phase: Failed}}`, "", ""},
		{"running", `{status: {podIP: 10.0.0.1, phase: Running}}`, "10.0.0.1/32", ""},
		{"being deleted, address still there", `{metadata: {` + deleting +
			`annotations: {cni.projectcalico.org/podIP: 10.0.0.1/32}}, status: {podIP: 10.0.0.1}}`, "10.0.0.1/32", ""},
		{"being deleted, no annotation", `{metadata: {` + deleting + `annotations: {}}, status: {podIP: 10.0.0.1}}`,
			"10.0.0.1/32", ""},
		{"being deleted, address given back", `{metadata: {` + deleting +
			`annotations: {cni.projectcalico.org/podIP: ""}}, status: {podIP: 10.0.0.1}}`, "", ""},
		{"being deleted, AWS gave it back", `{metadata: {` + deleting +
			`annotations: {vpc.amazonaws.com/pod-ips: ""}}, status: {podIP: 10.0.0.1}}`, "", ""},
		{"no address", `{status: {podIPs: [{ip: 10.0.0.1/24}, {ip: "fd00::1"}]}}`, "fd00::1/128",
			`Pod default/nginx: status.podIPs = "10.0.0.1/24": must be an IP address; the address is left out`},
	} {
		w, notices, err := Pod(parsePod(t, c.pod), "cali")
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(w.Spec.IPNetworks, " ")
		if w.Spec.Claim != nil {
			got = strings.Join(append(w.Spec.Claim.IPNetworks, "claimed"), " ")
		}
		if got != c.want || sentences(notices) != c.notice {
			t.Errorf("%s: %q %q", c.rule, got, sentences(notices))
		}
	}
}

func TestPodWithoutAnEndpoint(t *testing.T) {
	for _, text := range []string{`{spec: {hostNetwork: true}}`, `{spec: {nodeName: ""}}`} {
		if w, notices, err := Pod(parsePod(t, text), "cali"); w != nil || notices != nil || err != nil {
			t.Errorf("%s: %v %v %v", text, w, notices, err)
		}
	}
	if w, _, err := Pod(parsePod(t, `{spec: {nodeName: "n-"}}`), "cali"); w != nil || err == nil ||
		!strings.Contains(err.Error(), `spec.node = "n-"`) {
		t.Errorf("%v %v", w, err)
	}
}

func TestServiceAccountWithALongNameIsNoLabel(t *testing.T) {
	for length, labelled := range map[int]bool{62: true, 63: false} {
		name := strings.Repeat("a", length)
		w, _, _ := Pod(parsePod(t, `{spec: {serviceAccountName: `+name+`}}`), "cali")
		if _, ok := w.Labels[model.LabelServiceAccount]; ok != labelled || w.Spec.ServiceAccountName != name ||
			w.Spec.Profiles[1] != "ksa.default."+name {
			t.Errorf("%d: %v %v", length, w.Labels, w.Spec)
		}
	}
}

func TestWhatIsWrongWithAPodIsLeftOut(t *testing.T) {
	for _, c := range []struct{ pod, notice string }{
		{`{metadata: {annotations: {cni.projectcalico.org/floatingIPs: "192.0.2.5"}}, status: {podIP: 10.0.0.1}}`,
			`metadata.annotations[cni.projectcalico.org/floatingIPs] = "192.0.2.5": must be a JSON list of texts`},
		{`{metadata: {annotations: {cni.projectcalico.org/floatingIPs: '["2001:db8::1"]'}}, status: {podIP: 10.0.0.1}}`,
			`must be of a family of which the pod has an address`},
		{`{metadata: {annotations: {cni.projectcalico.org/floatingIPs: '["x"]'}}, status: {podIP: 10.0.0.1}}`,
			`must be an IP address; the floating address is left out`},
		{
			`{metadata: {annotations: {cni.projectcalico.org/allowedSourcePrefixes: '["10.0.0.1"]'}}, status: {podIP: 10.0.0.1}}`, `must be a CIDR: ADDRESS/LENGTH; the prefix is left out`},
		{`{spec: {containers: [{ports: [{name: a, containerPort: 80, protocol: ICMP}]}]}, status: {podIP: 10.0.0.1}}`,
			`spec.containers[0].ports[0].protocol = "ICMP"`},
		{`{spec: {initContainers: [{ports: [{name: a, containerPort: 65536}]}]}, status: {podIP: 10.0.0.1}}`,
			`spec.initContainers[0].ports[0].containerPort = "65536"`},
		{`{spec: {containers: [{ports: [{containerPort: 1, hostPort: -1}]}]}, status: {podIP: 10.0.0.1}}`,
			`spec.containers[0].ports[0].hostPort = "-1"`},
	} {
		w, notices, err := Pod(parsePod(t, c.pod), "cali")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(sentences(notices), c.notice) {
			t.Errorf("%s: %q", c.pod, sentences(notices))
		}
		if len(w.Spec.IPNATs)+len(w.Spec.AllowSpoofedSourcePrefixes)+len(w.Spec.Ports) > 0 ||
			len(w.Spec.IPNetworks) != 1 {
			t.Errorf("%s: %+v", c.pod, w.Spec)
		}
	}
}

func TestQoSAnnotations(t *testing.T) {
	const q = "qos.projectcalico.org/"
	for _, c := range []struct {
		rule        string
		annotations map[string]string
		want        *model.QoSControls
		notice      string
	}{
		{"none", nil, nil, ""},
		{"Kubernetes' own, with the default burst", map[string]string{"kubernetes.io/ingress-bandwidth": "10M"},
			&model.QoSControls{IngressBandwidth: 10_000_000, IngressBurst: 4294967296}, ""},
		{"Calico's come first", map[string]string{"kubernetes.io/egress-bandwidth": "10M", q + "egressBandwidth": "1Mi",
			q + "egressBurst": "2k"}, &model.QoSControls{EgressBandwidth: 1 << 20, EgressBurst: 2000}, ""},
		{"all of ingress", map[string]string{q + "ingressBandwidth": "1M", q + "ingressBurst": "1M",
			q + "ingressPeakrate": "2M", q + "ingressMinburst": "1500", q + "ingressPacketRate": "100",
			q + "ingressPacketBurst": "7", q + "ingressMaxConnections": "9"},
			&model.QoSControls{IngressBandwidth: 1e6, IngressBurst: 1e6, IngressPeakrate: 2e6, IngressMinburst: 1500,
				IngressPacketRate: 100, IngressPacketBurst: 7, IngressMaxConnections: 9}, ""},
		{"default packet burst", map[string]string{q + "egressPacketRate": "1k"},
			&model.QoSControls{EgressPacketRate: 1000, EgressPacketBurst: 5}, ""},
		{"too little", map[string]string{q + "egressBandwidth": "999"},
			&model.QoSControls{EgressBandwidth: 1000, EgressBurst: 4294967296},
			`= "999": must be from 1000 to 1000000000000000; it is taken as the nearest`},
		{"negative", map[string]string{q + "egressMaxConnections": "-5"}, &model.QoSControls{EgressMaxConnections: 1},
			`= "-5": must be from 1 to 4294967295`},
		{"too much", map[string]string{q + "ingressBandwidth": "100E"},
			&model.QoSControls{IngressBandwidth: 1e15, IngressBurst: 4294967296}, `= "100E"`},
		{"far too much", map[string]string{q + "ingressPacketRate": "1e30"},
			&model.QoSControls{IngressPacketRate: 10000, IngressPacketBurst: 5}, `= "1e30"`},
		{"too long to calculate with", map[string]string{q + "ingressPacketRate": "1e999999999"}, nil,
			`= "1e999999999": must be a number`},
		{"largest burst", map[string]string{q + "ingressBandwidth": "1k", q + "ingressBurst": "34359738361"},
			&model.QoSControls{IngressBandwidth: 1000, IngressBurst: 34359738360}, `from 1000 to 34359738360`},
		{"no number", map[string]string{q + "ingressBandwidth": "fast", q + "egressPacketRate": "5"},
			&model.QoSControls{EgressPacketRate: 5, EgressPacketBurst: 5}, `= "fast": must be a number`},
		{"burst alone", map[string]string{q + "ingressBurst": "1M"}, nil,
			"needs ingressBandwidth; the annotation is left out"},
		{"peak not above bandwidth", map[string]string{q + "egressBandwidth": "2M", q + "egressPeakrate": "2M",
			q + "egressMinburst": "2k"}, &model.QoSControls{EgressBandwidth: 2e6, EgressBurst: 4294967296},
			"must be greater than egressBandwidth"},
		{"packet burst alone", map[string]string{q + "egressPacketBurst": "5"}, nil, "needs egressPacketRate"},
		{"DSCP by name", map[string]string{q + "dscp": "ef"}, &model.QoSControls{DSCP: "EF"}, ""},
		{"DSCP by number", map[string]string{q + "dscp": "63"}, &model.QoSControls{DSCP: "63"}, ""},
		{"DSCP too high", map[string]string{q + "dscp": "64"}, nil, `= "64": must be a number from 0 to 63 or a name`},
		{"DSCP unknown", map[string]string{q + "dscp": "XX"}, nil, `= "XX"`},
	} {
		in := parsePod(t, `{}`)
		in.Annotations = c.annotations
		w, notices, err := Pod(in, "cali")
		if err != nil {
			t.Fatal(err)
		}
		if got := sentences(notices); !reflect.DeepEqual(w.Spec.QoSControls, c.want) ||
			!strings.Contains(got, c.notice) || (c.notice == "") != (got == "") {
			t.Errorf("%s: %+v, notices %q", c.rule, w.Spec.QoSControls, got)
		}
	}
}

func TestProfilesCarryLabels(t *testing.T) {
	ns := &model.Namespace{}
	ns.Name, ns.Labels = "shop", map[string]string{"team": "blue", "projectcalico.org/name": "forged"}
	p := Namespace(ns)
	want := map[string]string{"pcns.team": "blue", "pcns.projectcalico.org/name": "shop"}
	if p.Name != "kns.shop" || !reflect.DeepEqual(p.Spec.LabelsToApply, want) ||
		renderRule(p.Spec.Ingress[0]) != "Allow" || renderRule(p.Spec.Egress[0]) != "Allow" {
		t.Errorf("%+v", p)
	}
	sa := &model.ServiceAccount{}
	sa.Namespace, sa.Name, sa.Labels = "shop", "robot", map[string]string{"role": "x"}
	p = ServiceAccount(sa)
	want = map[string]string{"pcsa.role": "x", "pcsa.projectcalico.org/name": "robot"}
	if p.Name != "ksa.shop.robot" || !reflect.DeepEqual(p.Spec.LabelsToApply, want) ||
		len(p.Spec.Ingress)+len(p.Spec.Egress) != 0 {
		t.Errorf("%+v", p)
	}
}

// FuzzPod checks for any pod: the conversion does not panic, and the endpoint is safe.
func FuzzPod(f *testing.F) {
	f.Add(
		[]byte(
			`{"metadata":{"annotations":{"cni.projectcalico.org/floatingIPs":"[\"192.0.2.5\"]","qos.projectcalico.org/dscp":"EF","qos.projectcalico.org/egressBandwidth":"1M"}},"spec":{"containers":[{"ports":[{"name":"a","containerPort":80}]}]},"status":{"podIP":"10.0.0.1"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		in := &model.Pod{}
		in.Namespace, in.Name, in.Spec.NodeName = "default", "nginx", "node-1"
		if yaml.Unmarshal(text, in) != nil {
			return
		}
		w, _, err := Pod(in, "cali")
		if err != nil || w == nil {
			return
		}
		key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: w.Namespace, Name: w.Name}
		data, err := codec.Encode(model.NewObject(key, w))
		if err != nil {
			t.Fatal(err)
		}
		if o := codec.Decode(key, data, 1); o.Err != nil {
			t.Fatalf("quarantined: %v", o.Err)
		}
	})
}

// The author of a pod decides how much of it is wrong: what a node keeps and logs about that has a bound.
func TestNoticesOfAPodHaveABound(t *testing.T) {
	ports := strings.TrimSuffix(strings.Repeat("{name: x, containerPort: 70000},", 1_000), ",")
	long := strings.Repeat("1", 100_000)
	for _, text := range []string{
		`{metadata: {annotations: {cni.projectcalico.org/allowedSourcePrefixes: '[` + strings.Repeat(`"",`, 80_000) +
			`""]'}}, status: {podIP: 10.0.0.1}}`,
		`{metadata: {annotations: {cni.projectcalico.org/allowedSourcePrefixes: '[` + strings.Repeat(`"",`, 1_000) +
			`""]'}}, status: {podIP: 10.0.0.1}}`,
		`{metadata: {annotations: {cni.projectcalico.org/floatingIPs: '["` + long + `"]'}}, status: {podIP: 10.0.0.1}}`,
		`{metadata: {annotations: {cni.projectcalico.org/podIPs: '` + strings.Repeat("x,", 100_000) + `'}}}`,
		`{metadata: {annotations: {qos.projectcalico.org/egressBandwidth: '` + long + `'}}, status: {podIP: 10.0.0.1}}`,
		`{spec: {containers: [{ports: [` + ports + `]}]}, status: {podIP: 10.0.0.1}}`,
	} {
		_, list, err := Pod(parsePod(t, text), "cali")
		if said := sentences(list); err != nil || len(list) == 0 || len(said) > 4096 {
			t.Errorf("%.120s: %v, %d notices with %d bytes: %.200s", text, err, len(list), len(said), said)
		}
	}
	_, list, _ := Pod(parsePod(t, `{spec: {containers: [{ports: [`+ports+`]}]}, status: {podIP: 10.0.0.1}}`), "cali")
	if last := list[len(list)-1].String(); !strings.Contains(last, "993 more parts") {
		t.Errorf("the last of %d notices is %q", len(list), last)
	}
}
