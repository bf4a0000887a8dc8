package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/manxnet/manx/dataplane"
	"github.com/manxnet/manx/dataplane/kernel/nftables"
	"github.com/manxnet/manx/dataplane/policy"
	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/integration/e2e/world"
	"github.com/manxnet/manx/integration/lab"
	"github.com/manxnet/manx/integration/namespace"
)

// BenchmarkPolicyTraffic sends between two pods through a node's policies: those of Manx, the same as plain chains of
// iptables, and none at all. All nodes exist from the start and are measured in turns, so that other load affects all.
func BenchmarkPolicyTraffic(b *testing.B) {
	for _, program := range []string{"ip", "iperf3"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Skip(program + " is not installed")
		}
	}
	var paths []*path
	add := func(name string, filter func(*path)) {
		p := newPath(b, name)
		filter(p)
		paths = append(paths, p)
	}
	add("none", func(*path) {})
	for _, n := range []int{0, 1, 100, 10_000} {
		add(fmt.Sprint("manx-", n), func(p *path) { p.manx(n) })
	}
	if program := iptables(); program != "" {
		for _, n := range []int{1, 100, 10_000} {
			add(fmt.Sprint("iptables-", n), func(p *path) { p.iptables(program, n) })
		}
	}
	const rounds = 3
	for range b.N * rounds {
		for _, p := range paths {
			p.measure(time.Second)
		}
	}
	base, one := paths[0], paths[2]
	var text strings.Builder // go test shows ten lines of a log at most
	for _, p := range paths {
		fmt.Fprintf(&text, "\n%-14s TCP %6.0f Mbit/s %5.2f s CPU/GB, UDP %7.0f packets/s %5.2f us CPU, %6.0f "+
			"connections/s %6.0f us CPU", p.name,
			p.median("tcp"), p.median("tcp-cpu"), p.median("udp"), p.median("udp-cpu"), p.median("connections"),
			p.median("connection-cpu"))
		for _, what := range []string{"tcp", "udp", "connections"} {
			b.ReportMetric(p.median(what)/base.median(what), p.name+"/none-"+what)
		}
	}
	const pairs = 24
	compare(b, &text, one, paths[4], pairs*b.N)
	if len(paths) > 5 {
		compare(b, &text, paths[5], one, pairs*b.N)
	}
	fmt.Println(text.String())
	b.ReportMetric(0, "ns/op")
}

// compare reports b's share of a's throughput, and the cost of a packet. They are measured in turns, and each pair
// yields one ratio: other load of the machine in these seconds is in both. A virtual machine may lose more than a
// hundredth of the time to its host, which affects the two differently: such pairs are left out and counted, at most as
// many as the requested pairs.
func compare(tb *testing.B, text *strings.Builder, a, b *path, pairs int) {
	ratios := map[string][]float64{}
	taken, left := 0, 0
	for taken < pairs {
		a.results, b.results = map[string][]float64{}, map[string][]float64{}
		first, second := a, b
		if (taken+left)%2 == 1 {
			first, second = b, a
		}
		start, stolen0 := time.Now(), stealTime()
		first.measure(time.Second)
		second.measure(time.Second)
		if (stealTime()-stolen0)*100 > time.Since(start)*time.Duration(runtime.NumCPU()) && left < pairs {
			left++
			continue
		}
		taken++
		for what, list := range a.results {
			ratios[what] = append(ratios[what], b.results[what][0]/list[0])
		}
	}
	for what, list := range ratios {
		slices.Sort(list)
		fmt.Fprintf(text, "\n%s of %s to %s: quartiles %.2f, %.2f, %.2f of %d pairs, %d left out", what, b.name, a.name,
			percentile(list, 25), percentile(list, 50), percentile(list, 75), pairs, left)
		tb.ReportMetric(percentile(list, 50), b.name+"/"+a.name+"-"+what)
	}
}

// path is a node between two pods.
type path struct {
	*testing.B
	name                 string
	client, node, server string // network namespaces
	address              string // of the server
	results              map[string][]float64
}

const (
	clientAddress = "10.99.0.2"
	serverAddress = "10.99.0.3"
	trafficPort   = 5201 // iperf3's
	connectPort   = 5202
)

