package main

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/manxnet/manx/datastore/model"
)

// pod is a container: a network namespace, and its attributes in the runtime.
type pod struct {
	*host
	ns     string
	id     string // as cnitool names the container of this namespace
	args   string // CNI_ARGS
	result *current.Result
}

func (h *host) pod(args string) *pod {
	h.t.Helper()
	p := &pod{host: h, args: args}
	for clash := true; clash; {
		p.ns = fmt.Sprintf("%s-p%s", h.name, unique())
		sum := sha512.Sum512([]byte(p.path()))
		p.id = fmt.Sprintf("cnitool-%x", sum[:10])
		clash = slices.ContainsFunc(h.pods, func(o *pod) bool { return o.id[:11] == p.id[:11] })
	}
	h.pods = append(h.pods, p)
	h.netns(p.ns)
	h.whole.Cleanup(func() { os.Remove("/var/lib/cni/results/" + network + "-" + p.id + "-eth0") }) // cnitool's
	return p
}

func (p *pod) path() string { return "/run/netns/" + p.ns }

// configure writes the network configuration.
func (h *host) configure() {
	h.t.Helper()
	conf, err := json.Marshal(map[string]any{"cniVersion": h.conf["cniVersion"], "name": network,
		"plugins": []any{h.conf}})
	h.must(err)
	h.write("net.d/10-manx.conflist", string(conf))
}

// tool runs cnitool with the configuration as it is now.
func (p *pod) tool(verb string) (string, error) {
	p.t.Helper()
	p.configure()
	return p.run(verb)
}

// run runs cnitool in the host's namespace.
func (p *pod) run(verb string) (string, error) {
	cmd := exec.Command("nsenter", "--net=/run/netns/"+p.name, cnitool.path, verb, network, p.path())
	cmd.Env = append(os.Environ(), "NETCONFPATH="+filepath.Join(p.dir, "net.d"),
		"CNI_PATH="+filepath.Join(p.dir, "bin"), "CNI_ARGS="+p.args)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("cnitool %s: %w: %s%s", verb, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String(), nil
}

func (p *pod) add() error {
	p.t.Helper()
	p.configure()
	return p.addNow()
}

func (p *pod) addNow() error {
	out, err := p.run("add")
	if err != nil {
		return err
	}
	p.result = &current.Result{}
	return json.Unmarshal([]byte(out), p.result)
}

func (p *pod) mustAdd() *pod { p.t.Helper(); p.must(p.add()); return p }
func (p *pod) check() error  { p.t.Helper(); _, err := p.tool("check"); return err }
func (p *pod) del() error    { p.t.Helper(); _, err := p.tool("del"); return err }

func (p *pod) addrs() []netip.Addr {
	var addrs []netip.Addr
	for _, ip := range p.result.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		addrs = append(addrs, a.Unmap())
	}
	return addrs
}

func (p *pod) ping(to string) error {
	out, err := exec.Command("ip", "netns", "exec", p.ns, "ping", "-c1", "-W5", to).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ping %s: %w: %s", to, err, out)
	}
	return nil
}

// endpoint returns the stored WorkloadEndpoint of that name, nil if there is none.
func (h *host) endpoint(namespace, name string) *model.WorkloadEndpoint {
	h.t.Helper()
	o, err := h.store.Get(context.Background(), model.Key{Kind: model.KindWorkloadEndpoint, Namespace: namespace,
		Name: name})
	if errors.Is(err, model.ErrNotFound) {
		return nil
	}
	h.must(err)
	return o.Value.(*model.WorkloadEndpoint)
}

// leftovers lists all that attached containers leave on the host and in the datastore: interfaces, routes, endpoints,
// handles and assigned addresses.
func (h *host) leftovers() string {
	h.t.Helper()
	var lines []string
	for _, ns := range append([]string{h.name}, h.podNamespaces()...) {
		for line := range strings.Lines(h.ip("-n", ns, "-br", "link")) {
			if name := strings.Fields(line)[0]; name != "lo" {
				lines = append(lines, ns+": "+name+"\n")
			}
		}
	}
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(h.ip("-n", h.name, family, "route")) {
			if strings.Contains(line, "cali") && !strings.HasPrefix(line, "fe80::") {
				lines = append(lines, line)
			}
		}
	}
	for _, kind := range []model.Kind{model.KindWorkloadEndpoint, model.KindIPAMHandle, model.KindIPAMBlock} {
		objects, _, err := h.store.List(context.Background(), kind, "")
		h.must(err)
		for _, o := range objects {
			if b, ok := o.Value.(*model.Block); ok {
				for _, a := range b.Attributes {
					lines = append(lines, fmt.Sprintf("%s has an address of %s\n", o.Key, *a.HandleID))
				}
				continue
			}
			lines = append(lines, o.Key.String()+"\n")
		}
	}
	return strings.Join(lines, "")
}

func (h *host) podNamespaces() []string {
	var names []string
	for _, p := range h.pods {
		names = append(names, p.ns)
	}
	return names
}
