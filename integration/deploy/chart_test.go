package deploy

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const chart = "../../deploy/charts/manx"

// helm runs helm and returns its output.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command("./tool", append([]string{"helm"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+
		t.TempDir())
	err := cmd.Run()
	return out.String() + errs.String(), err
}

const (
	objectsAlone = "objects"
	ownLabels    = "own labels, contexts and objects"
)

// settings are sets of values that users have.
var settings = map[string][]string{
	"defaults":     nil,
	"etcd":         {"datastore=etcd", "etcd.endpoints=https://10.0.0.5:2379\\,https://10.0.0.6:2379"},
	"adopted etcd": {"datastore=etcd"},
	"cleanup":      {"cleanup=true"},
	"v1":           {"calicoAPIGroup=crd.projectcalico.org/v1"},
	"v3":           {"calicoAPIGroup=projectcalico.org/v3", "crds.install=on"},
	"dual stack": {"node.ip6=autodetect", "pools.ipv4.cidr=10.244.0.0/16", "pools.ipv6.cidr=fd00:10:244::/56",
		"node.asNumber=65010.7"},
	// TestArgoCD and TestObjectsByValues apply them, after their definitions.
	objectsAlone: {"calicoAPIGroup=projectcalico.org/v3", "pools.create=false",
		"bgp.peers[0].name=tor", "bgp.peers[0].spec.peerIP=10.0.1.1:1179", "bgp.peers[0].spec.asNumber=4200000001",
		"bgp.configuration.spec.asNumber=64513", "bgp.filters[0].name=none",
		"bgp.filters[0].spec.importV4[0].action=Reject", "pools.objects[0].name=pods",
		"pools.objects[0].spec.cidr=10.244.0.0/16"},
	"birdsock": {"bgp.birdSocket=true"},
	"vxlan":    {"networking=vxlan", "pools.ipv4.vxlanMode=CrossSubnet", "pools.ipv6.vxlanMode=Always"},
	"foreign":  {"networking=none", `cni.foreignInterfaces=eni\,vlan`},
	"canal":    {"networking=none", `cni.networkConfig=of flannel`},
	"everything": {"controllers=off", "http.exposed=true", "metrics.podMonitor.enabled=true", "pools.create=false",
		"metrics.prometheusRule.enabled=true", "bgp.passwordSecrets={mesh,tor}", "bgp.refuseDefaultRoute=true",
		"policy.enabled=false", "policy.counters=true", "policy.flowLog=-", "kubernetesAPI.host=10.0.0.1",
		"image.digest=sha256:" + strings.Repeat("0", 64), "extraEnv[0].name=MANX_BMP_COLLECTOR",
		"extraEnv[0].value=10.0.0.9:1790", "updateStrategy.rollingUpdate.maxUnavailable=10%",
		"podAnnotations.a=b", "podLabels.c=d", "image.pullSecrets[0].name=registry",
		"global.imagePullSecrets={mirror}",
		"global.imageRegistry=mirror.example.com:5000", "podSecurityContext.seLinuxOptions.type=spc_t",
		"extraEnv[1].name=IP", "extraEnv[1].value=10.0.0.7", "metrics.dashboards.enabled=true",
		"extraVolumes[0].name=control", "extraVolumes[0].secret.secretName=control",
		"extraVolumeMounts[0].name=control", "extraVolumeMounts[0].mountPath=/control"},
	ownLabels: {"commonLabels.team=net", `commonLabels.example\.com/tier=1a`, "podLabels.team=nodes",
		"securityContext.seLinuxOptions.type=spc_t", "securityContext.appArmorProfile.type=Unconfined",
		"controllersPodSecurityContext.seLinuxOptions.level=s0:c5", "controllersPodSecurityContext.runAsUser=1000",
		"controllersSecurityContext.seLinuxOptions.type=container_t",
		"extraObjects[0].apiVersion=v1", "extraObjects[0].kind=ConfigMap",
		"extraObjects[0].metadata.name=about-{{ .Release.Name }}", "extraObjects[0].metadata.labels.team=docs",
		"extraObjects[0].metadata.namespace=kube-system", `extraObjects[0].data.image=is {{ include "manx.image" . }}`},
}

