package rights_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/manxnet/manx/datastore/kubernetes"
	"github.com/manxnet/manx/datastore/kubernetes/form"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/kubernetes/apiserver"
	"github.com/manxnet/manx/integration/kubernetes/rights"
	"github.com/manxnet/manx/ipam"
)

// started starts manxd, which leads, and waits for the configuration of the CNI plugin.
func (w *world) started(t *testing.T) {
	w.create(t, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"kubeadm-config",
		"namespace":"kube-system"},"data":{}}`))
	w.start(t)
	if w.controllers {
		w.startControllers(w.test)
	}
	until(t, "the configuration of the CNI plugin", func() error {
		_, err := os.Stat(filepath.Join(w.conf, "10-calico.conflist"))
		return err
	})
}

// pods attaches and detaches pods through the daemon.
func (w *world) pods(t *testing.T) {
	if w.kubernetes() {
		n := 0
		until(t, "a pod whose assignment meets another node's block", func() error {
			n++
			if !w.loseBlocks(t, fmt.Sprintf("10.13.%d.0/28", n)) { // it may come before the watch of manxd
				return errors.New("manxd had not the affinity of the block")
			}
			return nil
		})
		until(t, "a pod that comes before the watches are back", func() error {
			n++
			return w.addPodEarly(t, fmt.Sprintf("early-%d", n))
		})
		return
	}
	w.addPod(t, "pod", "")
	w.deletePod(t, "pod")
}

// addPodEarly adds and removes a pod just after manxd reaches the API server again. It returns an error if the watches
// were faster than the pod: then the pod's namespace was not read.
func (w *world) addPodEarly(t *testing.T, pod string) error {
	w.line.Cut()
	until(t, "manxd without the datastore", func() error {
		if _, err := w.n.Get("/readyz"); err == nil {
			return errors.New("it is ready")
		}
		return nil
	})
	time.Sleep(2 * time.Second) // the attempts of the watches grow rare
	w.line.Mend()
	w.addPod(t, pod, "")
	w.deletePod(t, pod)
	must(t, w.n.Ready(patience))
	read := rights.Grant{Account: daemon, Verb: "get", Resource: "namespaces"}
	if !slices.ContainsFunc(w.callsOfStep(t), read.Allows) {
		return errors.New("the watches were faster")
	}
	return nil
}

// loseBlocks adds and removes pods. One of them has an address of a pool whose first block belongs to another node. The
// affinities of their blocks are released while the pods have addresses, so that the pods' removal deletes the blocks.
// loseBlocks reports whether the assignment met the other node's block: then it has deleted the affinity.
func (w *world) loseBlocks(t *testing.T, pool string) (met bool) {
	name := strings.NewReplacer(".", "-", "/", "-").Replace(pool)
	w.pool(t, "pool-"+name, pool, 29, "")
	taken := w.assign(t, "n2", "k8s-pod-network."+name, "elsewhere", pool)
	store := w.store(t)
	affinity := model.AffinityKey(model.Affinity{Type: model.AffinityHost, Host: "n1", CIDR: taken})
	_, err := store.Create(t.Context(), model.NewObject(affinity, &model.BlockAffinity{State: model.StatePending}))
	must(t, err)
	w.addPod(t, "pool-"+name, `"cni.projectcalico.org/ipv4pools":"[\"pool-`+name+`\"]"`)
	_, err = store.Get(t.Context(), affinity)
	met = errors.Is(err, model.ErrNotFound)
	w.addPod(t, "main-"+name, "")
	must(t, w.allocator(t).ReleaseHostAffinities(t.Context(), ipam.Host("n1"), false))
	w.deletePod(t, "pool-"+name)
	w.deletePod(t, "main-"+name)
	return met
}

// pluginAlone runs loseBlocks without manxd.
func (w *world) pluginAlone(t *testing.T) {
	w.stop(t)
	defer w.start(t)
	if !w.loseBlocks(t, "10.11.0.0/28") {
		t.Error("the plugin alone has not met the block of another node")
	}
	// The names of these two have the same hash, and so the same host interface.
	w.addPod(t, "pod-796582", "")
	err := w.tryPod(t, "pod-952174", "")
	if err == nil || !strings.Contains(err.Error(), "caliddf2565c959 of pod default/pod-952174 is in use by "+
		"default/pod-796582") {
		t.Errorf("a pod with the interface of another one: %v", err)
	}
	w.deletePod(t, "pod-952174")
	must(t, w.cni(t, "ADD", "pod-796582"))
	w.deletePod(t, "pod-796582")
}

// pluginAloneInEtcd calls the plugin without manxd, which serves the datastore here.
func (w *world) pluginAloneInEtcd(t *testing.T) {
	defer func(was string) { w.socket = was }(w.socket)
	w.socket = filepath.Join(w.conf, "nowhere", "manxd.sock")
	w.addPod(t, "alone", "")
	w.deletePod(t, "alone")
}

// store opens the datastore with the administrator's rights.
func (w *world) store(t *testing.T) *kubernetes.Store {
	t.Helper()
	s, err := kubernetes.OpenREST(t.Context(), kubernetes.Config{Group: string(w.group)},
		w.server.Config(apiserver.Admin),
		zap.NewNop())
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *world) allocator(t *testing.T) *ipam.Allocator {
	return ipam.New(w.store(t), zap.NewNop(), time.Now)
}

// assign assigns an address of a pool to a pod that does not exist, and returns its block.
func (w *world) assign(t *testing.T, node, handle, pod, pool string) netip.Prefix {
	t.Helper()
	given, err := w.allocator(t).AutoAssign(t.Context(), ipam.Request{Host: node, Num4: 1, Handle: handle,
		Use: v3.IPPoolAllowedUseWorkload, Pools4: []netip.Prefix{netip.MustParsePrefix(pool)},
		Attrs: map[string]string{"node": node, "pod": pod, "namespace": "default"}})
	must(t, err)
	if err := given.Short(); err != nil {
		t.Fatal(err)
	}
	return given.V4.Addresses[0].Masked()
}

func (w *world) pool(t *testing.T, name, cidr string, block int, more string) {
	t.Helper()
	w.put(t, "ippools", "IPPool", "", name, fmt.Sprintf(`{"cidr":%q,"blockSize":%d,"nodeSelector":"all()"%s}`, cidr,
		block,
		more))
}

// put stores an object of Calico as the administrator.
func (w *world) put(t *testing.T, plural, kind, namespace, name, spec string) {
	t.Helper()
	if !w.kubernetes() {
		must(t,
			w.n.Apply(fmt.Sprintf(`{"apiVersion":"projectcalico.org/v3","kind":%q,"metadata":{"name":%q},"spec":%s}`,
				kind, name, spec)))
		return
	}
	path := w.customPath(plural)
	if namespace != "" {
		path = w.customPath("namespaces", namespace, plural)
	}
	w.request(t, http.MethodPost, path, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},"spec":%s}`,
		w.group, kind, name, spec))
}