func newPath(b *testing.B, name string) *path {
	p := &path{B: b, name: name, client: namespace.New(b, "manxpb"), node: namespace.New(b, "manxpb"),
		server: namespace.New(b, "manxpb"), address: serverAddress}
	for _, pod := range []struct{ namespace, iface, address string }{{p.client, "cali1", clientAddress},
		{p.server, "cali2", serverAddress}} {
		p.ip("-n", p.node, "link", "add", pod.iface, "type", "veth", "peer", "name", "eth0", "netns", pod.namespace)
		p.ip("-n", p.node, "link", "set", pod.iface, "up")
		p.ip("-n", p.node, "addr", "add", "169.254.1.1/32", "dev", pod.iface)
		p.ip("-n", p.node, "route", "add", pod.address+"/32", "dev", pod.iface)
		p.ip("-n", pod.namespace, "addr", "add", pod.address+"/32", "dev", "eth0")
		p.ip("-n", pod.namespace, "link", "set", "eth0", "up")
		p.ip("-n", pod.namespace, "route", "add", "169.254.1.1/32", "dev", "eth0")
		p.ip("-n", pod.namespace, "route", "add", "default", "via", "169.254.1.1")
	}
	p.ip("netns", "exec", p.node, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	p.serve()
	return p
}

// serve starts the servers of a path.
func (p *path) serve() {
	p.results = map[string][]float64{}
	// Ports are reused at once, and their range is larger, so that the clients do not run out of ports.
	p.ip("netns", "exec", p.client, "sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1",
		"net.ipv4.ip_local_port_range=1024 65000")
	p.background(namespace.Command(p.server, "iperf3", "-s"))
	p.background(p.connector(p.server, "serve"))
	ports := fmt.Sprintf("( sport = :%d or sport = :%d )", trafficPort, connectPort)
	if err := lab.Eventually(world.Limit, func() error {
		out, err := namespace.Command(p.server, "ss", "-Hltn", ports).CombinedOutput()
		if strings.Count(string(out), "\n") < 2 {
			return fmt.Errorf("%s: the servers do not listen: %w: %s", p.name, err, out)
		}
		return nil
	}); err != nil {
		p.Fatal(err)
	}
}

func (p *path) ip(args ...string) {
	p.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		p.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

func (p *path) background(cmd *exec.Cmd) {
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// trafficPolicies returns n policies about the server. Each allows other clients and ports; the last one allows the
// client.
func trafficPolicies(n int) (nets []string, ports []int) {
	for i := range n {
		nets, ports = append(nets, fmt.Sprintf("10.%d.%d.0/24", 100+i/250, i%250)), append(ports, 1000+i)
	}
	if n > 0 {
		nets[n-1], ports[n-1] = "10.99.0.0/24", 0
	}
	return nets, ports
}

// manx has the node filter as Manx does.
func (p *path) manx(n int) {
	objects := []*model.Object{
		stored(model.ResourceKey(model.KindProfile, "kns.default"), nil,
			`{"ingress":[{"action":"Allow"}],"egress":[{"action":"Allow"}]}`)}
	for i, address := range []string{clientAddress, serverAddress} {
		name := fmt.Sprintf("here-k8s-pod%d-eth0", i+1)
		objects = append(objects, stored(model.Key{Kind: model.KindWorkloadEndpoint, Namespace: "default", Name: name},
			map[string]string{"pod": strconv.Itoa(i + 1), model.LabelNamespace: "default"},
			`{"orchestrator":"k8s","node":"here","pod":"pod%d","endpoint":"eth0","ipNetworks":["%s/32"],"profiles":["kns.default"],"interfaceName":"cali%[1]d"}`, i+1, address))
	}
	nets, ports := trafficPolicies(n)
	for i := range nets {
		rules := fmt.Sprintf(`{"action":"Allow","protocol":"TCP","source":{"nets":[%q]},"destination":{"ports":[%d]}}`,
			nets[i], ports[i])
		if ports[i] == 0 {
			rules = fmt.Sprintf(`{"action":"Allow","source":{"nets":[%q]}}`, nets[i])
		}
		objects = append(objects, stored(model.Key{Kind: model.KindNetworkPolicy, Namespace: "default",
			Name: fmt.Sprintf("default.policy-%05d", i)},
			nil, `{"tier":"default","order":%d,"selector":"pod == '2'","types":["Ingress"],"ingress":[%s]}`, i, rules))
	}
	rules, err := nftables.Open("/run/netns/" + p.node)
	if err != nil {
		p.Fatal(err)
	}
	defer rules.Close()
	agent := dataplane.NewPolicy(dataplane.PolicyConfig{Rules: rules, Logger: zap.NewNop(),
		Policy: policy.Config{Node: "here"}})
	reached := agent.Reached()
	agent.SetState(dataplane.State{Reader: model.NewSet(objects...), All: true})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = agent.Run(ctx); close(done) }()
	select {
	case <-reached:
	case <-time.After(time.Minute):
		p.Fatalf("%+v", agent.Status())
	}
	cancel()
	<-done
}

// iptables returns the installed program; iptables-nft is preferred.
func iptables() string {
	for _, program := range []string{"iptables-nft-restore", "iptables-legacy-restore", "iptables-restore"} {
		if _, err := exec.LookPath(program); err == nil {
			return program
		}
	}
	return ""
}

// iptables writes the same policies as chains: one for each policy, and one for each pod and direction.
func (p *path) iptables(program string, n int) {
	nets, ports := trafficPolicies(n)
	var chains, list, rules strings.Builder
	for i := range nets {
		fmt.Fprintf(&chains, ":pi-%d - [0:0]\n", i)
		fmt.Fprintf(&list, "-A to-cali2 -j pi-%d\n", i)
		if ports[i] == 0 {
			fmt.Fprintf(&rules, "-A pi-%d -s %s -j ACCEPT\n", i, nets[i])
		} else {
			fmt.Fprintf(&rules, "-A pi-%d -p tcp -s %s -m tcp --dport %d -j ACCEPT\n", i, nets[i], ports[i])
		}
	}
	text := "*filter\n:FORWARD ACCEPT [0:0]\n:to-cali2 - [0:0]\n:from-cali1 - [0:0]\n" + chains.String() +
		`-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -i cali1 -j from-cali1
-A FORWARD -o cali2 -j to-cali2
-A from-cali1 -j RETURN
` + list.String() + "-A to-cali2 -j DROP\n" + rules.String() + "COMMIT\n"
	cmd := namespace.Command(p.node, program)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		p.Fatalf("%s: %v: %s", program, err, out)
	}
}

func (p *path) add(what string, v float64) { p.results[what] = append(p.results[what], v) }

// stream sends for d by TCP, and then by UDP.
func (p *path) stream(d time.Duration) {
	seconds := strconv.Itoa(int(d.Seconds()))
	tcp := p.iperf("-t", seconds)
	bytes := tcp.End.SumReceived.Bytes
	p.add("tcp", bytes*8/1e6/tcp.End.SumReceived.Seconds)
	p.add("tcp-cpu", tcp.cpu(d)/bytes*1e9)
	udp := p.iperf("-t", seconds, "-u", "-b", "0", "-l", "64")
	arrived := udp.End.Sum.Packets - udp.End.Sum.LostPackets
	p.add("udp", arrived/udp.End.Sum.Seconds)
	p.add("udp-cpu", udp.cpu(d)/arrived*1e6)
}

// measure adds one value to each result.
func (p *path) measure(d time.Duration) {
	p.stream(d)
	cmd := p.connector(p.client, "connect "+d.String())
	out, err := cmd.Output()
	n, _ := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil || n == 0 {
		p.Fatalf("%s: no connections: %v: %s", p.name, err, out)
	}
	p.add("connections", n/d.Seconds())
	p.add("connection-cpu", float64(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())/1e3/n)
}

func (p *path) median(what string) float64 { return percentile(slices.Clone(p.results[what]), 50) }

// iperf is the output of iperf3.
type iperf struct {
	End struct {
		SumReceived struct{ Bytes, Seconds float64 } `json:"sum_received"`
		Sum         struct {
			Packets, Seconds float64
			LostPackets      float64 `json:"lost_packets"`
		}
		CPU struct {
			Host   float64 `json:"host_total"`
			Remote float64 `json:"remote_total"`
		} `json:"cpu_utilization_percent"`
	}
}

// cpu returns the processor time of both ends in seconds: it includes the node's work.
func (r iperf) cpu(d time.Duration) float64 {
	return (r.End.CPU.Host + r.End.CPU.Remote) / 100 * d.Seconds()
}

func (p *path) iperf(args ...string) iperf {
	var r iperf
	out, err := namespace.Command(p.client, "iperf3", append([]string{"-J", "-c", p.address}, args...)...).Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil || r.End.Sum.Seconds+r.End.SumReceived.Seconds == 0 {
		p.Fatalf("%s: iperf3 %v: %v: %s", p.name, args, err, out)
	}
	return r
}

const connectorVariable = "MANX_BENCH_CONNECTOR"

// connector is this program in a network namespace as a client or server that opens and closes connections.
func (p *path) connector(ns, what string) *exec.Cmd {
	cmd := namespace.Command(ns, os.Args[0], "-test.run=^TestConnector$", "-test.count=1")
	server := net.JoinHostPort(p.address, strconv.Itoa(connectPort))
	cmd.Env = append(os.Environ(), connectorVariable+"="+server+" "+what)
	return cmd
}

// TestConnector is that program; the client prints the number of connections.
func TestConnector(t *testing.T) {
	address, what, _ := strings.Cut(os.Getenv(connectorVariable), " ")
	what, duration, _ := strings.Cut(what, " ")
	switch what {
	case "serve":
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	case "connect":
		d, _ := time.ParseDuration(duration)
		n := 0
		for end := time.Now().Add(d); time.Now().Before(end); n++ {
			c, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = c.Read(make([]byte, 1)) // until the server has closed it: the port waits at the server
			_ = c.Close()
		}
		fmt.Println(n)
		os.Exit(0)
	default:
		t.Skip("the benchmark of traffic starts it")
	}
}
