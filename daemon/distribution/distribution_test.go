package distribution

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/manxnet/manx/datastore/node"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
)

const kubeadmText = `apiServer: {}
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
networking:
  dnsDomain: cluster.local
  podSubnet: 10.244.0.0/16,fd00:10:244::/56
  serviceSubnet: 10.96.0.0/16
`

func TestPodSubnets(t *testing.T) {
	for text, want := range map[string]string{
		kubeadmText: "10.244.0.0/16 fd00:10:244::/56", `podSubnet: "10.1.2.3/16"`: "10.1.0.0/16",
		"podSubnet: '10.1.0.0/16, fd00::/48'": "10.1.0.0/16 fd00::/48", "podSubnet: ": "", "xpodSubnet: 10.0.0.0/8": "",
		"podSubnet: nonsense,10.2.0.0/16": "10.2.0.0/16", "": "",
	} {
		var got []string
		for _, p := range podSubnets(map[string]string{"ClusterConfiguration": text,
			"ClusterStatus": "apiEndpoints: {}"}) {
			got = append(got, p.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// A missing right to read one of the ConfigMaps does not affect the other one.
func TestDistribution(t *testing.T) {
	const user = "system:serviceaccount:kube-system:manx-node"
	api := apiserver.Start(t)
	api.AddUsers(t, user)
	admin, err := kubernetes.NewForConfig(api.Config(apiserver.Admin))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(err)
	limited, err := kubernetes.NewForConfig(api.Config(user))
	must(err)
	put := func(name, key, value string) {
		t.Helper()
		_, err := admin.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: value}}, metav1.CreateOptions{})
		must(err)
	}
	allow := func(names ...string) {
		t.Helper()
		_ = admin.RbacV1().Roles("kube-system").Delete(t.Context(), "r", metav1.DeleteOptions{})
		_, err := admin.RbacV1().Roles("kube-system").Create(t.Context(),
			&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"},
				Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""},
					Resources:     []string{"configmaps"},
					ResourceNames: names}}}, metav1.CreateOptions{})
		must(err)
		for _, name := range names { // the server enforces new roles a moment later
			forbidden := true
			for end := time.Now().Add(time.Minute); forbidden && time.Now().Before(end); {
				_, err := limited.CoreV1().ConfigMaps("kube-system").Get(t.Context(), name, metav1.GetOptions{})
				forbidden = apierrors.IsForbidden(err)
			}
		}
	}
	_, err = admin.RbacV1().RoleBindings("kube-system").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "r"},
		Subjects:   []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "User", Name: user}}},
		metav1.CreateOptions{})
	must(err)
	expect := func(what string, c node.Config, types, v4, v6, log string) {
		t.Helper()
		core, logs := observer.New(zapcore.InfoLevel)
		Detect(t.Context(), api.Config(user), zap.New(core)).Apply(&c)
		if c.ClusterType != types || c.Pool4.CIDR != v4 || c.Pool6.CIDR != v6 {
			t.Errorf("%s: type %q, pools %q and %q; want %q, %q, %q", what, c.ClusterType, c.Pool4.CIDR, c.Pool6.CIDR,
				types, v4, v6)
		}
		var logged []string
		for _, e := range logs.All() {
			logged = append(logged, e.ContextMap()["configmap"].(string))
		}
		if got := strings.Join(logged, " "); got != log {
			t.Errorf("%s: the log names %q, want %q", what, got, log)
		}
	}
	const v4, v6 = "10.244.0.0/16", "fd00:10:244::/56"
	bgp := node.Config{ClusterType: "k8s,bgp"}
	expect("no right at all", bgp, "k8s,bgp", "", "", kubeadmConfigMap+" "+rancherConfigMap)
	allow(kubeadmConfigMap)
	put(kubeadmConfigMap, "ClusterConfiguration", kubeadmText)
	put(rancherConfigMap, "full-cluster-state", "{}")
	expect("the right for kubeadm's alone", bgp, "k8s,bgp,kubeadm", v4, v6, rancherConfigMap)
	allow(kubeadmConfigMap, rancherConfigMap)
	expect("both", node.Config{}, "kubeadm,rancher", v4, v6, "")
	set := node.Config{}
	set.Pool4.CIDR, set.Pool6.CIDR = "10.9.0.0/16", noPool
	expect("pools that are set", set, "kubeadm,rancher", "10.9.0.0/16", noPool, "")
	expect("no pools", node.Config{NoDefaultPools: true}, "kubeadm,rancher", "", "", "")
	api.Stop()
	expect("an API that is away", node.Config{}, "", noPool, noPool, "")
}