// remove deletes a custom resource that put has stored.
func (w *world) remove(t *testing.T, plural, namespace, name string) {
	t.Helper()
	path := w.customPath(plural, name)
	if namespace != "" {
		path = w.customPath("namespaces", namespace, plural, name)
	}
	w.request(t, http.MethodDelete, path, "")
}

// loadBalancer assigns an address to a Service, and releases it.
func (w *world) loadBalancer(t *testing.T) {
	w.pool(t, "balanced", "10.12.0.0/24", 28, `,"allowedUses":["LoadBalancer"],"assignmentMode":"Automatic"`)
	w.create(t, []byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"default"},
		"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`))
	until(t, "the address of the service", func() error {
		return w.has(t, "/api/v1/namespaces/default/services/web", `"ip":"10.12.0.`)
	})
	w.request(t, http.MethodDelete, "/api/v1/namespaces/default/services/web", "")
}

// has returns nil if an object contains a text.
func (w *world) has(t *testing.T, path, text string) error {
	raw, err := w.server.Try(t.Context(), t, http.MethodGet, path, nil)
	if err == nil && !strings.Contains(string(raw), text) {
		err = fmt.Errorf("no %q in %s", text, raw)
	}
	return err
}

// hostEndpoints are made, changed and deleted, as the controllers are configured.
func (w *world) hostEndpoints(t *testing.T) {
	auto := func(value string) {
		w.request(t, http.MethodPatch, w.customPath("kubecontrollersconfigurations", "default"),
			`{"spec":{"controllers":{"node":{"hostEndpoint":{"autoCreate":"`+value+`"}}}}}`)
	}
	list := w.customPath("hostendpoints")
	auto("Enabled")
	until(t, "a host endpoint", func() error { return w.has(t, list, "n1-auto-hep") })
	w.request(t, http.MethodPatch, "/api/v1/nodes/n1", `{"metadata":{"labels":{"rack":"7"}}}`)
	until(t, "its label", func() error { return w.has(t, list, "rack") })
	auto("Disabled")
	until(t, "no host endpoint", func() error {
		if w.has(t, list, "n1-auto-hep") == nil {
			return fmt.Errorf("it is still there")
		}
		return nil
	})
}