// render returns the objects of the chart with settings. The test ends if helm reports an error.
func render(t *testing.T, values []string) (objects []*unstructured.Unstructured) {
	t.Helper()
	args := []string{"template", "manx", chart, "--namespace", "kube-system", "--skip-tests"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	out, err := helm(t, args...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for document := range strings.SplitSeq(out, "\n---\n") {
		var any map[string]any
		if err := yaml.Unmarshal([]byte(document), &any); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(any) > 0 {
			objects = append(objects, decode(t, []byte(document)))
		}
	}
	return objects
}

// find returns the objects of a kind.
func find[T any](t *testing.T, objects []*unstructured.Unstructured, kind string) (found []*T) {
	t.Helper()
	for _, o := range objects {
		if o.GetKind() != kind {
			continue
		}
		v := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, v, true); err != nil {
			t.Fatalf("%s %s: %v", kind, o.GetName(), err)
		}
		found = append(found, v)
	}
	return found
}

// The API server accepts all objects of the chart and all their fields, with each setting.
func TestChartIsAccepted(t *testing.T) {
	s := apiserver.Start(t)
	kubectl := filepath.Join(apiserver.Programs(), "kubectl")
	config := s.Kubeconfig(t, apiserver.Admin)
	for name, values := range settings {
		if name == objectsAlone {
			continue
		}
		t.Run(name, func(t *testing.T) {
			var file bytes.Buffer
			for _, o := range render(t, values) {
				if o.GroupVersionKind().Group == "monitoring.coreos.com" {
					continue // of the Prometheus Operator
				}
				text, err := yaml.Marshal(o.Object)
				if err != nil {
					t.Fatal(err)
				}
				file.WriteString("---\n" + string(text))
			}
			text := file.String()
			apply := func(args ...string) string {
				cmd := exec.Command(kubectl, append([]string{"--kubeconfig", config}, append(args, "-f", "-")...)...)
				cmd.Stdin = strings.NewReader(text)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v: %v: %s", args, err, out)
				}
				return string(out)
			}
			apply("apply", "--dry-run=server", "--validate=strict")
			if !slices.Contains([]string{"defaults", "everything", ownLabels}, name) {
				return
			}
			// Argo CD and Flux render without a cluster and apply on the server, again and again.
			version := []string{"get", "-o", "jsonpath={.items[*].metadata.resourceVersion}"}
			apply("apply", "--server-side", "--validate=strict")
			before := apply(version...)
			apply("apply", "--server-side")
			if after := apply(version...); after != before || len(strings.Fields(after)) < 10 {
				t.Errorf("the same objects, applied again, have other versions: %s, then %s", before, after)
			}
			if out := apply("diff", "--server-side"); out != "" {
				t.Errorf("applied objects differ: %s", out)
			}
			apply("delete", "--wait=false")
		})
	}
	for _, args := range [][]string{{"-f", "../../deploy/manifests/manx-kubernetes.yaml"},
		{"-f", "../../deploy/manifests/manx-etcd.yaml"}, {"-f", "../../deploy/manifests/manx-cleanup.yaml"},
		{"-k", "../../deploy/kustomize"}} {
		cmd := exec.Command(kubectl, append([]string{"--kubeconfig", config, "apply", "--dry-run=server"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
}

// helm lint reports nothing with any setting.
func TestChartLint(t *testing.T) {
	for name, values := range settings {
		args := []string{"lint", "--strict", chart}
		for _, v := range values {
			args = append(args, "--set", v)
		}
		if out, err := helm(t, args...); err != nil {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// Wrong values are refused before the installation, with the place and the rule.
func TestWrongValues(t *testing.T) {
	const (
		peer = "bgp.peers[0].name=tor,calicoAPIGroup=projectcalico.org/v3,bgp.peers[0].spec."
		pool = "pools.objects[0].name=b,calicoAPIGroup=projectcalico.org/v3,pools.objects[0].spec."
	)
	cases := map[string]string{
		"controllers=maybe":                              "at '/controllers': value must be one of 'auto', 'on', 'off'",
		"policy.endpointToHostAction=Maybe":              "at '/policy/endpointToHostAction': value must be one of",
		"image.tagg=v1":                                  "at '/image': additional properties 'tagg' not allowed",
		"node.ip=eth0":                                   "at '/node/ip'",
		"pools.ipv4.blockSize=33":                        "at '/pools/ipv4/blockSize': maximum: got 33, want 32",
		"bgp.maxPrefixes=0":                              "at '/bgp/maxPrefixes': minimum: got 0, want 1",
		"updateStrategy.rollingUpdate.maxSurge=1":        "additional properties 'maxSurge' not allowed",
		"datastore=mysql":                                "at '/datastore': value must be one of 'kubernetes', 'etcd'",
		"etcd.endpoints=10.0.0.5:2379":                   "at '/etcd/endpoints'",
		"etcd.endpoints=http://10.0.0.5:2379":            "etcd.endpoints goes with datastore=etcd alone",
		"metrics.podMonitor.enabled=true":                "needs http.exposed=true",
		"http.controllersPort=19099":                     "are the same",
		"admission.policies=maybe":                       "at '/admission/policies': value must be one of",
		"admission.annotationWriters={a'b}":              "at '/admission/annotationWriters/0'",
		"datastore=etcd,etcd.configMap=,etcd.endpoints=": "datastore=etcd needs etcd.endpoints",
		"updateStrategy.rollingUpdate.maxUnavailable=0":  "/maxUnavailable': minimum: got 0, want 1",
		"updateStrategy.rollingUpdate.maxUnavailable=0%": "at '/updateStrategy/rollingUpdate/maxUnavailable'",
		"podLabels.k8s-app=manx":                         "at '/podLabels/k8s-app': false schema",
		`podLabels.app\.kubernetes\.io/name=x`:           "at '/podLabels/app.kubernetes.io~1name': false schema",
		"podLabels.a=b c":                                "at '/podLabels/a'",
		"pools.ipv4.cidr=10.244.0.0/33":                  "at '/pools/ipv4/cidr'",
		"pools.ipv4.cidr=10.244.0/16":                    "at '/pools/ipv4/cidr'",
		"pools.ipv6.cidr=fd00::/129":                     "at '/pools/ipv6/cidr'",
		"pools.ipv6.cidr=10.244.0.0/16":                  "at '/pools/ipv6/cidr'",
		"affinity.nodeAffinity=x":                        "at '/affinity/nodeAffinity': got string, want object",
		"affinity.nodeAfinity.x=y":                       "at '/affinity': additional properties 'nodeAfinity'",
		"tolerations[0].operator=Any":                    "at '/tolerations/0/operator'",
		"policy.flowLog=flows":                           "at '/policy/flowLog'",
		"policy.flowLog=/var/log/flows":                  "is in no folder of extraVolumeMounts",
		"global.imageRegistry=https://mirror":            "at '/global/imageRegistry'",
		"global.imagePullSecrets={A_B}":                  "at '/global/imagePullSecrets/0'",
		"extraEnv[0].name=A,extraEnv[1].name=A":          "extraEnv has the variable A twice",
		"extraVolumes[0].name=run-manx":                  "at '/extraVolumes/0/name'",
		"podSecurityContext.seLinuxOptions.typ=x":        "at '/podSecurityContext/seLinuxOptions'",
		"podSecurityContext.runAsUser=5":                 "at '/podSecurityContext/runAsUser'",
		"securityContext.privileged=true":                "at '/securityContext': additional properties 'privileged'",
		"controllersSecurityContext.runAsUser=0":         "additional properties 'runAsUser' not allowed",
		"controllersPodSecurityContext.runAsUser=0":      "at '/controllersPodSecurityContext/runAsUser': minimum",
		"controllersPodSecurityContext.runAsNonRoot=no":  "at '/controllersPodSecurityContext/runAsNonRoot'",
		"commonLabels.k8s-app=manx":                      "at '/commonLabels/k8s-app': false schema",
		"commonLabels.a=b c":                             "at '/commonLabels/a'",
		"commonLabels.-a=b":                              "at '/commonLabels': additional properties '-a' not allowed",
		"extraObjects[0].kind=Secret":                    "at '/extraObjects/0': missing properties",
		"extraObjects=Secret":                            "at '/extraObjects': got string, want array",
		"pools.ipv4.cidr=10.244.1.0/16":                  "pools.ipv4.cidr=10.244.1.0/16 has bits set",
		"pools.ipv6.cidr=fd00:1:2:3::/48":                "pools.ipv6.cidr=fd00:1:2:3::/48 has bits set",
		"pools.ipv6.cidr=fd00:1:2:c000::/49":             "has bits set beyond its length",
		"image.tag=-v1":                                  "at '/image/tag'",
		"image.repository=manxnet/manx:v1":               "at '/image/repository'",
		"image.repository=https://mirror/manx":           "at '/image/repository'",
		"global.imageRegistry=mirror:65536":              "at '/global/imageRegistry'",
		"node.ip=10.0.0.999":                             "at '/node/ip'",
		"node.ip6=10.0.0.1":                              "at '/node/ip6'",
		"kubernetesAPI.host=https://10.0.0.1":            "at '/kubernetesAPI/host'",
		"kubernetesAPI.port=65536":                       "at '/kubernetesAPI/port'",
		"datastore=etcd,etcd.endpoints=https://a:70000":  "at '/etcd/endpoints'",
		peer + "peerIP=10.0.1.300":                       "at '/bgp/peers/0/spec/peerIP': '10.0.1.300'",
		peer + "asNumber=4294967296":                     "at '/bgp/peers/0/spec/asNumber': maximum",
		peer + "perIP=10.0.1.1":                          "at '/bgp/peers/0/spec': additional properties 'perIP'",
		peer + "nextHopMode=self":                        "at '/bgp/peers/0/spec/nextHopMode': value must be",
		peer + "peerIP=10.0.1.1:0":                       "at '/bgp/peers/0/spec/peerIP': '10.0.1.1:0'",
		peer + "peerIP=[fd00::1]:65536":                  "at '/bgp/peers/0/spec/peerIP': '[fd00::1]:65536'",
		peer + "password.secretKeyRef.name=tor," + peer + "password.secretKeyRef.key=k": "passwordSecrets lacks tor",
		"bgp.peers[0].name=Tor,bgp.peers[0].spec.asNumber=1":                            "at '/bgp/peers/0/name'",
		"bgp.peers[0].name=tor": "missing property 'spec'",
		peer + "asNumber=1,bgp.peers[1].name=tor,bgp.peers[1].spec.asNumber=2": "the name is twice in the list",
		"bgp.configuration.asNumber=64512":                                     "'asNumber' not allowed",
		"bgp.configuration.spec.asNumber=0x":                                   "got string, want integer",
		"bgp.filters[0].name=a,bgp.filters[0].spec.importV4[0].action=Drop":    "/spec/importV4/0/action'",
		pool + "cidr=10.246.0.0/16":                                            "set pools.create=false",
		"pools.create=false," + pool + "cidr=10.246.1.0/16":                    "pools.objects, b: spec.cidr",
		"pools.create=false," + pool + "ipipMode=Never":                        "missing property 'cidr'",
		"datastore=etcd," + peer + "asNumber=1":                                "datastore=etcd has none",
		"crds.install=only," + peer + "asNumber=1":                             "is for a release of definitions",
		"calicoAPIGroup=both,bgp.peers[0].name=a,bgp.peers[0].spec.asNumber=1": "is for a migration between the groups",
		"bgp.peers[0].name=tor,bgp.peers[0].spec.asNumber=1":                   "set calicoAPIGroup to the group",
		"datastoreMigration=true":                                              "needs datastore=kubernetes and calico",

		"networking=off":   "at '/networking': value must be one of",
		"networking=vxlan": "networking=vxlan needs pools.ipv4.vxlanMode",
		"networking=vxlan,pools.ipv4.vxlanMode=Always,node.ip6=autodetect": "with node.ip6 needs pools.ipv6.vxlanMode",
		"networking=none":                "name the interfaces of the other network's plugin",
		"cni.foreignInterfaces=eni":      "cni.foreignInterfaces needs networking=none",
		"cni.foreignInterfaces=e/i":      "at '/cni/foreignInterfaces'",
		"pools.ipv4.vxlanMode=Sometimes": "at '/pools/ipv4/vxlanMode'",
		"networking=none,cni.foreignInterfaces=eni,bgp.birdSocket=true": "networking=none has no BGP",
		"pools.ipv4.ipipMode=Always,pools.ipv4.vxlanMode=Always":        "exclude each other",
	}
	// The schema reports all wrong values at once: those of different places share a run. The checks report one.
	for len(cases) > 0 {
		var values []string
		places := map[string]bool{} // that are set in this run
		for _, value := range slices.Sorted(maps.Keys(cases)) {
			var own []string
			for part := range strings.SplitSeq(value, ",") {
				name, _, _ := strings.Cut(part, "=")
				top, _, _ := strings.Cut(name, "[")
				own = append(own, top)
			}
			shares := strings.Contains(cases[value], "at '/") && len(own) == 1
			if taken := slices.ContainsFunc(own, func(p string) bool { return places[p] }); taken ||
				len(values) > 0 && (!shares || places[""]) {
				continue
			}
			for _, p := range own {
				places[p] = true
			}
			places[""] = places[""] || !shares
			values = append(values, value)
		}
		args := []string{"template", "manx", chart}
		for _, v := range values {
			args = append(args, "--set", v)
		}
		out, err := helm(t, args...)
		for _, v := range values {
			if says := cases[v]; err == nil || !strings.Contains(out, says) {
				t.Errorf("%s: %v, and helm prints %.2000q, want %q", v, err, out, says)
			}
			delete(cases, v)
		}
	}
}

// Annotations of the values are not instead of the chart's own: without these, Helm would delete an object.
func TestAnnotationsOfObjects(t *testing.T) {
	out, err := helm(t, "template", "manx", chart, "--show-only", "templates/objects.yaml", "--set",
		"calicoAPIGroup=projectcalico.org/v3,bgp.peers[0].name=tor,bgp.peers[0].spec.asNumber=1", "--set",
		`bgp.peers[0].annotations.helm\.sh/resource-policy=delete,bgp.peers[0].annotations.rack=r7`)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var o unstructured.Unstructured
	if err := yaml.UnmarshalStrict([]byte(out), &o.Object); err != nil { // refuses a key that is there twice
		t.Fatalf("%v: %s", err, out)
	}
	if a := o.GetAnnotations(); a["helm.sh/resource-policy"] != "keep" || a["rack"] != "r7" {
		t.Errorf("annotations are %v", a)
	}
}

// In another namespace all objects are there, except the Role for kubeadm's settings, and the policies are about the
// accounts there. kustomize cannot do that, as the page says.
func TestAnotherNamespace(t *testing.T) {
	out, err := helm(t, "template", "manx", chart, "--namespace", "net")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	moved := 0
	for document := range strings.SplitSeq(out, "\n---\n") {
		o := decode(t, []byte(document))
		if namespace := o.GetNamespace(); o.GetName() == "manx-node-detect" && namespace != "kube-system" ||
			o.GetName() != "manx-node-detect" && namespace != "" && namespace != "net" {
			t.Errorf("%s %s is in %s", o.GetKind(), o.GetName(), namespace)
		} else if namespace == "net" {
			moved++
		}
	}
	const account = "system:serviceaccount:%s:manx-node'"
	if moved < 5 || strings.Count(out, fmt.Sprintf(account, "net")) < 5 ||
		strings.Contains(out, fmt.Sprintf(account, "kube-system")) {
		t.Errorf("%d objects are in the namespace, or the policies are about other accounts", moved)
	}
	base := t.TempDir()
	for _, name := range []string{"kustomization.yaml", "manx-kubernetes.yaml"} {
		text, err := os.ReadFile("../../deploy/kustomize/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if name == "kustomization.yaml" {
			text = append(text, "namespace: net\n"...)
		}
		if err := os.WriteFile(filepath.Join(base, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	built, err := exec.Command(filepath.Join(apiserver.Programs(), "kubectl"), "kustomize", base).CombinedOutput()
	if err != nil || !strings.Contains(string(built), fmt.Sprintf(account, "kube-system")) {
		t.Errorf("kustomize changes the policies, against the page: %v", err)
	}
}

// Each value has a description in the schema and a row in the chart's README.
func TestValuesAreDescribed(t *testing.T) {
	read := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(chart, name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	readme, rows := string(read("README.md")), 0
	var check func(path string, values any, schema map[string]any)
	check = func(path string, values any, schema map[string]any) {
		properties, _ := schema["properties"].(map[string]any)
		if fields, ok := values.(map[string]any); ok && (path == "" || schema["additionalProperties"] == false) {
			for name, value := range fields {
				of, _ := properties[name].(map[string]any)
				check(strings.TrimPrefix(path+"."+name, "."), value, of)
			}
			return
		}
		text, _ := schema["description"].(string)
		if len(properties) > 0 && path == "global" {
			return // it may have values of other charts
		}
		row := strings.Contains(readme, "| `"+path+"` | ") && strings.Contains(readme, " | "+text+" |")
		if rows++; text == "" || !row {
			t.Errorf("%s: description %q, or no row of README.md", path, text)
		}
	}
	check("", decode(t, read("values.yaml")).Object, decode(t, read("values.schema.json")).Object)
	if rows < 60 {
		t.Errorf("only %d values", rows)
	}
}

// What users of other charts set has its effect here, too.
func TestCommonValues(t *testing.T) {
	objects := render(t, append(slices.Clone(settings["everything"]), "controllers=auto",
		"policy.flowLog=/control/flows", "image.repository=docker.io/manxnet/manx", "image.digest=",
		"extraEnv[2].name=NODENAME", "extraEnv[2].value=n1",
		"image.pullSecrets[1].name=mirror", "metrics.dashboards.labels.folder=net"))
	var pods []corev1.PodSpec
	for _, d := range find[appsv1.DaemonSet](t, objects, "DaemonSet") {
		pods = append(pods, d.Spec.Template.Spec)
		if o := d.Spec.Template.Spec.SecurityContext; o.SELinuxOptions == nil || o.SELinuxOptions.Type != "spc_t" ||
			o.SeccompProfile == nil || o.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("the security context is %+v", o)
		}
		last := d.Spec.Template.Spec.Containers[0].VolumeMounts
		if m := last[len(last)-1]; m.Name != "control" || m.MountPath != "/control" {
			t.Errorf("the last mount is %+v", m)
		}
		volumes := d.Spec.Template.Spec.Volumes
		if v := volumes[len(volumes)-1]; v.Name != "control" || v.Secret == nil || v.Secret.SecretName != "control" {
			t.Errorf("the last volume is %+v", v)
		}
	}
	for _, d := range find[appsv1.Deployment](t, objects, "Deployment") {
		pods = append(pods, d.Spec.Template.Spec)
	}
	if len(pods) != 2 {
		t.Fatalf("%d kinds of pods, want two", len(pods))
	}
	env := func(c corev1.Container, name string) string {
		value := "not set"
		for _, e := range c.Env {
			if e.Name == name {
				value = e.Value + e.ValueFrom.String()
			}
		}
		return strings.TrimSuffix(value, "nil")
	}
	for _, p := range pods {
		secrets := []corev1.LocalObjectReference{{Name: "mirror"}, {Name: "registry"}}
		if !slices.Equal(p.ImagePullSecrets, secrets) {
			t.Errorf("the pull secrets are %v", p.ImagePullSecrets)
		}
		for _, c := range slices.Concat(p.InitContainers, p.Containers) {
			if !strings.HasPrefix(c.Image, "mirror.example.com:5000/manxnet/manx:v") {
				t.Errorf("%s: the image is %s", c.Name, c.Image)
			}
			seen := map[string]bool{}
			for _, e := range c.Env {
				if seen[e.Name] {
					t.Errorf("%s: %s is twice in the list", c.Name, e.Name)
				}
				seen[e.Name] = true
			}
			if ip := env(c, "IP"); ip != "10.0.0.7" {
				t.Errorf("%s: IP is %s", c.Name, ip)
			}
		}
	}
	if name := env(pods[0].Containers[0], "NODENAME"); name != "n1" {
		t.Errorf("manxd: NODENAME is %s", name)
	}
	if name := env(pods[1].Containers[0], "NODENAME"); !strings.Contains(name, "metadata.name") {
		t.Errorf("the controllers: NODENAME is %s", name)
	}
	maps := find[corev1.ConfigMap](t, objects, "ConfigMap")
	for _, m := range maps {
		if m.Labels["grafana_dashboard"] != "1" || m.Labels["folder"] != "net" || len(m.Data) != 1 {
			t.Errorf("%s: labels %v, %d files", m.Name, m.Labels, len(m.Data))
		}
		for name, text := range m.Data {
			want, err := os.ReadFile("../../deploy/grafana/" + strings.TrimPrefix(name, "manx-"))
			if err != nil || text != string(want) {
				t.Errorf("%s is no dashboard of deploy/grafana: %v", name, err)
			}
		}
	}
	if files, err := filepath.Glob("../../deploy/grafana/*.json"); err != nil || len(maps) != len(files) {
		t.Errorf("%d ConfigMaps for the dashboards %v", len(maps), files)
	}
}

// Pod Security: the pod violates "baseline" and "restricted" only by the host's network, folders of the host,
// capabilities and the user root.
func TestPodSecurity(t *testing.T) {
	s := apiserver.Start(t)
	client, err := kubernetes.NewForConfig(s.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "manx-node"},
		Spec: find[appsv1.DaemonSet](t, render(t, nil), "DaemonSet")[0].Spec.Template.Spec}
	pod.Spec.PriorityClassName = ""
	for level, want := range map[string][]string{
		"privileged": nil,
		"baseline": {`host namespaces (hostNetwork=true)`,
			`non-default capabilities (container "manxd" must not include "NET_ADMIN", "SYS_NICE" in securityContext.capabilities.add)`,
			`hostPath volumes (volumes "run-manx", "var-lib-manx", "var-lib-calico", "var-run-calico", "cni-conf-dir", "cni-bin-dir", "proc-sys-net")`},
		"restricted": {`host namespaces (hostNetwork=true)`,
			`unrestricted capabilities (container "manxd" must not include "NET_ADMIN", "SYS_NICE" in securityContext.capabilities.add)`,
			`restricted volume types (volumes "run-manx", "var-lib-manx", "var-lib-calico", "var-run-calico", "cni-conf-dir", "cni-bin-dir", "proc-sys-net" use restricted volume type "hostPath")`,
			`runAsNonRoot != true (pod or containers "install-cni", "manxd" must set securityContext.runAsNonRoot=true)`,
			`runAsUser=0 (containers "install-cni", "manxd" must not set runAsUser=0)`},
	} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: level,
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": level}}}
		if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := client.CoreV1().Pods(level).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{"All"}})
		if want == nil && err == nil {
			continue
		}
		if err == nil {
			t.Errorf("%s: the pod is accepted", level)
			continue
		}
		_, text, _ := strings.Cut(err.Error(), `latest": `)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: not among the violations: %s\nin: %v", level, w, err)
			}
			text = strings.Replace(text, w, "", 1)
		}
		if rest := strings.Trim(text, ", "); rest != "" {
			t.Errorf("%s: further violations: %s", level, rest)
		}
	}
}

// The pod of the controllers violates "restricted" only by the host's network, which it needs before pods have one.
func TestControllersAreRestricted(t *testing.T) {
	s := apiserver.Start(t)
	client, err := kubernetes.NewForConfig(s.Config(apiserver.Admin))
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "manx-controllers"},
		Spec: find[appsv1.Deployment](t, render(t, nil), "Deployment")[0].Spec.Template.Spec}
	pod.Spec.PriorityClassName = ""
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "restricted",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Pods("restricted").Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{"All"}})
	if err == nil || !strings.HasSuffix(err.Error(), `latest": host namespaces (hostNetwork=true)`) {
		t.Errorf("%v, want only that the host's network is violated", err)
	}
}

