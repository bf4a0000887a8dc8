package deploy

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// labelsOf visits the labels of an object and of the pods that it makes, and its selectors.
func labelsOf(path string, v any, visit func(path string, labels map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		for name, below := range v {
			labels, ok := below.(map[string]any)
			own := name == "labels" && strings.HasSuffix(path, ".metadata")
			if ok && (own || name == "matchLabels" || name == "selector") {
				visit(path+"."+name, labels)
			}
			labelsOf(path+"."+name, below, visit)
		}
	case []any:
		for _, below := range v {
			labelsOf(path, below, visit)
		}
	}
}

// commonLabels are labels of all objects and pods, also of definitions, hooks and further objects, and of no selector,
// which cannot change. Labels for some of them go before.
func TestCommonLabels(t *testing.T) {
	args := []string{"template", "manx", chart, "--namespace", "kube-system"}
	for _, v := range slices.Concat(settings["v3"], []string{"http.exposed=true", "metrics.podMonitor.enabled=true",
		"metrics.podMonitor.labels.team=prometheus", "metrics.prometheusRule.enabled=true",
		"metrics.dashboards.enabled=true", "bgp.peers[0].name=tor", "bgp.peers[0].spec.peerIP=10.0.0.1",
		"bgp.peers[0].spec.asNumber=65001"}, settings[ownLabels]) {
		args = append(args, "--set", v)
	}
	own := map[string]string{"DaemonSet manx-node .spec.template.metadata.labels": "nodes",
		"ConfigMap about-manx .metadata.labels": "docs", "PodMonitor manx-node .metadata.labels": "prometheus",
		"PodMonitor manx-controllers .metadata.labels": "prometheus"}
	for _, more := range [][]string{nil, {"--set", "cleanup=true"}} {
		out, err := helm(t, append(slices.Clone(args), more...)...)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		kinds := map[string]bool{}
		for document := range strings.SplitSeq(out, "\n---\n") {
			o := decode(t, []byte(document))
			if len(o.Object) == 0 {
				continue
			}
			labeled := false
			labelsOf("", o.Object, func(path string, labels map[string]any) {
				place := strings.Join([]string{o.GetKind(), o.GetName(), path}, " ")
				if strings.HasSuffix(path, "elector") || strings.HasSuffix(path, "matchLabels") {
					if labels["team"] != nil || labels["example.com/tier"] != nil {
						t.Errorf("%s: the selector is %v", place, labels)
					}
					return
				}
				labeled = labeled || path == ".metadata.labels"
				want := "net"
				if label, ok := own[place]; ok {
					want = label
				}
				if labels["team"] != want || labels["example.com/tier"] != "1a" {
					t.Errorf("%s are %v", place, labels)
				}
			})
			if kinds[o.GetKind()] = true; !labeled {
				t.Errorf("%s %s has no labels", o.GetKind(), o.GetName())
			}
		}
		for _, kind := range []string{"DaemonSet", "CustomResourceDefinition", "ClusterRole", "ConfigMap", "PodMonitor",
			"PrometheusRule", "ServiceAccount", "ValidatingAdmissionPolicy", "BGPPeer"} {
			if !kinds[kind] {
				t.Errorf("with %v there is no %s", more, kind)
			}
		}
	}
}

// The security contexts of all containers have the fields of the values beside the chart's own.
func TestSecurityContexts(t *testing.T) {
	contexts := func(pods corev1.PodSpec, check func(name string, c *corev1.SecurityContext)) {
		for _, c := range slices.Concat(pods.InitContainers, pods.Containers) {
			check(c.Name, c.SecurityContext)
			if s := c.SecurityContext; !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
				!*s.ReadOnlyRootFilesystem {
				t.Errorf("%s: the chart's own fields are gone: %+v", c.Name, s)
			}
		}
	}
	for _, more := range []string{"cleanup=false", "cleanup=true"} {
		objects := render(t, append(slices.Clone(settings[ownLabels]), more))
		n := 0
		for _, d := range find[appsv1.DaemonSet](t, objects, "DaemonSet") {
			contexts(d.Spec.Template.Spec, func(name string, c *corev1.SecurityContext) {
				if n++; c.SELinuxOptions == nil || c.SELinuxOptions.Type != "spc_t" || c.AppArmorProfile == nil ||
					c.AppArmorProfile.Type != corev1.AppArmorProfileTypeUnconfined || *c.RunAsUser != 0 {
					t.Errorf("%s: %+v", name, c)
				}
			})
		}
		if n < 2 {
			t.Errorf("%s: %d containers", more, n)
		}
	}
	all := find[appsv1.Deployment](t, render(t, settings[ownLabels]), "Deployment")
	jobs := find[batchv1.Job](t, render(t, append(slices.Clone(settings[ownLabels]), "cleanup=true")), "Job")
	if len(all) != 1 || len(jobs) != 1 {
		t.Fatalf("%d Deployments, %d Jobs", len(all), len(jobs))
	}
	for of, pods := range map[string]corev1.PodSpec{"the controllers": all[0].Spec.Template.Spec,
		"the Job": jobs[0].Spec.Template.Spec} {
		if c := pods.SecurityContext; c.SELinuxOptions == nil || c.SELinuxOptions.Level != "s0:c5" ||
			*c.RunAsUser != 1000 || *c.RunAsGroup != 65532 || !*c.RunAsNonRoot || c.SeccompProfile == nil {
			t.Errorf("the pod of %s: %+v", of, c)
		}
		contexts(pods, func(name string, c *corev1.SecurityContext) {
			if c.SELinuxOptions == nil || c.SELinuxOptions.Type != "container_t" {
				t.Errorf("%s of %s: %+v", name, of, c)
			}
		})
	}
}

// Templates in the texts of further objects are those of the chart.
func TestExtraObjects(t *testing.T) {
	for _, m := range find[corev1.ConfigMap](t, render(t, settings[ownLabels]), "ConfigMap") {
		if m.Name == "about-manx" && strings.HasPrefix(m.Data["image"], "is manxnet/manx:v") {
			return
		}
	}
	t.Error("the ConfigMap is not there, or lacks the image")
}
