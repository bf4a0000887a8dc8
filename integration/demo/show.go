package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/manxnet/manx/integration/lab"
)

// probe is one ping of the matrix.
type probe struct {
	from, name string
	fromNode   string
	toNode     string
	namespace  string
	to         netip.Addr
}

func (p probe) crosses(node string) bool {
	return p.fromNode != p.toNode && (p.fromNode == node || p.toNode == node)
}

// probes are all pings of the matrix: pod to pod, router to pod, pod to the world behind the router.
func (d *demo) probes() []probe {
	var all []probe
	for _, from := range d.pods {
		for _, to := range d.pods {
			if from != to {
				all = append(all, probe{from.Name, to.Name, from.Node.Name, to.Node.Name, from.Namespace, to.IP4()})
			}
		}
		all = append(all, probe{from.Name, "world", from.Node.Name, "tor1", from.Namespace, lab.External.Addr().Next()})
	}
	for _, to := range d.pods {
		all = append(all, probe{"tor1", to.Name, "tor1", to.Node.Name, d.lab.ToRs[0].Namespace, to.IP4()})
	}
	return all
}

func (d *demo) showSessions() {
	for _, n := range d.lab.Nodes {
		var out string
		// gobgp waits a second for a response; a busy machine may need longer.
		err := lab.Eventually(20*time.Second, func() (err error) {
			out, err = n.Run("gobgp", "neighbor")
			return err
		})
		d.show(fmt.Sprintf("%s (%s): gobgp neighbor", n.Name, n.IP4), out, err)
	}
	out, err := d.lab.ToRs[0].Birdc("show", "protocols")
	d.show("tor1: birdc show protocols", out, err)
}

func (d *demo) showRoutes() {
	for _, n := range d.lab.Nodes {
		out, err := n.Routes("-4")
		d.show(n.Name+": ip route", out, err)
	}
	out, err := d.lab.ToRs[0].Routes()
	d.show("tor1: ip route", out, err)
}

func (d *demo) show(title, text string, err error) {
	printf("\n== %s", title)
	if err != nil {
		d.failed = append(d.failed, title+": "+err.Error())
		printf("%v", err)
		return
	}
	printf("%s", strings.TrimRight(text, "\n"))
}

// pingAll sends all pings of the matrix at once and returns the answered ones.
func (d *demo) pingAll() map[probe]bool {
	var mu sync.Mutex
	var all sync.WaitGroup
	reached := map[probe]bool{}
	for _, p := range d.probes() {
		all.Go(func() {
			err := lab.Ping(p.namespace, p.to)
			mu.Lock()
			defer mu.Unlock()
			reached[p] = err == nil
		})
	}
	all.Wait()
	return reached
}

// showMatrix prints the reached destinations of each source; missing is printed for pings without a reply.
func (d *demo) showMatrix(title, missing string) {
	printf("\n== %s", title)
	marks := map[string]map[string]string{}
	var rows, columns []string
	for _, p := range d.probes() {
		if marks[p.from] == nil {
			marks[p.from] = map[string]string{}
			rows = append(rows, p.from)
		}
		marks[p.from][p.name] = missing
		if d.reached[p] {
			marks[p.from][p.name] = "ok"
		}
	}
	for _, p := range d.pods {
		columns = append(columns, p.Name)
	}
	columns = append(columns, "world")
	fmt.Printf("%-9s", "")
	for _, c := range columns {
		fmt.Printf(" %-8s", c)
	}
	fmt.Println()
	for _, r := range rows {
		fmt.Printf("%-9s", r)
		for _, c := range columns {
			fmt.Printf(" %-8s", cmp.Or(marks[r][c], "-"))
		}
		fmt.Println()
	}
}

func (d *demo) showTimes() {
	printf("\n== how long it took")
	for _, s := range d.stages {
		printf("%6.1fs  %s", s.took.Seconds(), s.name)
	}
}

func (d *demo) nextCommands() {
	n := d.lab.Nodes[0]
	printf("\nThe lab keeps running. To look around:")
	printf("  ip netns list")
	for _, node := range d.lab.Nodes {
		printf("  ip netns exec %s bash                        # on node %s", node.Namespace, node.Name)
	}
	printf("  ip netns exec %s gobgp neighbor", n.Namespace)
	printf("  ip netns exec %s %s/manxctl --socket %s status", n.Namespace, d.lab.Spec.Bin, n.Socket())
	printf("  ip netns exec %s %s/manxctl --socket %s get nodes -o wide", n.Namespace, d.lab.Spec.Bin, n.Socket())
	printf("  logs and files: %s", d.lab.Dir)
	printf("When you have seen enough: make demo-down")
}

// showLogs prints the end of each daemon's log after a failure.
func (d *demo) showLogs() {
	for _, n := range d.lab.Nodes {
		lines := strings.Split(strings.TrimSpace(n.Log()), "\n")
		printf("\n== end of the log of manxd on %s", n.Name)
		printf("%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
	}
}