// Policies need a server that binds tokens to Nodes.
func TestAdmissionFollowsTheServer(t *testing.T) {
	policies := func(args ...string) int {
		out, err := helm(t, append([]string{"template", "manx", chart}, args...)...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.Count(out, "\nkind: ValidatingAdmissionPolicy\n")
	}
	for _, c := range []struct {
		want int
		args []string
	}{
		{0, []string{"--kube-version=1.30.9"}},
		{9, []string{"--kube-version=1.31.0"}}, // pools of both groups
		{8, []string{"--api-versions=crd.projectcalico.org/v1"}},
		{2, []string{"--set=datastore=etcd"}},
		{9, []string{"--kube-version=1.30.9", "--set-string=admission.policies=on"}},
		{0, []string{"--set-string=admission.policies=off"}},
	} {
		if have := policies(c.args...); have != c.want {
			t.Errorf("%v: %d policies, want %d", c.args, have, c.want)
		}
	}
}

// The probes ask the control socket: any process of the host could answer at a TCP port. The port of manxd is none of
// calico-node: manxd waits beside a calico-node until it ends.
func TestProbesAskManxd(t *testing.T) {
	const felix = ":9099"
	probed := 0
	for name, values := range settings {
		var containers []corev1.Container
		for _, d := range find[appsv1.DaemonSet](t, render(t, values), "DaemonSet") {
			containers = append(containers, d.Spec.Template.Spec.Containers...)
		}
		for _, d := range find[appsv1.Deployment](t, render(t, values), "Deployment") {
			containers = append(containers, d.Spec.Template.Spec.Containers...)
		}
		for _, c := range containers {
			if c.Name == "clean" || c.Name == "birdsock" {
				continue // they are no daemon of the node
			}
			for want, p := range map[string]*corev1.Probe{"/manxctl health --live": c.LivenessProbe,
				"/manxctl health --ready": c.ReadinessProbe} {
				probed++
				if p.Exec == nil || strings.Join(p.Exec.Command, " ") != want {
					t.Errorf("%s: the probe is %+v, want %s", name, p, want)
				}
			}
			i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "MANX_HTTP_LISTEN" })
			if i < 0 || strings.HasSuffix(c.Env[i].Value, felix) {
				t.Errorf("%s: manxd listens at %+v", name, c.Env)
			}
		}
	}
	if probed == 0 {
		t.Error("no probe was found")
	}
}