// tiered are the kinds of policies that had other names before Calico 3.32.
var tiered = map[string]string{"networkpolicies": "NetworkPolicy", "globalnetworkpolicies": "GlobalNetworkPolicy",
	"stagednetworkpolicies": "StagedNetworkPolicy", "stagedglobalnetworkpolicies": "StagedGlobalNetworkPolicy"}

// oldNames are policies as Calico stored them before 3.32.
func (w *world) oldNames(t *testing.T) {
	for plural, kind := range tiered {
		path := w.customPath(plural)
		if !strings.Contains(plural, "global") {
			path = w.customPath("namespaces", "default", plural)
		}
		w.request(t, http.MethodPost, path, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"default.old",
			"annotations":{"projectcalico.org/metadata":"{\"name\":\"old\"}"}},
			"spec":{"tier":"default","selector":"app == 'nothing'","types":["Ingress"]}}`, w.group, kind))
		until(t, "the new name of a "+kind, func() error { return w.has(t, path+"/old", `"default"`) })
		until(t, "the end of the old name", func() error {
			if w.has(t, path+"/default.old", "") == nil {
				return fmt.Errorf("it is still there")
			}
			return nil
		})
	}
}

// overlay makes a pool with VXLAN, whose routes follow from the blocks of all nodes.
func (w *world) overlay(t *testing.T) {
	w.pool(t, "vxlan", "10.14.0.0/24", 28, `,"vxlanMode":"Always"`)
}

// nodeStatus is filled in where a request for it exists, and again after another writer was faster.
func (w *world) nodeStatus(t *testing.T) {
	w.put(t, "caliconodestatuses", "CalicoNodeStatus", "", "n1", `{"node":"n1","classes":["Agent","BGP","Routes"],
		"updatePeriodSeconds":1}`)
	path := w.customPath("caliconodestatuses", "n1")
	until(t, "the status", func() error { return w.has(t, path, "lastUpdated") })
	until(t, "a conflict", func() error {
		for n := range 100 {
			w.request(t, http.MethodPatch, path, fmt.Sprintf(`{"metadata":{"labels":{"n":"%d"}}}`, n))
		}
		again := rights.Grant{Account: daemon, Verb: "get", Group: w.api(), Resource: "caliconodestatuses"}
		if !slices.ContainsFunc(w.callsOfStep(t), again.Allows) {
			return errors.New("manxd was always faster")
		}
		return nil
	})
	w.remove(t, "caliconodestatuses", "", "n1")
}

// deletions makes a pool and a tier, and deletes them when the controllers have given them finalizers.
func (w *world) deletions(t *testing.T) {
	w.put(t, "tiers", "Tier", "", "old", `{"order":5}`)
	w.put(t, "ippools", "IPPool", "", "old", `{"cidr":"10.77.0.0/24"}`)
	until(t, "the tier's finalizer", func() error {
		return w.has(t, w.customPath("tiers", "old"), "projectcalico.org/tier-controller")
	})
	for _, text := range []string{"projectcalico.org/ippool-finalizer", "Allocatable"} {
		until(t, "the pool's "+text, func() error { return w.has(t, w.customPath("ippools", "old"), text) })
	}
	for _, plural := range []string{"ippools", "tiers"} {
		w.request(t, http.MethodDelete, w.customPath(plural, "old"), "")
		until(t, "the end of "+plural, func() error {
			if w.has(t, w.customPath(plural), `"old"`) == nil {
				return errors.New("it is still there")
			}
			return nil
		})
	}
}

// mistakes makes a policy of a tier that does not exist, in one way and in another, and mends it.
func (w *world) mistakes(t *testing.T) {
	path := w.customPath("globalnetworkpolicies", "nowhere.deny")
	w.put(t, "globalnetworkpolicies", "GlobalNetworkPolicy", "", "nowhere.deny", `{"tier":"nowhere"}`)
	for i, tier := range []string{"nowhere", "elsewhere", "nowhere"} {
		w.request(t, http.MethodPatch, path, `{"spec":{"tier":"`+tier+`"}}`)
		until(t, "an Event with "+tier, func() error {
			var all []string
			for _, e := range w.invalid(t) {
				all = append(all, fmt.Sprint(e.InvolvedObject.Name, e.Count, e.Message))
				if strings.Contains(e.Message, fmt.Sprintf("spec.tier = %q", tier)) && int(e.Count) == 1+i/2 {
					return nil
				}
			}
			return fmt.Errorf("there are %v", all)
		})
	}
	if all := w.invalid(t); len(all) != 2 {
		t.Errorf("%d Events about one policy with two problems: %v", len(all), all)
	}
	w.remove(t, "globalnetworkpolicies", "", "nowhere.deny")
}

// invalid are the Events about objects that break rules.
func (w *world) invalid(t *testing.T) []corev1.Event {
	var list corev1.EventList
	must(t, json.Unmarshal(w.request(t, http.MethodGet, "/api/v1/namespaces/default/events", ""), &list))
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.Reason != "ObjectInvalid" })
}

// nodeGone leaves the blocks and addresses of a deleted node. The controllers release them.
func (w *world) nodeGone(t *testing.T) {
	w.create(t, []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"ghost"}}`))
	w.assign(t, "ghost", "k8s-pod-network.gone", "gone", "10.10.0.0/24")
	w.request(t, http.MethodDelete, "/api/v1/nodes/ghost", "")
	until(t, "no block of the node", func() error {
		if w.has(t, w.customPath("blockaffinities"), "ghost") == nil {
			return fmt.Errorf("it is still there")
		}
		return nil
	})
}

