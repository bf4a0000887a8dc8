package main

import (
	"context"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/ipam"
)

func TestContainersGetConnectedUnderEachPluginName(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"calico", "manx"} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			h.conf["type"] = name
			h.conf["ipam"] = map[string]any{"type": name + "-ipam", "assign_ipv6": "true"}
			h.ip("-n", h.name, "addr", "replace", "172.30.0.1/32", "dev", "lo")
			a, b := h.pod("").mustAdd(), h.pod("").mustAdd()
			if len(a.addrs()) != 2 || !a.addrs()[0].Is4() || !a.addrs()[1].Is6() {
				t.Fatalf("addresses are %v, want one of each family", a.addrs())
			}
			for _, to := range []string{"172.30.0.1", b.addrs()[0].String(), b.addrs()[1].String()} {
				h.must(a.ping(to))
			}
			h.must(a.check())
			h.must(b.check())
			for range 2 {
				h.must(a.del())
			}
			h.must(b.del())
			if left := h.leftovers(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

func TestResultHasBothInterfacesAndHostAddresses(t *testing.T) {
	h := newHost(t)
	p := h.pod("").mustAdd()
	defer p.del()
	if len(p.result.Interfaces) != 2 || len(p.result.IPs) != 1 {
		t.Fatalf("result is %+v", p.result)
	}
	hostSide, podSide, ip := p.result.Interfaces[0], p.result.Interfaces[1], p.result.IPs[0]
	mac := strings.Fields(h.ip("-n", p.ns, "-br", "link", "show", "eth0"))[2]
	if hostSide.Name != "cali"+p.id[:11] || podSide.Name != "eth0" || podSide.Mac != mac || podSide.Mtu != 1440 ||
		podSide.Sandbox != p.path() {
		t.Errorf("interfaces are %v and %v, the pod's MAC is %s", hostSide, podSide, mac)
	}
	if ip.Interface == nil || *ip.Interface != 1 || ip.Address.String() != "10.65.0.0/24" &&
		!strings.HasSuffix(ip.Address.String(), "/32") || ip.Gateway != nil {
		t.Errorf("address is %v", ip)
	}
	if r := p.result.Routes; len(r) != 1 || !strings.HasSuffix(r[0].Dst.String(), "/26") {
		t.Errorf("routes are %v, want the IPAM plugin's", r)
	}
}

func TestEndpointAndProfileAreWritten(t *testing.T) {
	h := newHost(t)
	p := h.pod("").mustAdd()
	defer p.del()
	e := h.endpoint("default", "node--1-cni-"+strings.ReplaceAll(p.id, "-", "--")+"-eth0")
	if e == nil {
		t.Fatalf("there is no endpoint:\n%s", h.leftovers())
	}
	want := model.WorkloadEndpointSpec{
		Orchestrator: "cni", Node: "node-1", ContainerID: p.id, Endpoint: "eth0", InterfaceName: "cali" + p.id[:11],
		MAC: p.result.Interfaces[1].Mac, IPNetworks: []string{p.addrs()[0].String() + "/32"},
		Profiles: []string{network},
	}
	if !jsonEqual(t, e.Spec, want) {
		t.Errorf("spec is %+v, want %+v", e.Spec, want)
	}
	if e.Labels["projectcalico.org/namespace"] != "default" || e.Labels["projectcalico.org/orchestrator"] != "cni" {
		t.Errorf("labels are %v", e.Labels)
	}
	o, err := h.store.Get(context.Background(), model.ResourceKey(model.KindProfile, network))
	h.must(err)
	spec := o.Value.(*v3.Profile).Spec
	if len(spec.Ingress) != 1 || spec.Ingress[0].Source.Selector != "has(net1)" || len(spec.Egress) != 1 ||
		spec.LabelsToApply[network] != "" {
		t.Errorf("profile is %+v", spec)
	}
}

func TestKubernetesPodFromArguments(t *testing.T) {
	h := newHost(t)
	p := h.pod("K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=x").mustAdd()
	e := h.endpoint("shop", "node--1-k8s-web--0-eth0")
	if e == nil || e.Spec.Pod != "web-0" || e.Spec.Orchestrator != "k8s" || e.Spec.ContainerID != p.id {
		t.Fatalf("endpoint is %+v:\n%s", e, h.leftovers())
	}
	o, err := h.store.Get(context.Background(), model.ResourceKey(model.KindProfile, network))
	h.must(err)
	if spec := o.Value.(*v3.Profile).Spec; !jsonEqual(t, spec.Ingress, []v3.Rule{{Action: v3.Allow}}) ||
		!jsonEqual(t, spec.Egress, []v3.Rule{{Action: v3.Allow}}) {
		t.Errorf("profile is %+v, but who may reach a pod is not limited to a network", spec)
	}
	a, err := ipam.New(h.store, nil, nil).GetAssignmentAttributes(context.Background(), p.addrs()[0])
	h.must(err)
	if a.Handle != network+"."+p.id || a.Attrs["pod"] != "web-0" || a.Attrs["namespace"] != "shop" ||
		a.Attrs["node"] != "node-1" ||
		!strings.HasSuffix(a.Attrs["timestamp"], " +0000 UTC") {
		t.Errorf("assignment is %+v", a)
	}

	// The pod is restarted: a new container takes over its endpoint, and the old one's DEL comes last.
	renewed := h.pod(p.args).mustAdd()
	h.must(renewed.check())
	h.must(p.del())
	if e := h.endpoint("shop", "node--1-k8s-web--0-eth0"); e == nil || e.Spec.ContainerID != renewed.id {
		t.Errorf("endpoint is %+v, want the new container's", e)
	}
	h.must(renewed.check())
	h.must(renewed.del())
	if left := h.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

func TestAddTwiceKeepsTheAddress(t *testing.T) {
	for _, args := range []string{"", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0"} {
		h := newHost(t)
		p := h.pod(args).mustAdd()
		first, mac := p.addrs(), p.result.Interfaces[1].Mac
		p.mustAdd()
		if !slices.Equal(first, p.addrs()) || p.result.Interfaces[1].Mac != mac {
			t.Errorf("%q: second ADD gave %v on %s, the first %v on %s", args, p.addrs(), p.result.Interfaces[1].Mac,
				first, mac)
		}
		h.ip("-n", p.ns, "addr", "flush", "dev", "eth0") // a repeated ADD repairs
		p.mustAdd()
		h.must(p.check())
		h.must(p.del())
		if left := h.leftovers(); left != "" {
			t.Errorf("%q: left behind:\n%s", args, left)
		}
	}
}

func TestWantedAddressAndPools(t *testing.T) {
	h := newHost(t)
	for name, c := range map[string]struct {
		args string
		ipam map[string]any
		in   string // prefix that must hold the address
		err  string
	}{
		"IP in CNI_ARGS":         {args: "IP=10.65.0.77", in: "10.65.0.77/32"},
		"IP outside every pool":  {args: "IP=10.99.0.1", err: "10.99.0.1"},
		"pool by name":           {ipam: map[string]any{"ipv4_pools": []string{"other4"}}, in: "10.66.0.0/24"},
		"pool by CIDR":           {ipam: map[string]any{"ipv4_pools": []string{"10.66.0.0/24"}}, in: "10.66.0.0/24"},
		"unknown pool":           {ipam: map[string]any{"ipv4_pools": []string{"nosuch"}}, err: "nosuch"},
		"pool of another family": {ipam: map[string]any{"ipv4_pools": []string{"pool6"}}, err: "IPv4"},
		"IPv6 only": {ipam: map[string]any{"assign_ipv4": "false", "assign_ipv6": "true"},
			in: "fd65::/112"},
		"no family": {ipam: map[string]any{"assign_ipv4": "false"}, err: "no address"},
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			section := map[string]any{"type": "calico-ipam"}
			for k, v := range c.ipam {
				section[k] = v
			}
			h.conf["ipam"] = section
			p := h.pod(c.args)
			err := p.add()
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error is %v, want one with %q", err, c.err)
				}
			} else {
				h.must(err)
				if in := netip.MustParsePrefix(c.in); len(p.addrs()) != 1 || !in.Contains(p.addrs()[0]) {
					t.Errorf("addresses are %v, want one in %s", p.addrs(), in)
				}
				h.must(p.check())
			}
			h.must(p.del())
			if left := h.leftovers(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

func TestCheckFindsWhatIsGone(t *testing.T) {
	h := newHost(t)
	for name, c := range map[string]struct {
		breaks func(*pod)
		want   string
	}{
		"interface": {func(p *pod) { h.ip("-n", p.ns, "link", "del", "eth0") }, "is missing"},
		"address":   {func(p *pod) { h.ip("-n", p.ns, "addr", "flush", "dev", "eth0") }, "lacks address"},
		"route":     {func(p *pod) { h.ip("-n", h.name, "route", "del", p.addrs()[0].String()) }, "no route to"},
		"endpoint": {func(p *pod) {
			key := model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default",
				Name: "node--1-cni-" + strings.ReplaceAll(p.id, "-", "--") + "-eth0"}
			_, err := h.store.Delete(context.Background(), key, 0)
			h.must(err)
		}, "WorkloadEndpoint"},
		"assignment": {func(p *pod) {
			_, err := ipam.New(h.store, nil, nil).ReleaseByHandle(context.Background(), network+"."+p.id)
			h.must(err)
		}, "assign"},
	} {
		t.Run(name, func(t *testing.T) {
			h.t = t
			p := h.pod("").mustAdd()
			h.must(p.check())
			c.breaks(p)
			if err := p.check(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
			h.must(p.del())
			if left := h.leftovers(); left != "" {
				t.Errorf("left behind:\n%s", left)
			}
		})
	}
}

func TestDelOfWhatIsGone(t *testing.T) {
	h := newHost(t)
	p := h.pod("").mustAdd()
	h.ip("netns", "del", p.ns)
	h.pods = nil // its namespace cannot be read any more
	for range 2 {
		h.must(p.del())
	}
	if left := h.leftovers(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

func TestVersion(t *testing.T) {
	h := newHost(t)
	for _, name := range []string{"manx", "calico-ipam"} {
		cmd := exec.Command(h.dir + "/bin/" + name)
		cmd.Env = []string{"CNI_COMMAND=VERSION"}
		out, err := cmd.Output()
		h.must(err)
		for _, v := range []string{`"0.1.0"`, `"0.2.0"`, `"0.3.0"`, `"0.3.1"`, `"0.4.0"`, `"1.0.0"`} {
			if !strings.Contains(string(out), v) {
				t.Errorf("%s: %s is missing in %s", name, v, out)
			}
		}
	}
	for _, v := range []string{"0.3.1", "0.4.0", "1.0.0"} {
		h.conf["cniVersion"] = v
		p := h.pod("")
		out, err := p.tool("add")
		h.must(err)
		if !strings.Contains(out, `"cniVersion": "`+v+`"`) {
			t.Errorf("result for %s is %s", v, out)
		}
		h.must(p.del())
	}
}