// The container for BIRD's clients is there on request. It has no capabilities, and only the folders of the sockets.
func TestBirdSocketIsAContainer(t *testing.T) {
	of := func(values []string) (list []corev1.Container) {
		for _, c := range find[appsv1.DaemonSet](t, render(t, values), "DaemonSet")[0].Spec.Template.Spec.Containers {
			if c.Name == "birdsock" {
				list = append(list, c)
			}
		}
		return list
	}
	if list := of(nil); len(list) > 0 {
		t.Errorf("without the value: %+v", list)
	}
	list := of(settings["birdsock"])
	if len(list) != 1 {
		t.Fatalf("%d containers", len(list))
	}
	c, mounts := list[0], []string{}
	for _, m := range c.VolumeMounts {
		mounts = append(mounts, m.MountPath)
	}
	if !slices.Equal(c.Command, []string{"/manx-birdsock"}) ||
		!slices.Equal(mounts, []string{"/run/manx", "/var/run/calico"}) ||
		!slices.Equal(c.SecurityContext.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		len(c.SecurityContext.Capabilities.Add) > 0 {
		t.Errorf("the container is %+v", c)
	}
}

// The cleanup removes the plugin's configuration after manxd has ended, which may write it again until then: the step
// before fails while manxd runs.
func TestCleanupEndsWithThePlugin(t *testing.T) {
	all := find[appsv1.DaemonSet](t, render(t, settings["cleanup"]), "DaemonSet")
	if len(all) != 1 {
		t.Fatalf("%d DaemonSets, want that of the cleanup", len(all))
	}
	for _, d := range all {
		var order []string
		for _, c := range d.Spec.Template.Spec.InitContainers {
			order = append(order, strings.Join(c.Command, " "))
		}
		if want := []string{"/manxd cleanup", "/manx-cni uninstall"}; !slices.Equal(order, want) {
			t.Errorf("%s: the steps are %q, want %q", d.Name, order, want)
		}
	}
}

// The cleanup has a Job for the finalizers exactly where there may be any, also those from before controllers=off, with
// an account of its own.
func TestCleanupOfFinalizers(t *testing.T) {
	v3 := "calicoAPIGroup=projectcalico.org/v3"
	for _, c := range []struct {
		values []string
		want   bool
	}{{[]string{"cleanup=true"}, true}, {[]string{"cleanup=true", v3}, true}, {[]string{v3}, false},
		{[]string{"cleanup=true", "calicoAPIGroup=crd.projectcalico.org/v1"}, false},
		{[]string{"cleanup=true", v3, "controllers=off"}, true}, {[]string{"cleanup=true", "datastore=etcd"}, false}} {
		out := render(t, c.values)
		jobs, accounts := find[batchv1.Job](t, out, "Job"), find[corev1.ServiceAccount](t, out, "ServiceAccount")
		has := slices.ContainsFunc(accounts, func(a *corev1.ServiceAccount) bool {
			return a.Name == "manx-cleanup"
		})
		if (len(jobs) == 1) != c.want || has != c.want {
			t.Errorf("%v: %d Jobs, an account: %t", c.values, len(jobs), has)
			continue
		}
		for _, j := range jobs {
			p := j.Spec.Template.Spec
			if p.ServiceAccountName != "manx-cleanup" || !slices.Equal(p.Containers[0].Command,
				[]string{"/manxd", "cleanup", "--cluster"}) || !p.HostNetwork {
				t.Errorf("%v: the Job is %+v", c.values, p)
			}
		}
	}
}

// The template of a Job cannot be changed: another one has another name, and the same one the same.
func TestCleanupJobsHaveNamesOfTheirTemplates(t *testing.T) {
	name := func(values ...string) string {
		jobs := find[batchv1.Job](t, render(t, append(values, "cleanup=true")), "Job")
		if len(jobs) != 1 || jobs[0].Spec.TTLSecondsAfterFinished == nil {
			t.Fatalf("%v: %d Jobs, or one that stays", values, len(jobs))
		}
		return jobs[0].Name
	}
	first := name()
	if again := name("podLabels.team=nodes"); again != first {
		t.Errorf("the same Job has the names %s and %s", first, again)
	}
	for _, change := range []string{"image.tag=v9", "logLevel=debug", "image.pullSecrets={a}"} {
		if other := name(change); other == first {
			t.Errorf("with %s the Job has another template and the name %s as before", change, other)
		}
	}
}

// Without controllers the daemon gets none of their rights, and no rights to Secrets that are not named.
func TestRightsFollowSettings(t *testing.T) {
	names := func(values ...string) (all []string) {
		for _, b := range find[rbacv1.ClusterRoleBinding](t, render(t, values), "ClusterRoleBinding") {
			all = append(all, b.Name)
		}
		return all
	}
	if !slices.Contains(names(), "manx-controllers") || slices.Contains(names("controllers=off"), "manx-controllers") {
		t.Error("the role of controllers does not follow the setting")
	}
	for name, values := range settings {
		for _, b := range find[rbacv1.ClusterRoleBinding](t, render(t, values), "ClusterRoleBinding") {
			if len(b.Subjects) != 1 || b.Subjects[0].Name != b.RoleRef.Name {
				t.Errorf("%s: the role %s is not for its account alone: %v", name, b.RoleRef.Name, b.Subjects)
			}
		}
	}
	creates := func(values ...string) bool {
		for _, r := range find[rbacv1.ClusterRole](t, render(t, values), "ClusterRole") {
			for _, rule := range r.Rules {
				if slices.Contains(rule.Resources, "globalnetworkpolicies") && slices.Contains(rule.Verbs, "delete") {
					return true
				}
			}
		}
		return false
	}
	if !creates() || creates("policyMigration=false") || creates("controllers=off") {
		t.Error("the right to delete policies does not follow policyMigration")
	}
	if moved := []string{"policyMigration=false", "calicoAPIGroup=both"}; creates(moved...) ||
		!creates(append(moved, "datastoreMigration=true")...) {
		t.Error("the right to delete policies does not follow datastoreMigration")
	}
	for _, values := range [][]string{nil, {"bgp.passwordSecrets={tor}"}} {
		for _, r := range find[rbacv1.Role](t, render(t, values), "Role") {
			for _, rule := range r.Rules {
				if slices.Contains(rule.Resources, "secrets") &&
					(values == nil || !slices.Equal(rule.ResourceNames, []string{"tor"})) {
					t.Errorf("with %v: %+v", values, rule)
				}
			}
		}
	}
	for _, r := range find[rbacv1.ClusterRole](t, render(t, nil), "ClusterRole") {
		for _, rule := range r.Rules {
			for _, all := range [][]string{rule.Verbs, rule.Resources, rule.APIGroups} {
				if slices.Contains(all, "*") || slices.Contains(rule.Resources, "secrets") {
					t.Errorf("%s: too much: %+v", r.Name, rule)
				}
			}
		}
	}
}

// The network of pods decides what the nodes get: no plugin beside that of another network, and no addresses and pools.
func TestNetworkingFollowsTheValue(t *testing.T) {
	node := func(values ...string) *corev1.PodSpec {
		t.Helper()
		for _, d := range find[appsv1.DaemonSet](t, render(t, values), "DaemonSet") {
			if d.Name == "manx-node" {
				return &d.Spec.Template.Spec
			}
		}
		t.Fatalf("%v: no DaemonSet manx-node", values)
		return nil
	}
	for name, want := range map[string]struct {
		plugin bool
		env    map[string]string // "-": the variable is not there
	}{
		"defaults": {true, map[string]string{"CALICO_NETWORKING_BACKEND": "-", "CALICO_IPV4POOL_VXLAN": "-",
			"FELIX_INTERFACEPREFIX": "-", "IP": "autodetect", "CLUSTER_TYPE": "k8s,bgp"}},
		"vxlan": {true, map[string]string{"CALICO_NETWORKING_BACKEND": "vxlan", "CALICO_IPV4POOL_VXLAN": "CrossSubnet",
			"CALICO_IPV6POOL_VXLAN": "Always", "IP": "autodetect", "CLUSTER_TYPE": "k8s"}},
		"foreign": {false, map[string]string{"CALICO_NETWORKING_BACKEND": "none", "FELIX_INTERFACEPREFIX": "eni,vlan",
			"IP": "-", "CALICO_IPV4POOL_IPIP": "-", "MANX_CNI_CONF_DIR": "-", "CLUSTER_TYPE": "k8s"}},
		"canal": {true, map[string]string{"CALICO_NETWORKING_BACKEND": "none", "FELIX_INTERFACEPREFIX": "-", "IP": "-",
			"CNI_NETWORK_CONFIG": "of flannel"}},
		"adopted etcd": {true, map[string]string{"CALICO_NETWORKING_BACKEND": "calico-config/calico_backend"}},
	} {
		spec := node(settings[name]...)
		got := map[string]string{}
		for _, e := range spec.Containers[0].Env {
			got[e.Name] = e.Value
			if from := e.ValueFrom; from != nil && from.ConfigMapKeyRef != nil {
				got[e.Name] = from.ConfigMapKeyRef.Name + "/" + from.ConfigMapKeyRef.Key
			}
		}
		for variable, value := range want.env {
			if have, there := got[variable]; there != (value != "-") || there && have != value {
				t.Errorf("%s: %s is %q (there: %t), want %q", name, variable, have, there, value)
			}
		}
		mounts := slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
			return strings.HasPrefix(v.Name, "cni-")
		})
		if plugin := len(spec.InitContainers) > 0; plugin != want.plugin || mounts != want.plugin {
			t.Errorf("%s: installs a plugin: %t, mounts its folders: %t, want %t", name, plugin, mounts, want.plugin)
		}
	}
}