// storeInvalid stores an object that cannot be decoded for each kind that manxd follows, and requests a retry.
func (w *world) storeInvalid(t *testing.T) {
	type object struct{ plural, namespace string }
	var made []object
	for plural, kind := range kinds(w.group) {
		o := object{plural: plural}
		if namespaced[plural] {
			o.namespace = "default"
		}
		w.put(t, plural, kind, o.namespace, "bad", `"nothing that a spec can be"`)
		made = append(made, o)
	}
	w.request(t, http.MethodPost, "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", `{
		"apiVersion":"policy.networking.k8s.io/v1alpha2","kind":"ClusterNetworkPolicy","metadata":{"name":"bad"},"spec":"x"}`)
	until(t, "all are read again", func() error {
		out, _ := w.n.Manxctl("retry") // it fails while some are bad
		if left := w.unused(t); len(left) > 0 {
			return fmt.Errorf("not read: %v; %s", left, out)
		}
		return nil
	})
	for _, o := range made {
		w.remove(t, o.plural, o.namespace, "bad")
	}
	w.request(t, http.MethodDelete, "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies/bad", "")
}

// namespaced are the kinds of Calico that are in namespaces.
var namespaced = map[string]bool{"networkpolicies": true, "networksets": true, "stagednetworkpolicies": true,
	"stagedkubernetesnetworkpolicies": true}

// kinds has the custom resources of Calico by plural.
func kinds(g form.Group) map[string]string {
	list := map[string]string{}
	for _, k := range []string{"BGPConfiguration", "BGPFilter", "BGPPeer", "BlockAffinity", "CalicoNodeStatus",
		"ClusterInformation", "FelixConfiguration", "GlobalNetworkPolicy", "GlobalNetworkSet", "HostEndpoint",
		"IPAMBlock",
		"IPPool", "IPReservation", "KubeControllersConfiguration", "NetworkPolicy", "NetworkSet",
		"StagedGlobalNetworkPolicy", "StagedKubernetesNetworkPolicy", "StagedNetworkPolicy", "Tier"} {
		plural := strings.ToLower(k)
		switch {
		case strings.HasSuffix(plural, "y"):
			plural = strings.TrimSuffix(plural, "y") + "ies"
		case strings.HasSuffix(plural, "s"):
			plural += "es"
		default:
			plural += "s"
		}
		list[plural] = k
	}
	return list
}

// passwords are read from a Secret.
func (w *world) passwords(t *testing.T) {
	w.create(t, []byte(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"tor","namespace":"kube-system"},
		"stringData":{"password":"a secret"}}`))
	peer := `{"peerIP":"10.200.0.200","asNumber":64999,"password":{"secretKeyRef":{"name":"tor","key":"password"}}}`
	w.put(t, "bgppeers", "BGPPeer", "", "tor", peer)
}

// events report a rule that another program has removed, and the next one.
func (w *world) events(t *testing.T) {
	for range 2 {
		out, err := exec.Command("ip", "netns", "exec", w.n.Namespace, "nft", "delete", "table", "inet", "manx").
			CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		until(t, "the table is back", func() error {
			return exec.Command("ip", "netns", "exec", w.n.Namespace, "nft", "list", "table", "inet", "manx").Run()
		})
	}
}

// anotherRelease starts with the objects of an older release.
func (w *world) anotherRelease(t *testing.T) {
	w.stop(t)
	w.request(t, http.MethodPatch, w.customPath("clusterinformations", "default"),
		`{"spec":{"calicoVersion":"v3.1.0","clusterType":"k8s"}}`)
	w.request(t, http.MethodPatch, w.customPath("felixconfigurations", "default"), `{"spec":null}`)
	w.start(t)
}

// oldNameInEtcd is a policy as Calico stored it before 3.32.
func (w *world) oldNameInEtcd(t *testing.T) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{w.n.EtcdSocket()}})
	must(t, err)
	defer client.Close() //nolint:errcheck // the test is over
	const at = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/"
	_, err = client.Put(t.Context(), at+"default.old",
		`{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3",
		"metadata":{"name":"default.old","uid":"1b8e7bbf-84c2-4066-8460-86955948669f",
		"creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"tier":"default","selector":"all()","types":["Ingress"]}}`)
	must(t, err)
	until(t, "its new name", func() error {
		got, err := client.Get(t.Context(), at+"old")
		if err == nil && got.Count == 0 {
			err = errors.New("there is none")
		}
		return err
	})
}

// mirrorObjects creates and deletes objects of Kubernetes that the controllers mirror to Calico's datastore.
func (w *world) mirrorObjects(t *testing.T) {
	w.create(t, []byte(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}}`))
	w.create(t, []byte(`{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"till","namespace":"default"}}`))
	w.create(t, []byte(`{"apiVersion":"networking.k8s.io/v1","kind":"NetworkPolicy","metadata":{"name":"shut",
		"namespace":"default"},"spec":{"podSelector":{}}}`))
	get := func(args ...string) error {
		_, err := w.n.Manxctl(append([]string{"get"}, args...)...)
		return err
	}
	all := [][]string{{"profile", "kns.shop"}, {"profile", "ksa.default.till"},
		{"networkpolicy", "knp.default.shut", "--namespace=default"}}
	for _, args := range all {
		until(t, args[1], func() error { return get(args...) })
	}
	// A namespace is deleted by its controller, which does not run here.
	w.request(t, http.MethodDelete, "/api/v1/namespaces/shop", "")
	w.request(t, http.MethodPut, "/api/v1/namespaces/shop/finalize",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"},"spec":{"finalizers":[]}}`)
	w.request(t, http.MethodDelete, "/api/v1/namespaces/default/serviceaccounts/till", "")
	w.request(t, http.MethodDelete, "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies/shut", "")
	for _, args := range all {
		until(t, args[1]+" goes", func() error {
			if get(args...) == nil {
				return errors.New("it is still there")
			}
			return nil
		})
	}
}

// nodeGoneFromEtcd stores a node of Calico that Kubernetes does not have.
func (w *world) nodeGoneFromEtcd(t *testing.T) {
	must(t, w.n.Apply(`
apiVersion: projectcalico.org/v3
kind: Node
metadata: {name: ghost}
spec: {orchRefs: [{nodeName: ghost, orchestrator: k8s}]}`))
	until(t, "the end of the node", func() error {
		if _, err := w.n.Manxctl("get", "node", "ghost"); err == nil {
			return errors.New("it is still there")
		}
		return nil
	})
}