// Generated files are current.
func TestManifestsAreCurrent(t *testing.T) {
	if out, err := exec.Command("./manifests", "--check").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// The documented upgrade keeps the values of the release, and a rollback brings the earlier ones back.
func TestUpgradeAndRollback(t *testing.T) {
	s := apiserver.Start(t)
	kubectl := filepath.Join(apiserver.Programs(), "kubectl")
	config := s.Kubeconfig(t, apiserver.Admin)
	env := func(name string) string {
		out, _ := exec.Command(kubectl, "--kubeconfig", config, "-n", "kube-system", "get", "daemonset/manx-node", "-o",
			`jsonpath={.spec.template.spec.containers[0].env[?(@.name=="`+name+`")].value}`).CombinedOutput()
		return string(out)
	}
	for _, step := range []struct {
		args  []string
		level string
	}{
		{[]string{"install", "manx", chart, "--set", "node.asNumber=65010"}, "info"},
		{[]string{"upgrade", "manx", chart, "--reset-then-reuse-values", "--set", "logLevel=debug"}, "debug"},
		{[]string{"rollback", "manx"}, "info"},
	} {
		out, err := helm(t, append(step.args, "--namespace", "kube-system", "--kubeconfig", config)...)
		if err != nil {
			t.Fatalf("%v: %v: %s", step.args, err, out)
		}
		if as, level := env("AS"), env("MANX_LOG_LEVEL"); as != "65010" || level != step.level {
			t.Errorf("%v: AS %q, level %q, want %q", step.args, as, level, step.level)
		}
	}
	get := exec.Command(kubectl, "--kubeconfig", config, "get", "crd", "tiers.projectcalico.org")
	if out, err := get.CombinedOutput(); err != nil {
		t.Errorf("a definition is gone: %v: %s", err, out)
	}
}

// Beside calico-node, wherever it is, the chart is refused, and the message names the remedy.
func TestBesideCalico(t *testing.T) {
	s := apiserver.Start(t)
	config := s.Kubeconfig(t, apiserver.Admin)
	kubectl := func(stdin string, args ...string) string {
		cmd := exec.Command(filepath.Join(apiserver.Programs(), "kubectl"), append([]string{"--kubeconfig", config},
			args...)...)
		cmd.Stdin = strings.NewReader("---\n" + stdin)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	install := func(values ...string) (string, error) {
		args := []string{"install", "manx", chart, "--namespace", "manx-system", "--kubeconfig", config,
			"--dry-run=server"}
		for _, v := range values {
			args = append(args, "--set-string", v)
		}
		return helm(t, args...)
	}
	kubectl("", "create", "namespace", "manx-system")
	const manx, net = `nodeSelector.manx\.io/network=manx`, "calicoNamespaces={net}"
	for i, c := range []struct{ namespace, name, value string }{
		{"kube-system", "calico-node", ""}, {"kube-system", "canal", ""}, {"calico-system", "calico-node", ""},
		{"manx-system", "calico-node", ""}, {"net", "calico-node", net},
	} {
		place := c.namespace + "/" + c.name
		kubectl("", "create", "namespace", c.namespace)
		out := kubectl(fmt.Sprintf(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: %s, namespace: %s}, spec:
{selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {nodeSelector: {kubernetes.io/os: linux},
containers: [{name: c, image: i}]}}}}`, c.name, c.namespace), "create", "-f", "-")
		if !strings.Contains(out, "created") {
			t.Fatal(out)
		}
		selector := func(value string) {
			t.Helper()
			patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":{"manx.io/network":%q}}}}}`, value)
			out := kubectl("", "-n", c.namespace, "patch", "daemonset", c.name, "--type", "merge", "-p", patch)
			if !strings.Contains(out, "patched") {
				t.Fatal(out)
			}
		}
		refused := func(when string, values ...string) {
			t.Helper()
			out, err := install(append(values, c.value)...)
			if err == nil || !strings.Contains(out, "DaemonSet "+place) || !strings.Contains(out,
				"two daemons would fight") || !strings.Contains(out, `nodeSelector.manx\.io/network=manx`) {
				t.Errorf("%s, %s: %v: %s", place, when, err, out)
			}
		}
		refused("on all nodes, Manx on those of a label", manx)
		if i == 0 {
			refused("both on all nodes")
			selector("manx")
			refused("both on the nodes of Manx", manx)
			out, err := helm(t, "install", "manx", chart, "--namespace", "manx-system", "--kubeconfig", config,
				"--dry-run=server", "--set", "cleanup=true")
			if err != nil {
				t.Errorf("the cleanup: %v: %s", err, out)
			}
		}
		selector("calico")
		if i == 0 {
			refused("on the nodes of a label, Manx on all")
		}
		if out, err := install(manx, c.value); err != nil {
			t.Errorf("%s, node by node: %v: %s", place, err, out)
		}
		kubectl("", "-n", c.namespace, "delete", "daemonset", c.name)
	}
	if out, err := helm(t, "install", "manx", chart, "--namespace", "kube-system", "--kubeconfig", config); err != nil {
		t.Errorf("without calico-node: %v: %s", err, out)
	}
	t.Run("plugin", func(t *testing.T) { pluginOfCalicoStays(t, config, kubectl) })
}
